"""What a run directory holds, read for the report. Files of a run still going are fine."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError

Row = dict[str, Any]


class ReportError(UserError, ValueError):
    """No report can be made. The message names the file and what to do."""


@dataclass(frozen=True)
class Record:
    """A run. metrics, validation: their lines by ascending step; events: as written, oldest first.

    gaps: what is missing or could not be read and why that matters, one sentence each.
    """

    name: str
    config: Row
    metrics: list[Row]
    validation: list[Row]
    events: list[Row]
    sample: str | None
    gaps: list[str] = field(default_factory=list)

    def setting(self, group: str, name: str) -> Any:
        """A value of the configuration, None where it has none."""
        found = self.config.get(group)
        return found.get(name) if isinstance(found, dict) else None

    @property
    def ffn_target(self) -> float | None:
        """Target fraction of active neurons; None for a dense FFN."""
        kind, k, width = (self.setting("model", n) for n in ("ffn", "ffn_k", "d_ff"))
        return k / width if kind not in (None, "gated") and k and width else None

    @property
    def attention_target(self) -> int | None:
        """Target count of attended keys; None for full attention."""
        return self.setting("model", "attention_k") if self.sparse_attention else None

    @property
    def sparse_attention(self) -> bool:
        return self.setting("model", "attention") == "spark"

    @property
    def header(self) -> Row:
        """What the run said of itself when it last started: parameters, devices, mesh and so on."""
        for event in reversed(self.events):
            if event.get("event") == "header":
                found = _loads(event.get("detail"))
                return found if isinstance(found, dict) else {}
        return {}


def read_record(run_dir: Path) -> Record:
    """Reads `run_dir`. Raises ReportError when it is no run or its record is damaged."""
    if not run_dir.is_dir():
        raise ReportError(f"{run_dir}: no such folder; name the folder of a run")
    config = _loads(_read(run_dir / "config.json", "it is no run of `spark-dist train`"))
    if not isinstance(config, dict):
        raise ReportError(f"{run_dir / 'config.json'}: not a JSON object; the run is damaged")
    _read(run_dir / "metrics.jsonl", "no step was logged yet")
    gaps: list[str] = []
    metrics = _lines(run_dir / "metrics.jsonl")
    if not metrics:
        gaps.append("metrics.jsonl is empty: no step was logged yet.")
    validation = _lines(run_dir / "validation.jsonl")
    if not validation:
        gaps.append("No held-out result yet (validation.jsonl).")
    events = _lines(run_dir / "events.jsonl", strict=False)
    if not events:
        gaps.append("events.jsonl is missing or empty: times, attempts and warnings are unknown.")
    return Record(
        name=run_dir.absolute().name,
        config=config,
        metrics=_by_step(metrics, run_dir / "metrics.jsonl"),
        validation=_by_step(validation, run_dir / "validation.jsonl"),
        events=events,
        sample=_sample(run_dir, events),
        gaps=gaps,
    )


def number(value: Any) -> float | None:
    """`value` when it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def layers(row: Row, name: str) -> list[float | None]:
    """A list of a line of metrics, one value a layer; empty where the line has none."""
    found = row.get(name)
    return [number(value) for value in found] if isinstance(found, list) else []


def _read(path: Path, why: str) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise ReportError(f"{path}: missing; {why}") from None
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from None


def _loads(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return None


def _lines(path: Path, *, strict: bool = True) -> list[Row]:
    """The objects of a JSON-lines file; a last line without its end is still being written."""
    if not path.exists():
        return []
    whole, _, _ = _read(path, "").rpartition("\n")
    rows = []
    for index, line in enumerate(whole.split("\n") if whole else [], start=1):
        found = _loads(line)
        if isinstance(found, dict):
            rows.append(found)
        elif strict:
            raise ReportError(f"{path}:{index}: not a JSON object; remove or repair the line")
    return rows


def _by_step(rows: list[Row], path: Path) -> list[Row]:
    """Sorted by step; of several lines for a step the last one counts."""
    found: dict[int, Row] = {}
    for index, row in enumerate(rows, start=1):
        step = row.get("step")
        if isinstance(step, bool) or not isinstance(step, int):
            raise ReportError(f"{path}:{index}: has no step; remove or repair the line")
        found[step] = row
    return [found[step] for step in sorted(found)]


def _sample(run_dir: Path, events: list[Row]) -> str | None:
    for event in reversed(events):
        if event.get("event") == "sample" and event.get("detail"):
            return str(event["detail"])
    path = run_dir / "sample.txt"
    return _read(path, "") if path.is_file() else None
