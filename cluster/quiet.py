"""Keeps the remarks of Ray's daemons off standard output, where results are printed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


class _Sorted:
    """A text stream: what Ray's own threads write goes to a file, the rest passes."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        self._stream = stream
        self._path = path

    def write(self, text: str) -> int:
        if not threading.current_thread().name.startswith("ray_"):
            return self._stream.write(text)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def raylet_notes_to(path: Path) -> Iterator[None]:
    """For a while, send to `path` what Ray prints about dead workers.

    Ray has no switch for it: its listening thread prints to `sys.stdout`.
    """
    former = sys.stdout
    sorted_stream: Any = _Sorted(former, path)
    sys.stdout = sorted_stream
    try:
        yield
    finally:
        if sys.stdout is sorted_stream:  # somebody else's replacement stays
            sys.stdout = former
