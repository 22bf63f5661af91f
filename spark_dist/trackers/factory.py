"""From the names in `logging.trackers` to trackers."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .interface import MultiTracker, Tracker, TrackerError, one_line
from .jsonl import JsonlTracker
from .services import MlflowTracker, TrackioTracker, WandbTracker, missing
from .tensorboard import TensorBoardTracker

KNOWN = ("jsonl", "tensorboard", "wandb", "mlflow", "trackio")

_SERVICES: dict[str, Callable[[Path, Mapping[str, Any], str], Tracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
}


def check_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """The chosen trackers, `jsonl` first, each once. Imports none of them.

    Raises TrackerError for an unknown name, listing the known ones, and for a package that is not
    installed, with the command that installs it.
    """
    chosen = tuple(dict.fromkeys(["jsonl", *names]))
    for name in chosen:
        if name not in KNOWN:
            raise TrackerError(f"logging.trackers={name}: unknown; known are {', '.join(KNOWN)}")
        if name != "jsonl" and importlib.util.find_spec(name) is None:
            raise missing(name)
    return chosen


def make_trackers(
    names: Iterable[str] | None,
    run_dir: str | os.PathLike[str],
    config: Mapping[str, Any],
    *,
    project: str = "spark-dist",
    resume_step: int | None = None,
    warn: Callable[[str], None] = lambda message: None,
) -> MultiTracker:
    """The trackers of a run, started. The record in JSON lines is always among them.

    names: None makes trackers that do nothing, for the ranks that do not record.
    config: the resolved configuration, JSON-able.
    resume_step: the last step of the state that the run goes on from; None or 0 at a fresh start.
    warn: told when a service fails later; the local files (JSON lines, TensorBoard) raise instead.
    Raises TrackerError for unknown names, missing packages and services that do not start.
    """
    if names is None:
        return MultiTracker({})
    chosen = check_trackers(names)
    folder = Path(run_dir).absolute()
    started: dict[str, Tracker] = {}
    try:
        for name in chosen:
            if name == "jsonl":
                started[name] = JsonlTracker(folder, resume_step)
            elif name == "tensorboard":
                started[name] = TensorBoardTracker(folder / "tensorboard", config, resume_step)
            else:
                started[name] = _start(name, folder, config, project)
    except BaseException:
        for tracker in started.values():
            tracker.close()
        raise
    return MultiTracker(started, frozenset({"jsonl", "tensorboard"}), warn)


def _start(name: str, folder: Path, config: Mapping[str, Any], project: str) -> Tracker:
    try:
        return _SERVICES[name](folder, config, project)
    except (TrackerError, OSError):
        raise
    except Exception as error:
        raise TrackerError(
            f"logging.trackers={name}: did not start ({one_line(error)}); "
            f"see its documentation, or leave it out"
        ) from error
