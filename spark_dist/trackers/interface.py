"""What every tracker can do. What is measured is decided elsewhere; here it is only sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..errors import UserError


class TrackerError(UserError, ValueError):
    """A tracker that was chosen and cannot be used. The message names it and the fix."""


class Tracker(Protocol):
    """A place for measurements. One process of a run, rank 0, owns the trackers."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes the measurements of a step: numbers, lists of numbers (one a layer) or None.

        Names that begin with "validation/" are held-out results. Steps must not go down; one step
        may come twice with different names.
        """
        ...

    def close(self) -> None:
        """Sends what is left. A second call does nothing."""
        ...


def plain(value: Any) -> Any:
    """Python numbers and lists in place of array scalars and arrays, at any depth."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """One number a name, for trackers that take nothing else.

    Lists become NAME/0, NAME/1, ...; `step` and None are left out, and so is NaN in a list,
    which stands for a layer without a reading. A NaN that stands alone stays: it is news.
    """
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        value = plain(value)
        if name == "step" or value is None:
            continue
        if not isinstance(value, list):
            flat[name] = float(value)
            continue
        for index, item in enumerate(value):
            if item is not None and not math.isnan(item):
                flat[f"{name}/{index}"] = float(item)
    return flat


class MultiTracker:
    """Sends everything to several trackers.

    The record of the run must not fail in silence, a service must not end the run: an error of a
    tracker in `required` is raised, any other tracker that fails is named to `warn` and left out
    from then on.
    """

    def __init__(
        self,
        trackers: Mapping[str, Tracker],
        required: frozenset[str] = frozenset(),
        warn: Callable[[str], None] = lambda message: None,
    ):
        self._trackers = dict(trackers)
        self._required, self._warn = required, warn

    @property
    def names(self) -> tuple[str, ...]:
        """The trackers still in use."""
        return tuple(self._trackers)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._guard(name, lambda tracker=tracker: tracker.log(step, metrics))

    def log_validation(self, step: int, loss: float, bits_per_byte: float) -> None:
        """Held-out results of a step: loss in nats a target, and bits per UTF-8 byte."""
        self.log(step, {"validation/loss": loss, "validation/bits_per_byte": bits_per_byte})

    def close(self) -> None:
        failure = None
        for name, tracker in list(self._trackers.items()):
            try:
                self._guard(name, tracker.close)
            except Exception as error:  # close the others first
                failure = failure or error
        self._trackers.clear()
        if failure is not None:
            raise failure

    def _guard(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            if name in self._required:
                raise
            del self._trackers[name]
            self._warn(f"tracker {name} failed and is left out from here on: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """The first line of an error's text, or its type when it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
