"""A unit: a stretch of one file that is read and tokenised without looking at the rest.

Units are the same for every reader of a file, so a corpus read in memory and one prepared by
many processes hold the same documents in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError
from .files import kind

#: Bytes of a unit of text or JSONL (a unit of Parquet is a row group). Multiple of text.PIECE.
#: Part of the corpus digest of files that are larger: raise `cursor.FORMAT` with a change.
UNIT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class Document:
    """One text and where it begins, for error messages."""

    text: str
    where: str


@dataclass(frozen=True)
class Unit:
    """Bytes [start, stop) of a text or JSONL file, or row group `start` of a Parquet file."""

    path: str
    kind: str
    start: int
    stop: int


def plan_units(files: list[Path], *, text_field: str) -> list[Unit]:
    """The units of `files` in order. Reads no content except the footers of Parquet files.

    Raises DataError for a file that is empty, cannot be opened, or is no Parquet file with a
    string column `text_field`.
    """
    units: list[Unit] = []
    for path in files:
        form = kind(path)
        assert form is not None, path
        if form == "parquet":
            from . import parquet

            groups = parquet.row_groups(path, text_field)
            units += [Unit(str(path), form, group, group + 1) for group in range(groups)]
            continue
        try:
            with path.open("rb") as stream:
                size = stream.seek(0, 2)
        except OSError as error:
            raise unreadable(path, error) from error
        if size == 0:
            raise DataError(f"{path}: empty file (byte 0); remove it from the corpus")
        for start in range(0, size, UNIT_BYTES):
            units.append(Unit(str(path), form, start, min(start + UNIT_BYTES, size)))
    return units


def documents(unit: Unit, *, text_field: str) -> Iterator[Document]:
    """The documents of `unit` in order, one at a time; empty texts are left out.

    Raises DataError, with the file and the byte offset (Parquet: the row), for text that is not
    UTF-8, broken JSON, a record without the field, or a file that cannot be read.
    """
    try:
        if unit.kind == "text":
            from . import text

            yield from text.documents(Path(unit.path), unit.start, unit.stop)
        elif unit.kind == "jsonl":
            from . import jsonl

            yield from jsonl.documents(Path(unit.path), unit.start, unit.stop, text_field)
        else:
            from . import parquet

            yield from parquet.documents(Path(unit.path), unit.start, text_field)
    except OSError as error:
        raise unreadable(unit.path, error) from error


def source_digest(unit: Unit) -> str:
    """Digest of the bytes in the file that `unit` is read from: changes when they change."""
    ranges = [(unit.start, unit.stop)]
    if unit.kind == "parquet":
        from . import parquet

        ranges = parquet.byte_ranges(Path(unit.path), unit.start)
    digest = hashlib.sha256()
    try:
        with open(unit.path, "rb") as stream:
            for start, stop in ranges:
                stream.seek(start)
                while start < stop:
                    block = stream.read(min(1 << 20, stop - start))
                    if not block:
                        break
                    digest.update(block)
                    start += len(block)
    except OSError as error:
        raise unreadable(unit.path, error) from error
    return digest.hexdigest()


def unreadable(path: Path | str, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be read ({error.strerror or error}); check that the file is there, "
        "intact and permitted"
    )
