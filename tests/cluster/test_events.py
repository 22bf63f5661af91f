"""The event log: its schema, whole lines, several writers."""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from spark_dist.cluster import EventLog, read_events


def test_every_line_has_every_field(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    before = time.time()
    log.write("launch", attempt=1)
    log.write("exit", attempt=2, rank=3, step=4, seconds=5.5, cause="died", detail="by hand")
    first, second = read_events(log.path)
    assert list(first) == list(second)
    assert list(first) == ["time", "attempt", "rank", "event", "step", "seconds", "cause", "detail"]
    assert before <= first.pop("time") <= time.time()
    assert first == {
        "attempt": 1,
        "rank": None,
        "event": "launch",
        "step": None,
        "seconds": None,
        "cause": None,
        "detail": None,
    }
    assert second["cause"] == "died"
    assert (second["attempt"], second["rank"], second["step"]) == (2, 3, 4)
    assert (second["seconds"], second["detail"]) == (5.5, "by hand")


def test_numpy_numbers_become_plain(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("save", step=np.int32(7), seconds=np.float32(0.5))  # type: ignore[arg-type]
    assert json.loads(log.path.read_text())["step"] == 7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"event": ""}, "event=''"),
        ({"event": "x", "cause": "tired"}, "cause='tired' is none of finished"),
        ({"event": "x", "step": 1.5}, "step=1.5 must be an integer"),
        ({"event": "x", "seconds": float("nan")}, "seconds=nan must be finite"),
    ],
)
def test_values_outside_the_schema_are_refused(tmp_path: Path, fields: dict, message: str) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with pytest.raises((ValueError, TypeError), match=message):
        log.write(**fields)
    assert not log.path.exists()


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.write("one")
    with open(log.path, "a") as file:
        file.write('{"time": 1, "eve')
    log.write("two")
    assert [record["event"] for record in read_events(log.path)] == ["one", "two"]


def _write_many(path: Path, rank: int) -> None:
    for step in range(200):
        EventLog(path).write("tick", rank=rank, step=step, detail="x" * 300)


def test_writers_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, rank)) for rank in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    lines = path.read_text().splitlines()
    assert len(lines) == 600
    for rank in range(3):
        steps = [r["step"] for r in map(json.loads, lines) if r["rank"] == rank]
        assert steps == list(range(200))
