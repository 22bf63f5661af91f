"""What to do after a run: commands that can be pasted into a shell as they stand."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Protocol


class Ended(Protocol):
    """How a run ended: what `Console.end` reads of it."""

    @property
    def run_dir(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def loss(self) -> float | None: ...
    @property
    def bits_per_byte(self) -> float | None: ...
    @property
    def exit(self) -> int: ...
    @property
    def detail(self) -> str: ...
    @property
    def ffn_active_fraction(self) -> tuple[float, ...] | None: ...
    @property
    def sample(self) -> str | None: ...


def next_commands(result: Ended) -> list[str]:
    """Commands that make sense after a run, seen from the present folder."""
    run, program = shlex.quote(near(result.run_dir)), program_name("spark-dist")
    again = f"{program} train --run-dir {run} --resume"
    if result.exit == 4:
        return [again]
    if result.exit != 0:
        logs = Path(result.run_dir) / "attempts"
        look = [f"ls {shlex.quote(near(logs))}"] if logs.is_dir() else []
        return [*look, again]
    commands = [
        f'{program} generate {run} --prompt "To be"',
        f"{program} evaluate {run}",
    ]
    if (Path(result.run_dir) / "tensorboard").is_dir():
        folder = shlex.quote(near(Path(result.run_dir) / "tensorboard"))
        commands.append(f"{program_name('tensorboard')} --logdir {folder}")
    return [*commands, f"{program} report {run}"]


def program_name(name: str) -> str:
    """How to call a program of this environment from the present folder."""
    if shutil.which(name):
        return name
    beside = Path(sys.argv[0]).absolute().parent / name
    return shlex.quote(near(beside)) if beside.is_file() else name


def near(path: str | os.PathLike[str]) -> str:
    """The path relative to the present folder when it lies below it."""
    full = Path(path).absolute()
    try:
        return str(full.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(full)
