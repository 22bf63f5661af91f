"""Exact resume: a run that was killed and went on is the run that was not, bit for bit."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import spine

STEPS, KEPT = 40, 20
# Steps of tens of milliseconds, so that the kill finds the run between two checkpoints.
OPTIONS = [
    *spine.MODEL, *spine.RUN, "--data.sequence-length", "64", "--trainer.global-batch-size", "64",
    "--trainer.steps", str(STEPS), "--trainer.checkpoint-every", str(KEPT),
    "--trainer.eval-every", "0", "--logging.trackers", "--json",
]  # fmt: skip
RAY = ["--launcher", "ray", "--hosts", "2"]
EXACT = ("loss", "bits_per_byte", "grad_norm", "learning_rate", "ffn_active_fraction",
         "ffn_offset", "attention_active_mean", "skipped_steps")  # fmt: skip


@pytest.fixture
def short_temporary_folder() -> Iterator[str]:
    """Ray's sockets need a short path; a cluster that was killed leaves its folder here."""
    folder = tempfile.mkdtemp(prefix="rt-", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def killed_between_checkpoints(run: Path, *args: str | Path, env: dict[str, str]) -> int:
    """Starts a run and kills all of its processes past step KEPT; the last step it had logged."""
    for _ in range(5):
        with spine.started(*args, "--run-dir", run, env=env) as process:
            spine.wait_for(lambda: KEPT in spine.steps(run), process)
            members = spine.kill_all(process)
        lines = spine.records(run / "metrics.jsonl")
        if spine.steps(run) == [KEPT] and members:
            return lines[-1]["step"]
        shutil.rmtree(run)  # it was faster than the kill
    raise AssertionError("every run ended before it could be killed")


def check_exact(straight: Path, resumed: Path) -> None:
    """Equal in every measured value of every step, and in every bit of the last state."""
    known = spine.records(straight / "metrics.jsonl")
    found = spine.records(resumed / "metrics.jsonl")
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    for one, other in zip(known, found, strict=True):
        assert {k: one[k] for k in EXACT} == {k: other[k] for k in EXACT}
    spine.assert_same_arrays(
        spine.saved_arrays(straight, STEPS), spine.saved_arrays(resumed, STEPS)
    )
    assert spine.facts(straight, STEPS)["cursor"] == spine.facts(resumed, STEPS)["cursor"]
    assert spine.facts(straight, STEPS)["evaluation"] == spine.facts(resumed, STEPS)["evaluation"]
    one, other = (spine.records(run / "validation.jsonl") for run in (straight, resumed))
    assert one == other


def finish(*args: str | Path, env: dict[str, str]) -> dict[str, Any]:
    done = spine.command(*args, env=env)
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "launcher",
    [pytest.param([], id="local"), pytest.param(RAY, id="ray", marks=pytest.mark.cluster)],
)
def test_killed_and_resumed_is_the_same_run(
    launcher: list[str], corpus_file: Path, tmp_path: Path, short_temporary_folder: str
) -> None:
    args = ["train", *OPTIONS, *launcher, "--data.corpus", str(corpus_file)]
    env = spine.environment(TMPDIR=short_temporary_folder)
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    finish(*args, "--run-dir", straight, env=env)
    last = killed_between_checkpoints(resumed, *args, env=env)
    assert last < STEPS
    assert [p for p in psutil.process_iter() if _started_with(p, short_temporary_folder)] == []
    line = finish("train", "--resume", "--run-dir", resumed, "--json", env=env)
    assert (line["step"], line["exit"]) == (STEPS, 0)
    check_exact(straight, resumed)
    events = spine.records(resumed / "events.jsonl")
    assert [e["step"] for e in events if e["event"] == "restore"] == [None]
    header = next(e for e in events if e["event"] == "header" and e["attempt"] == 2)
    assert header["step"] == KEPT


def _started_with(process: psutil.Process, folder: str) -> bool:
    """Whether a process, or the one it stems from, is of a run with this temporary folder."""
    try:
        return process.environ().get("TMPDIR") == folder
    except psutil.Error:
        return False
