"""Where the measurements of a run go: metrics.jsonl always, other places when they are chosen."""

from .factory import KNOWN, check_trackers, make_trackers
from .interface import MultiTracker, Tracker, TrackerError, scalars
from .jsonl import METRIC_KEYS, VALIDATION_KEYS, JsonlTracker, json_value
from .tensorboard import TensorBoardTracker

__all__ = [
    "KNOWN",
    "METRIC_KEYS",
    "VALIDATION_KEYS",
    "JsonlTracker",
    "MultiTracker",
    "TensorBoardTracker",
    "Tracker",
    "TrackerError",
    "check_trackers",
    "json_value",
    "make_trackers",
    "scalars",
]
