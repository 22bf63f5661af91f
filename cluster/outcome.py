"""How an attempt ended, and what a payload raises to end it on purpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DONE = 0
FAILED = 1
BAD_ARGUMENTS = 2
DOES_NOT_FIT = 3
STOPPED_SAVED = 4

CAUSES = (
    "finished",
    "raised",
    "died",
    "out_of_memory",
    "preempted",
    "stalled",
    "startup_timeout",
)


@dataclass(frozen=True)
class Outcome:
    """The ending of one attempt.

    `cause` is one of `CAUSES`; `exit_code` what the command should exit with; `step` the last step
    that is known; `result` what rank 0's payload returned (None unless finished); `detail` one line
    for a person; `rank` the rank that ended the attempt, where there is one.
    """

    cause: str
    exit_code: int
    step: int | None = None
    result: Any = None
    detail: str = ""
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.cause not in CAUSES:
            raise ValueError(f"cause={self.cause!r} is none of {', '.join(CAUSES)}")


class Stopped(Exception):
    """Raised by a payload that was asked to stop and has saved its state at `step`."""

    def __init__(self, step: int, detail: str = "") -> None:
        super().__init__(step, detail)
        self.step = step
        self.detail = detail


class PayloadError(RuntimeError):
    """Raised by a payload that cannot go on for a reason a person can read in one line.

    `exit_code` is what the command should exit with.
    """

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message, exit_code)
        self.message = message
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.message


def not_begun(reason: str) -> Outcome:
    """The outcome of an attempt that was asked to stop while it was being started."""
    detail = f"stopped on {reason} before the first step"
    return Outcome("preempted", STOPPED_SAVED, detail=detail)


def one_line(text: object, limit: int = 500) -> str:
    """The first non-empty line of `text`, at most `limit` characters."""
    lines = [line.strip() for line in str(text).splitlines() if line.strip()]
    first = lines[0] if lines else ""
    return first if len(first) <= limit else first[: limit - 1] + "…"
