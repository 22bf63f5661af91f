"""Where a run runs: launchers, what a host is told, how an attempt ended, the event log.

    outcome = RayLauncher().run(payload, config, run_dir="runs/x", hosts=2)

Nothing here imports JAX, and Ray is imported only when a `RayLauncher` runs.
"""

from .events import EventLog, read_events
from .launcher import Launcher, LaunchError
from .local import LocalLauncher
from .outcome import (
    BAD_ARGUMENTS,
    CAUSES,
    DOES_NOT_FIT,
    DONE,
    FAILED,
    STOPPED_SAVED,
    Outcome,
    PayloadError,
    Stopped,
)
from .ray_launcher import RayLauncher
from .worker import WorkerInfo

__all__ = [
    "BAD_ARGUMENTS",
    "CAUSES",
    "DOES_NOT_FIT",
    "DONE",
    "FAILED",
    "STOPPED_SAVED",
    "EventLog",
    "LaunchError",
    "Launcher",
    "LocalLauncher",
    "Outcome",
    "PayloadError",
    "RayLauncher",
    "Stopped",
    "WorkerInfo",
    "read_events",
]
