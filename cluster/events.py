"""The ledger of a run: one JSON line per event in `events.jsonl`.

Where the time of a run went is computed from this file, so its schema is fixed: every line
has all of `FIELDS`, null where a field says nothing.
"""

from __future__ import annotations

import fcntl
import json
import math
import operator
import os
import time
from pathlib import Path
from typing import Any

from .outcome import CAUSES

FIELDS = ("time", "attempt", "rank", "event", "step", "seconds", "cause", "detail")


class EventLog:
    """Appends events to a file, which is made, with its folder, when the first one is written.

    Each event is a single write to a file opened for appending, so that several processes may
    write and a process killed in between leaves whole lines.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def write(
        self,
        event: str,
        *,
        attempt: int = 0,
        rank: int | None = None,
        step: int | None = None,
        seconds: float | None = None,
        cause: str | None = None,
        detail: str | None = None,
    ) -> dict[str, Any]:
        """Append one event and return it.

        `event` is a word; `time` is added, in seconds since 1970; `seconds` is how long the thing
        took, where it took time; `cause` is one of `outcome.CAUSES`. Raises ValueError or
        TypeError naming the field for a value outside the schema, OSError if the file refuses.
        """
        if not isinstance(event, str) or not event:
            raise ValueError(f"event={event!r} must be a non-empty word")
        if cause is not None and cause not in CAUSES:
            raise ValueError(f"cause={cause!r} is none of {', '.join(CAUSES)}")
        record = {
            "time": time.time(),
            "attempt": _integer("attempt", attempt),
            "rank": _integer("rank", rank),
            "event": event,
            "step": _integer("step", step),
            "seconds": _seconds(seconds),
            "cause": cause,
            "detail": None if detail is None else str(detail),
        }
        self._append(json.dumps(record, ensure_ascii=False) + "\n")
        return record

    def _append(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed: nobody else is mid-line
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = "\n" + line  # a full disk cut the last line short
            data = line.encode(errors="replace")
            written = os.write(descriptor, data)
            if written < len(data):  # the next write names the reason, for example a full disk
                os.write(descriptor, data[written:])
        finally:
            os.close(descriptor)


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """All whole events of a file, oldest first; lines cut short by a full disk are left out."""
    events = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            events.append(record)
    return events


def _integer(name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} must be an integer") from None


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"seconds={value!r} must be finite")
    return number
