"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".part-"


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write that appears as `path` when the block ends, flushed to the disk.

    After an exception, or the death of the process, `path` is as it was before. An OSError from
    the disk (full, for example) tells the name of the file.
    """
    temporary = path.with_name(f"{path.name}{TEMPORARY}{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_leftovers(folder: Path) -> None:
    """Delete what writers that died left in `folder`."""
    for path in folder.glob(f"*{TEMPORARY}*"):
        path.unlink(missing_ok=True)
