"""A file that only grows, by whole records."""

from __future__ import annotations

import os


class AppendFile:
    """Appends to `path`; what `write` was given is in the file when it returns.

    Raises OSError, naming the path, when a record could not be written whole (a full disk); the
    file then ends where it ended before.
    """

    def __init__(self, path: str | os.PathLike[str], *, new: bool = False):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        self.path = os.fspath(path)
        self._file: int | None = os.open(self.path, flags, 0o644)

    def write(self, record: bytes) -> None:
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        size = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(record):
                written += os.write(self._file, record[written:])
        except OSError as error:
            os.ftruncate(self._file, size)
            raise OSError(error.errno, error.strerror, self.path) from None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
