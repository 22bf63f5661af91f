"""A copy of this package, whole and without links, for workers whose environment lacks it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGE = __name__.partition(".")[0]
_WINGS = ("kernels", "sharding", "pipelines", "cluster")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "CMakeFiles")


@contextmanager
def staged(extra: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Folders for Ray's `py_modules`: the package, then the folders or files of `extra`.

    The package is copied first, because Ray leaves out what a .gitignore lists (compiled code)
    and because its wings may be links to folders beside it, or known to the import system only.
    """
    with TemporaryDirectory(prefix="sd-ship-") as folder:
        target = Path(folder) / PACKAGE
        copy_package(target)
        yield [str(target), *extra]


def copy_package(target: Path) -> None:
    """Copy the files of the installed package, data and compiled code included, to `target`."""
    _copy(_places(PACKAGE), target)
    for wing in _WINGS:
        _copy(_places(f"{PACKAGE}.{wing}"), target / wing)


def _places(name: str) -> list[Path]:
    """The folders that hold a package: several when an install is editable."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(place) for place in spec.submodule_search_locations]


def _copy(places: list[Path], target: Path) -> None:
    for place in reversed(places):  # the first place wins where both have a file
        if place.is_dir():
            shutil.copytree(place, target, ignore=_LEFT_OUT, dirs_exist_ok=True)
