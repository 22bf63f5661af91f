"""Parquet: one document a row, in one string column. Loaded only when such a file is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DataError
from .unit import Document, unreadable

BATCH_ROWS = 256


def row_groups(path: Path, field: str) -> int:
    """Number of row groups of `path`.

    Raises DataError when it is no Parquet file, has no rows, or no string column `field`.
    """
    with _open(path) as file:
        schema = file.schema_arrow
        if field not in schema.names:
            names = ", ".join(map(repr, schema.names[:8])) or "nothing"
            raise DataError(f"{path}: no column {field!r}, only {names}; set data.text_field")
        type_ = schema.field(field).type
        plain = type_.value_type if pa.types.is_dictionary(type_) else type_
        if not (pa.types.is_string(plain) or pa.types.is_large_string(plain)):
            raise DataError(f"{path}: column {field!r} is {type_}, not string; set data.text_field")
        if file.metadata.num_rows == 0:
            raise DataError(f"{path}: empty file (row 0); remove it from the corpus")
        return file.num_row_groups


def documents(path: Path, group: int, field: str) -> Iterator[Document]:
    """The documents of row group `group`, decoded `BATCH_ROWS` rows at a time."""
    with _open(path) as file:
        row = sum(file.metadata.row_group(each).num_rows for each in range(group))
        batches = file.iter_batches(
            BATCH_ROWS, row_groups=[group], columns=[field], use_threads=False
        )
        try:
            for batch in batches:
                for value in batch.column(0):
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as error:
                        raise DataError(
                            f"{path}: not UTF-8 in row {row}, byte {error.start} of the text; "
                            "convert the column to UTF-8"
                        ) from error
                    if text is None:
                        raise DataError(
                            f"{path}: no {field!r} in row {row}; remove rows without text"
                        )
                    if text:
                        yield Document(text, f"{path}, row {row}")
                    row += 1
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: broken Parquet data near row {row}; write the file again"
            ) from error


def byte_ranges(path: Path, group: int) -> list[tuple[int, int]]:
    """Where the columns of row group `group` lie in the file, in bytes."""
    with _open(path) as file:
        found = []
        metadata = file.metadata.row_group(group)
        for number in range(metadata.num_columns):
            column = metadata.column(number)
            first = column.data_page_offset
            if column.has_dictionary_page:
                first = min(first, column.dictionary_page_offset)
            found.append((first, first + column.total_compressed_size))
        return found


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: not a Parquet file (byte 0); name a Parquet file or change the ending"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
