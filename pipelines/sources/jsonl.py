"""JSON lines: one document a line, in one field of an object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .unit import Document


def documents(path: Path, start: int, stop: int, field: str) -> Iterator[Document]:
    """The documents of the lines that begin in bytes [start, stop); blank lines are skipped."""
    with path.open("rb") as stream:
        if start > 0:
            stream.seek(start - 1)
            stream.readline()  # the line that began before belongs to the unit before
        offset = stream.tell()
        while offset < stop:
            line = stream.readline()
            if not line:
                break
            if line.strip():
                text = _text(path, offset, line, field)
                if text:
                    yield Document(text, f"{path}, byte {offset}")
            offset += len(line)


def _text(path: Path, offset: int, line: bytes, field: str) -> str:
    try:
        decoded = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {offset + error.start}; convert the file to UTF-8"
        ) from error
    try:
        record = json.loads(decoded)
    except json.JSONDecodeError as error:
        place = offset + len(decoded[: error.pos].encode("utf-8"))
        raise DataError(
            f"{path}: not JSON at byte {place} ({error.msg}); each line must be one object"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: JSON at byte {offset} cannot be read ({error}); repair or remove the line"
        ) from error
    if not isinstance(record, dict):
        raise DataError(f"{path}: no JSON object at byte {offset}; each line must be one object")
    if field not in record:
        names = ", ".join(map(repr, list(record)[:8])) or "nothing"
        raise DataError(
            f"{path}: no field {field!r} at byte {offset}, only {names}; set data.text_field"
        )
    text = record[field]
    if not isinstance(text, str):
        raise DataError(
            f"{path}: field {field!r} at byte {offset} is {type(text).__name__}, not text; "
            "set data.text_field"
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{path}: field {field!r} at byte {offset} holds half a surrogate pair, "
            "which UTF-8 cannot express; repair or remove the line"
        ) from error
    return text
