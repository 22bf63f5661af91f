"""Where the time of a run went, and how its attempts ended, from the ledger of events."""

from __future__ import annotations

from dataclasses import dataclass

from .record import Record, Row, number

PHASES = {
    "start-up": ("data", "init", "restore"),
    "compile": ("compile",),
    "training step": ("step",),
    "data wait": ("data_wait",),
    "evaluation": ("evaluate", "evaluation"),
    "save": ("save", "commit"),
    "sample": ("sample",),
}
"""Name in the report -> events whose `seconds` it sums. Start-up counts from the launch."""


@dataclass(frozen=True)
class Attempt:
    """One launch. seconds: so far, when it has not ended. cause: None while it has not."""

    index: int
    seconds: float
    step: int | None
    cause: str | None
    detail: str


def attempts(record: Record) -> list[Attempt]:
    """The launches of a run, in order."""
    by_index: dict[int, list[Row]] = {}
    for event in record.events:
        by_index.setdefault(int(event.get("attempt") or 0), []).append(event)
    return [_attempt(index, events) for index, events in sorted(by_index.items())]


def phases(record: Record) -> dict[str, float]:
    """Seconds of the whole run by phase, summed over attempts; "other" is what is left.

    All hosts go through the same phases together: those of rank 0 are counted. Steps and data
    wait come from events of those names, else from metrics.jsonl.
    """
    found = dict.fromkeys(PHASES, 0.0)
    launched: dict[int, float] = {}
    for event in record.events:
        seconds, at = number(event.get("seconds")), number(event.get("time"))
        name, index = event.get("event"), int(event.get("attempt") or 0)
        if name == "launch" and at is not None:
            launched[index] = at
        if seconds is None or event.get("rank") not in (0, None):
            continue
        if name == "startup":
            begin = launched.pop(index, None)
            waited = at - begin if at is not None and begin is not None else 0.0
            found["start-up"] += max(waited, seconds)
            continue
        for phase, names in PHASES.items():
            if name in names:
                found[phase] += seconds
    total, wait = _training(record.metrics)
    if not found["data wait"]:
        found["data wait"] = wait
    if not found["training step"]:
        found["training step"] = max(total - wait, 0.0)
    wall = sum(attempt.seconds for attempt in attempts(record))
    found["other"] = max(wall - sum(found.values()), 0.0)
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def wait_share(row: Row, steps: int) -> float | None:
    """Part of the time of `steps` steps that was spent waiting for data."""
    step, wait = number(row.get("step_seconds")), number(row.get("data_wait_seconds"))
    return wait / (step * steps) if step and wait is not None and steps > 0 else None


def intervals(rows: list[Row]) -> list[int]:
    """Steps that each line of metrics stands for: since the line before, or since the start."""
    steps = [row["step"] for row in rows]
    return [now - before for before, now in zip([0, *steps], steps, strict=False)]


def _training(rows: list[Row]) -> tuple[float, float]:
    total = wait = 0.0
    for row, steps in zip(rows, intervals(rows), strict=True):
        total += (number(row.get("step_seconds")) or 0.0) * steps
        wait += number(row.get("data_wait_seconds")) or 0.0
    return total, wait


def _attempt(index: int, events: list[Row]) -> Attempt:
    times = [at for event in events if (at := number(event.get("time"))) is not None]
    steps = [event["step"] for event in events if isinstance(event.get("step"), int)]
    end = next((e for e in reversed(events) if e.get("event") == "end"), None)
    seconds = max(times) - min(times) if times else 0.0
    if end is None:
        return Attempt(index, seconds, max(steps, default=None), None, "")
    return Attempt(
        index,
        number(end.get("seconds")) or seconds,
        end["step"] if isinstance(end.get("step"), int) else max(steps, default=None),
        str(end.get("cause") or "unknown"),
        str(end.get("detail") or ""),
    )
