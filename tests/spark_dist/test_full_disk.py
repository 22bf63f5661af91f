"""A disk that fills up: one line, exit code 1, nothing half-written, earlier checkpoints whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spine

from spark_dist.config import RunConfig
from spark_dist.run_directory import RunDirectory

BYTES_OF_DISK = 1 << 20
LIMITED = (
    "import os, resource, sys; size = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)); os.execv(sys.argv[2], sys.argv[2:])"
)
"""Program that runs its further arguments under a file-size limit."""


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of 1 MiB, with the options of a parametrisation."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={BYTES_OF_DISK}{getattr(request, 'param', '')}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no mount command; the file-size limit stands in")
    if done.returncode:
        pytest.skip(f"may not mount; the file-size limit stands in: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def check_failed_save(done: Any, run: Path, reason: str, fix: str) -> None:
    """One line and exit code 1; every step that is listed is whole and nothing else is there."""
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("spark-dist: error: ")
    assert str(run) in line
    assert reason in line
    assert fix in line
    assert "--resume" in line
    committed = RunDirectory(run).committed_steps()
    folder = run / "checkpoints"
    if folder.is_dir():
        assert sorted(int(p.name) for p in folder.iterdir()) == committed
    for step in committed:
        assert {name.split("'")[1] for name in spine.saved_arrays(run, step)} == {
            "ffn_offset", "opt_state", "params", "step",
        }  # fmt: skip
        assert spine.facts(run, step)["cursor"]["next_sample"] == 8 * step
    lines = (run / "metrics.jsonl").read_text().splitlines() if committed else []
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))


def test_a_disk_that_fills_up(small_disk: Path, corpus_file: Path) -> None:
    run = small_disk / "run"
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", run,
        "--trainer.steps", "60", "--trainer.eval-every", "0", "--trainer.checkpoint-every", "2",
        "--trainer.keep-checkpoints", "60", "--logging.trackers",
    )  # fmt: skip
    check_failed_save(done, run, "No space left on device", "free disk space")
    kept = RunDirectory(run).committed_steps()
    assert kept == list(range(2, 2 * len(kept) + 1, 2))
    assert kept, "some checkpoints fit"
    shutil.rmtree(run / "checkpoints" / str(kept[0]))  # room again
    (small_disk / "run" / "report.html").unlink(missing_ok=True)
    done = spine.command(
        "train", "--resume", "--run-dir", run, "--trainer.steps", str(kept[-1] + 1),
        "--trainer.keep-checkpoints", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == kept[-1] + 1


@pytest.mark.parametrize("small_disk", [",nr_inodes=30"], indirect=True)
def test_a_disk_without_room_for_a_folder(small_disk: Path, corpus_file: Path) -> None:
    """The save fails before its first byte; no thread keeps the process waiting."""
    run = small_disk / "run"
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", run,
        "--trainer.steps", "20", "--trainer.eval-every", "0", "--trainer.checkpoint-every", "2",
        "--logging.trackers",
    )  # fmt: skip
    check_failed_save(done, run, "No space left on device", "free disk space")


def test_a_disk_that_is_full_at_the_start(small_disk: Path, corpus_file: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * BYTES_OF_DISK)
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", small_disk / "run"
    )
    check_failed_save(done, small_disk / "run", "No space left on device", "free disk space")
    assert not (small_disk / "run").exists()


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(0, id="no file may hold anything"),
        pytest.param(50_000, id="a checkpoint does not fit"),
    ],
)
def test_a_file_size_limit(limit: int, corpus_file: Path, tmp_path: Path) -> None:
    """Works without root, and in any sandbox."""
    run = tmp_path / "run"
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", run,
        "--trainer.steps", "60", "--trainer.eval-every", "0", "--trainer.checkpoint-every", "2",
        "--logging.trackers",
        env=spine.environment(PYTHONDONTWRITEBYTECODE="1"),
        before=[sys.executable, "-c", LIMITED, str(limit)],
    )  # fmt: skip
    check_failed_save(done, run, "File too large", "ulimit -f")
    assert RunDirectory(run).committed_steps() == []
    if not limit:
        assert not run.exists()


def test_a_measurement_that_cannot_be_written(call, corpus_file, tmp_path, monkeypatch) -> None:
    """metrics.jsonl on a disk that fills up: the run ends, its lines stay whole."""
    from spark_dist.trackers.append import AppendFile

    write, count = AppendFile.write, iter(range(100))

    def fails(self: AppendFile, record: bytes) -> None:
        if self.path.endswith("metrics.jsonl") and next(count) == 2:
            raise OSError(28, os.strerror(28), self.path)
        write(self, record)

    monkeypatch.setattr(AppendFile, "write", fails)
    run = tmp_path / "run"
    said = call(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", run, "--json",
        "--trainer.steps", "9", "--trainer.checkpoint-every", "0",
    )  # fmt: skip
    said.refused(f"run_dir={run}", "No space left", "metrics.jsonl", "free disk space", code=1)
    assert [line["step"] for line in spine.records(run / "metrics.jsonl")] == [1, 2]
    assert RunConfig.model_validate_json((run / "config.json").read_text()).data.corpus
