"""Run directories that look like real ones, for the tests of the report."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_dist.cluster import EventLog
from spark_dist.config import ModelConfig
from spark_dist.preset_table import presets
from spark_dist.trackers import JsonlTracker

SAMPLE = "The KING.\nWhat, shall we <b>march</b> & go?\n\nDUKE OF YORK:\nAy, my good lord."


def measurements(step: int, steps: int, model: ModelConfig, rng: random.Random) -> dict[str, Any]:
    """One logged step of a run that learns; sparse layers settle on 8 %, apart from each other."""
    layers, dense = model.num_layers, model.ffn == "gated"
    done = step / steps
    loss = 1.7 + 3.6 * math.exp(-7 * done) + rng.gauss(0, 0.03)
    settle = math.exp(-9 * done)
    fractions = [
        0.0802 * (1 + settle * (1.6 if layer % 2 else -0.7) + rng.gauss(0, 0.03))
        for layer in range(layers)
    ]
    keys = [model.attention_k * (1 + settle / 2 + rng.gauss(0, 0.08)) for _ in range(layers)]
    if done < 0.1:
        keys[0] = math.nan  # no row was long enough for a reading
    offsets = [(1 - settle) * (0.3 - 0.1 * layer / layers) for layer in range(layers)]
    return {
        "loss": loss,
        "bits_per_byte": loss / math.log(2),
        "grad_norm": 0.4 + settle + abs(rng.gauss(0, 0.1)),
        "learning_rate": 4e-3 * min(1, step / 40) * (0.55 + 0.45 * math.cos(math.pi * done)),
        "tokens_per_second": 3300 + rng.gauss(0, 150),
        "step_seconds": 0.46 + rng.gauss(0, 0.02),
        "data_wait_seconds": 0.05 + abs(rng.gauss(0, 0.04)),
        "skipped_steps": int(done > 0.6),
        "ffn_active_fraction": [1.0] * layers if dense else fractions,
        "ffn_offset": [0.0] * layers if dense else offsets,
        "attention_active_mean": [math.nan] * layers if dense else keys,
        "mfu_dense_equivalent": None,
        "mfu_executed": None,
    }


def write_events(run: Path, steps: int, ended: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger of two attempts, the first preempted half way."""
    now = [1_800_000_000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    log = EventLog(run / "events.jsonl")

    def write(event: str, seconds: float | None = None, **other: Any) -> None:
        now[0] += (seconds or 0.0) + 0.5
        log.write(event, seconds=seconds, **other)

    header = {
        "parameters": 1_340_000,
        "active_parameters": 760_000,
        "devices": 2,
        "platform": "cpu",
        "mesh": {"data": 2, "fsdp": 1, "tensor": 1},
    }
    for attempt, end in ((0, "preempted"), (1, ended)):
        begin = now[0]
        write("launch", attempt=attempt, detail="ray, embedded cluster, hosts=2")
        now[0] += 6.0
        for name, seconds in (("startup", 3.0), ("data", 0.4), ("init", 1.5), ("compile", 11.0)):
            write(name, seconds, attempt=attempt, rank=0)
        write("header", attempt=attempt, rank=0, detail=json.dumps(header))
        now[0] += 0.23 * steps
        write("evaluate", 6.0, attempt=attempt, rank=0, step=steps // 2)
        write("save", 0.3, attempt=attempt, rank=0, step=steps // 2)
        text = "layer 2: FFN active fraction 0.02 has been outside [0.04, 0.16]"
        write("warning", attempt=attempt, rank=0, step=100, detail=text)
        if end is not None:
            write("sample", 2.0, attempt=attempt, rank=0, step=steps)
            write("sample", attempt=attempt, rank=0, step=steps, detail=SAMPLE)
            write("exit", attempt=attempt, rank=0, step=steps, cause=end)
            log.write("end", attempt=attempt, step=steps, seconds=now[0] - begin, cause=end)
    monkeypatch.undo()


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """make_run(preset, steps, every, ended): a run directory; ended=None is still going."""

    def make(
        preset: str = "tiny", steps: int = 530, every: int = 10, ended: str | None = "finished"
    ) -> Path:
        run = tmp_path / "runs" / preset
        run.mkdir(parents=True)
        config = presets()[preset].resolved()
        (run / "config.json").write_text(config.model_dump_json())
        rng, record = random.Random(0), JsonlTracker(run)
        for step in range(every, steps + 1, every):
            values = measurements(step, steps, config.model, rng)
            record.log(step, values)
            if step % (10 * every) == 0 or step == steps:
                held_out = values["loss"] + 0.1
                record.log(
                    step,
                    {
                        "validation/loss": held_out,
                        "validation/bits_per_byte": held_out / math.log(2),
                    },
                )
        record.close()
        write_events(run, steps, ended, monkeypatch)
        return run

    return make
