"""Paths, globs and folders to a list of files."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from ..errors import DataError

KINDS = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


def kind(path: Path) -> str | None:
    """ "text", "jsonl" or "parquet" by the ending of the name; None for any other."""
    return KINDS.get(path.suffix.lower())


def expand(names: Sequence[str], *, field: str) -> list[Path]:
    """The files that `names` stand for: order kept, globs and folders sorted by path.

    A name is a file, a glob (** goes down) or a folder, of which every file with a known ending
    is taken, hidden ones left out. `field` is the setting to blame in errors.
    Raises DataError when a name matches nothing or a file has an unknown ending.
    """
    files: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            found = [each for each in sorted(path.rglob("*")) if _belongs(each, path)]
            if not found:
                raise DataError(
                    f"{field}={name!r} is a folder without data; "
                    f"it needs files that end in {_endings()}"
                )
        elif path.exists():
            found = [path]
        else:
            found = [Path(each) for each in sorted(glob.glob(str(path), recursive=True))]
            found = [each for each in found if each.is_file()]
            if not found:
                raise DataError(f"{field}={name!r} does not exist; name a file, folder or glob")
        for each in found:
            if kind(each) is None:
                raise DataError(
                    f"{field}={str(each)!r} has an unknown ending; "
                    f"use {_endings()} (plain text: .txt)"
                )
        files += found
    return files


def _belongs(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and kind(path) is not None and path.is_file()


def _endings() -> str:
    return ", ".join(KINDS)
