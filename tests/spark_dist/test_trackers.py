"""Trackers: what lands in metrics.jsonl and TensorBoard, resuming, and services left out."""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spark_dist.trackers import (
    METRIC_KEYS,
    JsonlTracker,
    MultiTracker,
    TensorBoardTracker,
    TrackerError,
    check_trackers,
    make_trackers,
    scalars,
)


def metrics(step: int) -> dict[str, Any]:
    """Measurements as the training loop hands them over, array scalars included."""
    return {
        "mfu_executed": None,
        "loss": np.float32(5.0 / step),
        "bits_per_byte": 7.2 / step,
        "grad_norm": float("inf") if step == 20 else 0.5,
        "learning_rate": 1e-3,
        "tokens_per_second": 1000.0,
        "step_seconds": 0.25,
        "data_wait_seconds": 0.01,
        "skipped_steps": np.int32(0),
        "ffn_active_fraction": np.asarray([0.08, 0.09], np.float32),
        "ffn_offset": [0.0, 0.1],
        "attention_active_mean": [31.5, float("nan")],
        "mfu_dense_equivalent": None,
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_has_the_documented_keys_in_their_order(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)
    tracker.log(10, metrics(10))
    tracker.log(20, metrics(20) | {"loss": math.nan, "step": 20, "validation/loss": 3.0})
    tracker.log(20, {"validation/loss": 2.5, "validation/bits_per_byte": np.float64(3.6)})
    tracker.log(30, {"loss": 1.0})
    tracker.close()
    tracker.close()
    first, second, third = lines(tmp_path / "metrics.jsonl")
    for row in (first, second, third):
        assert tuple(row) == METRIC_KEYS
    assert first["loss"] == 0.5
    assert first["ffn_active_fraction"] == np.asarray([0.08, 0.09], np.float32).tolist()
    assert first["attention_active_mean"] == [31.5, None]
    assert first["skipped_steps"] == 0
    assert isinstance(first["skipped_steps"], int)
    assert second["loss"] is None
    assert second["grad_norm"] is None
    assert third["step"] == 30
    held_out = (tmp_path / "validation.jsonl").read_text().splitlines()
    assert held_out == [
        '{"step": 20, "loss": 3.0, "bits_per_byte": null}',
        '{"step": 20, "loss": 2.5, "bits_per_byte": 3.6}',
    ]
    assert third["ffn_offset"] is None


def test_jsonl_refuses_unknown_keys_and_steps_that_do_not_follow(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path)
    tracker.log(10, {"loss": 1.0})
    with pytest.raises(ValueError, match=r"losss: no key of metrics\.jsonl"):
        tracker.log(20, {"losss": 1.0})
    with pytest.raises(ValueError, match=r"step 10 .* after step 10"):
        tracker.log(10, {"loss": 1.0})
    tracker.close()
    with pytest.raises(ValueError, match="closed"):
        tracker.log(30, {"loss": 1.0})
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [10]


@pytest.mark.parametrize("torn", ["", '{"step": 60, "lo'])
def test_jsonl_resumes_without_a_step_twice(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(tmp_path)
    for step in (10, 20, 30, 40, 50):
        tracker.log(step, metrics(step) | {"validation/loss": 1.0})
    tracker.close()
    kept = path.read_text().splitlines(keepends=True)[:3]
    path.write_text(path.read_text() + torn)
    resumed = JsonlTracker(tmp_path, resume_step=35)
    assert path.read_text() == "".join(kept)
    for step in (40, 50):
        resumed.log(step, metrics(step))
    resumed.close()
    assert [row["step"] for row in lines(path)] == [10, 20, 30, 40, 50]
    assert [row["step"] for row in lines(tmp_path / "validation.jsonl")] == [10, 20, 30]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "validation.jsonl"]


def test_jsonl_names_a_broken_line_and_an_unexpected_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    JsonlTracker(tmp_path, resume_step=100).close()  # nothing was logged before: fine
    path.write_text('{"step": 10}\nnot json\n{"step": 20}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of metrics"):
        JsonlTracker(tmp_path, resume_step=20)
    with pytest.raises(ValueError, match="already holds a run"):
        JsonlTracker(tmp_path)
    assert path.read_text() == '{"step": 10}\nnot json\n{"step": 20}\n'


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 2,000 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_full_disk_is_an_error_and_leaves_whole_records(
    tmp_path: Path, small_files: None, kind: str
) -> None:
    if kind == "jsonl":
        tracker: Any = JsonlTracker(tmp_path)
    else:
        tracker = TensorBoardTracker(tmp_path)
    written, raised = 0, None
    while raised is None and written < 100:
        try:
            tracker.log(10 * (written + 1), metrics(10 * (written + 1)))
            written += 1
        except OSError as error:
            raised = error
    assert raised is not None
    assert raised.errno == errno.EFBIG
    assert raised.filename is not None
    assert raised.filename.startswith(str(tmp_path))
    tracker.close()
    if kind == "jsonl":
        assert len(lines(tmp_path / "metrics.jsonl")) == written
    else:
        assert len(read_events(tmp_path).Scalars("loss")) == written


def read_events(folder: Path) -> Any:
    """The folder as TensorBoard itself reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_back_what_was_logged(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path, config={"model": {"d_ff": 648}})
    for step in (10, 20):
        tracker.log(step, metrics(step))
    tracker.log(20, {"validation/loss": 2.5})
    events = read_events(tmp_path)  # on disk before it is closed
    tracker.close()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(10, 0.5), (20, 0.25)]
    assert [e.step for e in events.Scalars("ffn_active_fraction/1")] == [10, 20]
    assert events.Scalars("grad_norm")[1].value == math.inf
    assert [(e.step, e.value) for e in events.Scalars("validation/loss")] == [(20, 2.5)]
    names = set(events.Tags()["scalars"])
    assert "attention_active_mean/0" in names
    assert not names & {"attention_active_mean/1", "mfu_executed", "step"}
    assert b"d_ff" in events.Tensors("config")[0].tensor_proto.string_val[0]


def test_tensorboard_drops_the_points_of_an_abandoned_attempt(tmp_path: Path) -> None:
    first = TensorBoardTracker(tmp_path)
    for step in (10, 20, 30):
        first.log(step, {"loss": 1.0})
    first.close()
    second = TensorBoardTracker(tmp_path, resume_step=20)
    second.log(30, {"loss": 2.0})
    second.close()
    assert len(list(tmp_path.iterdir())) == 2
    points = [(e.step, e.value) for e in read_events(tmp_path).Scalars("loss")]
    assert points == [(10, 1.0), (20, 1.0), (30, 2.0)]


def test_scalars_flatten_lists_and_keep_a_lone_nan() -> None:
    flat = scalars({"step": 3, "loss": math.nan, "a": [1, None, math.nan], "b": None, "c/d": 2})
    assert math.isnan(flat.pop("loss"))
    assert flat == {"a/0": 1.0, "c/d": 2.0}


def test_the_factory_starts_and_resumes_the_local_trackers(tmp_path: Path) -> None:
    config = {"preset": "tiny"}
    trackers = make_trackers(("tensorboard", "jsonl"), tmp_path, config)
    assert trackers.names == ("jsonl", "tensorboard")
    for step in (10, 20):
        trackers.log(step, metrics(step))
    trackers.close()
    trackers.close()
    trackers = make_trackers(("tensorboard",), tmp_path, config, resume_step=10)
    trackers.log(20, metrics(20))
    trackers.log_validation(20, 2.5, 3.6)
    trackers.close()
    assert lines(tmp_path / "validation.jsonl") == [{"step": 20, "loss": 2.5, "bits_per_byte": 3.6}]
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [10, 20]
    assert [e.step for e in read_events(tmp_path / "tensorboard").Scalars("loss")] == [10, 20]
    make_trackers((), tmp_path / "bare", config).close()
    assert sorted(p.name for p in (tmp_path / "bare").iterdir()) == [
        "metrics.jsonl",
        "validation.jsonl",
    ]
    silent = make_trackers(None, tmp_path / "other-rank", config)
    silent.log(10, metrics(10))
    silent.close()
    assert not (tmp_path / "other-rank").exists()


def test_unknown_and_missing_trackers_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"trackers=wandbb: unknown; known are jsonl, tensor"):
        make_trackers(("wandbb",), tmp_path / "run", {})
    for name in ("wandb", "mlflow", "trackio"):
        if importlib.util.find_spec(name) is not None:
            continue
        for refuse in (check_trackers, lambda names: make_trackers(names, tmp_path / "run", {})):
            with pytest.raises(TrackerError) as caught:
                refuse((name,))
            assert str(caught.value) == (
                f"logging.trackers={name}: the package {name} is not installed; "
                f"run: pip install 'spark-dist[{name}]'"
            )
    assert not (tmp_path / "run").exists()


def test_a_broken_package_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("import a_module_that_is_nowhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(TrackerError, match=r"cannot be imported \(No module named 'a_module_that"):
        make_trackers(("wandb",), tmp_path / "run", {})


class Failing:
    """A service that goes away."""

    def log(self, step: int, metrics: Any) -> None:
        raise ConnectionError("no route to host\nsecond line")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def test_a_service_that_fails_is_left_out_and_the_record_goes_on(tmp_path: Path) -> None:
    warnings: list[str] = []
    record = JsonlTracker(tmp_path)
    both = MultiTracker(
        {"wandb": Failing(), "jsonl": record}, frozenset({"jsonl"}), warnings.append
    )
    both.log(1, {"loss": 1.0})
    both.log(2, {"loss": 1.0})
    both.close()
    assert warnings == ["tracker wandb failed and is left out from here on: no route to host"]
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_record_that_fails_is_raised_after_the_others_are_closed(tmp_path: Path) -> None:
    record = JsonlTracker(tmp_path)
    both = MultiTracker({"tensorboard": Failing(), "jsonl": record}, frozenset({"tensorboard"}))
    with pytest.raises(ConnectionError):
        both.log(1, {"loss": 1.0})
    with pytest.raises(ConnectionError):
        both.close()
    with pytest.raises(ValueError, match="closed"):
        record.log(2, {"loss": 1.0})


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
@pytest.mark.filterwarnings("default")  # these packages and theirs warn on their own account
def test_services_take_a_run_and_its_resumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the real packages where they are installed; each writes to this machine alone."""
    pytest.importorskip(name)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    warnings: list[str] = []
    for resume_step, step in ((None, 10), (10, 20)):
        trackers = make_trackers(
            (name,), tmp_path, {"model": {"d": 4}}, resume_step=resume_step, warn=warnings.append
        )
        trackers.log(step, metrics(step))
        trackers.log(step, {"validation/loss": 2.0})
        assert trackers.names == ("jsonl", name)
        trackers.close()
    assert warnings == []
    identity = json.loads((tmp_path / "trackers.json").read_text())[name]
    if name == "mlflow":
        from mlflow.tracking import MlflowClient  # pyright: ignore[reportMissingImports]

        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
        assert [point.step for point in client.get_metric_history(identity, "loss")] == [10, 20]
        assert client.get_run(identity).data.params["model.d"] == "4"
    elif name == "wandb":
        assert len(list((tmp_path / "wandb").glob(f"offline-run-*-{identity}*"))) == 2


def test_importing_the_trackers_loads_no_jax_and_no_service() -> None:
    code = (
        "import sys, spark_dist.trackers\n"
        "print([m for m in ('jax', 'tensorboard', 'wandb', 'mlflow', 'trackio')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
