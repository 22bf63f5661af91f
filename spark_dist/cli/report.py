"""`spark-dist report RUN`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from ..errors import UserError
from ..launch import write_page
from ..run_directory import RunDirectory
from .parse import parse


@dataclass(frozen=True)
class ReportOptions:
    """Options of `report`."""

    run: tyro.conf.Positional[str]
    """Folder of a run."""


def main(args: Sequence[str]) -> int:
    """Writes RUN/report.html and prints its path."""
    options = parse(
        ReportOptions,
        args,
        prog="spark-dist report",
        description="Writes one self-contained HTML page about a run.",
    )
    directory = RunDirectory(options.run)
    directory.saved_config()
    try:
        print(write_page(str(directory.root)))
    except ValueError as error:
        raise UserError(str(error)) from None
    return 0
