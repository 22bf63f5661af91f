"""Plain text as documents.

A file is cut near every 64 KiB, so that one long file is many documents: it can be shuffled,
split into training and held-out parts, and read in bounded memory. Cut k lies after the first
blank line at or behind byte k * 64 KiB, else after the first line end, else at the first
character, always before byte (k + 1) * 64 KiB. So a file of up to 64 KiB is one document, each
cut can be found without reading what comes before, and no byte is left out or changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import DataError
from .unit import Document

PIECE = 64 * 1024
BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")


def documents(path: Path, start: int, stop: int) -> Iterator[Document]:
    """The documents that begin with the cuts of bytes [start, stop).

    `start` is a multiple of PIECE, `stop` one or the size of the file.
    """
    with path.open("rb") as stream:
        begin = _cut(stream, start)
        for base in range(start, stop, PIECE):
            end = _cut(stream, base + PIECE)
            stream.seek(begin)
            raw = stream.read(end - begin)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}: not UTF-8 at byte {begin + error.start}; convert the file to UTF-8"
                ) from error
            if text:
                yield Document(text, f"{path}, byte {begin}")
            begin = end


def _cut(stream: BinaryIO, base: int) -> int:
    """Byte offset of the cut that belongs to `base`, a multiple of PIECE."""
    if base == 0:
        return 0
    stream.seek(base)
    window = stream.read(PIECE)
    if len(window) == 0:
        return stream.seek(0, 2)
    blank = BLANK_LINE.search(window)
    if blank and blank.end() < PIECE:
        return base + blank.end()
    line = window.find(b"\n")
    if 0 <= line < PIECE - 1:
        return base + line + 1
    inside = 0
    while inside < min(3, len(window)) and window[inside] & 0xC0 == 0x80:
        inside += 1  # a character begins with a byte that is not 10xxxxxx
    return base + inside
