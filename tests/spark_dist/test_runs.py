"""Whole runs in one process: what they leave, how they end, what can be done with them."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import spine

from spark_dist.cluster.events import FIELDS
from spark_dist.config import RunConfig
from spark_dist.launch import plan
from spark_dist.run_directory import RunDirectory, best_step
from spark_dist.trackers import METRIC_KEYS

Call = Callable[..., Any]
EIGHT = "--xla_force_host_platform_device_count=8"
TRAIN_KEYS = {"run_dir", "step", "loss", "bits_per_byte", "exit"}


@pytest.fixture(scope="module")
def options(corpus_file: Path) -> list[str]:
    return ["train", *spine.SMALL, "--data.corpus", str(corpus_file), "--json"]


@pytest.fixture(scope="module")
def trained(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of 30 steps, and its last line; nobody writes to it."""
    run = tmp_path_factory.mktemp("trained") / "run"
    done = spine.command(
        *options, "--run-dir", run, "--trainer.steps", "30", "--trainer.eval-every", "10",
        "--trainer.checkpoint-every", "4", "--profile", "5:6",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    return run, json.loads(line)


@pytest.fixture
def copy(trained: tuple[Path, Any], tmp_path: Path) -> Path:
    """The run again, to go on with."""
    return shutil.copytree(trained[0], tmp_path / "run")


# -- what a run leaves -----------------------------------------------------------------------


def test_the_files_of_a_run(trained):
    run, line = trained
    assert {p.name for p in run.iterdir()} == {
        "config.json", "events.jsonl", "metrics.jsonl", "validation.jsonl", "tensorboard",
        "checkpoints", "attempts", "report.html", "profile",
    }  # fmt: skip
    assert [p.name for p in (run / "attempts").rglob("*")] == ["1", "rank-0.log"]
    assert {*line} >= TRAIN_KEYS
    assert (line["run_dir"], line["step"], line["exit"]) == (str(run), 30, 0)
    assert "Traceback" not in (run / "attempts" / "1" / "rank-0.log").read_text()


def test_the_saved_configuration_is_resolved(trained, corpus_file):
    config = RunConfig.model_validate_json((trained[0] / "config.json").read_text())
    assert config.optimizer.schedule_steps == config.trainer.steps == 30
    assert config.data.corpus == (str(corpus_file),)
    assert config == config.resolved()


def test_metrics(trained):
    lines = spine.records(trained[0] / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 31))
    for line in lines:
        assert tuple(line) == METRIC_KEYS
        assert line["mfu_dense_equivalent"] is line["mfu_executed"] is None
        assert line["skipped_steps"] == 0
        for key in ("ffn_active_fraction", "ffn_offset", "attention_active_mean"):
            assert len(line[key]) == 2
        assert all(0 <= fraction <= 1 for fraction in line["ffn_active_fraction"])
        assert line["tokens_per_second"] > 0
        assert line["bits_per_byte"] > 0.9 * line["loss"] / math.log(2)
    assert lines[-1]["loss"] < 0.8 * lines[0]["loss"]
    assert lines[0]["learning_rate"] == pytest.approx(1e-2 / 2)


def test_held_out_results(trained):
    run, line = trained
    found = spine.records(run / "validation.jsonl")
    assert [record["step"] for record in found] == [10, 20, 30]
    assert all(set(record) == {"step", "loss", "bits_per_byte"} for record in found)
    assert (found[-1]["loss"], found[-1]["bits_per_byte"]) == (line["loss"], line["bits_per_byte"])


def test_events(trained):
    events = spine.records(trained[0] / "events.jsonl")
    for event in events:
        assert tuple(event) == FIELDS
        assert event["attempt"] == 1
    names = [event["event"] for event in events]
    assert names[:7] == ["launch", "started", "startup", "data", "init", "header", "compile"]
    assert names[-4:] == ["sample", "sample", "exit", "end"]
    assert (events[-1]["cause"], events[-1]["step"]) == ("finished", 30)
    header = json.loads(next(e["detail"] for e in events if e["event"] == "header"))
    assert (header["devices"], header["processes"], header["steps"]) == (1, 1, 30)
    assert header["active_parameters"] < header["parameters"]
    assert header["tokens_planned"] == 30 * 8 * 32
    told = [event for event in events if event["event"] in ("save", "evaluate", "compile")]
    assert all(event["seconds"] >= 0 for event in told)


def test_checkpoints(trained):
    run, line = trained
    best = best_step(RunDirectory(run))
    assert spine.steps(run) == sorted({28, 30, best})
    last = spine.facts(run, 30)
    assert set(last) == {"cursor", "config", "format_version", "evaluation"}
    assert last["cursor"]["next_sample"] == 30 * 8
    assert last["evaluation"] == {key: line[key] for key in ("loss", "bits_per_byte")}
    assert RunConfig.model_validate(last["config"]).trainer.steps == 30
    arrays = spine.saved_arrays(run, 30)
    assert {name.split("'")[1] for name in arrays} == {
        "ffn_offset", "opt_state", "params", "step",
    }  # fmt: skip
    assert arrays["['step']"] == 30
    assert arrays["['params']['layers']['ffn']['k1']"].shape == (2, 16, 96)
    assert all(array.dtype in (np.float32, np.int32) for array in arrays.values())


def test_profile(trained):
    folder = trained[0] / "profile"
    assert list(folder.rglob("*.xplane.pb"))
    assert (folder / "memory.prof").stat().st_size


# -- what can be done with it ----------------------------------------------------------------


def test_evaluation_is_the_same_on_any_number_of_devices(trained, call):
    run, line = trained
    found = [json.loads(call("evaluate", run, "--json").out)]
    assert jax.local_device_count() == 8
    done = spine.command("evaluate", run, "--json", env=spine.environment())
    found.append(json.loads(done.stdout))
    for values in found:
        assert set(values) == {
            "loss", "bits_per_byte", "ffn_active_fraction", "attention_active_mean", "tokens",
            "step",
        }  # fmt: skip
        assert (values["step"], values["tokens"]) == (30, found[0]["tokens"])
        assert values["loss"] == pytest.approx(line["loss"], rel=1e-6)
        assert values["bits_per_byte"] == pytest.approx(line["bits_per_byte"], rel=1e-6)
        for key in ("ffn_active_fraction", "attention_active_mean"):
            np.testing.assert_allclose(values[key], found[0][key], rtol=1e-4)


def test_evaluation_of_an_earlier_step(trained, call):
    run = trained[0]
    known = {r["step"]: r["loss"] for r in spine.records(run / "validation.jsonl")}
    assert 28 not in known
    said = call("evaluate", run / "checkpoints" / "28")
    assert said.code == 0
    assert "at step 28" in said.out
    assert "bits per byte" in said.out


def test_generation(trained, call):
    asked = ["generate", trained[0], "--prompt", "the king", "--max-tokens", "12", "--json"]
    greedy = json.loads(call(*asked).out)
    assert set(greedy) == {"prompt", "text", "tokens", "decode"}
    assert (greedy["prompt"], greedy["decode"]) == ("the king", "dense")
    assert len(greedy["tokens"]) <= 12
    assert json.loads(call(*asked).out) == greedy
    draws = [
        json.loads(call(*asked, "--temperature", "2", "--seed", seed).out)["text"]
        for seed in ("1", "1", "2")
    ]
    assert draws[0] == draws[1] != draws[2]
    assert call(*asked[:-1]).out.startswith("the king")


def test_report(copy, call):
    (copy / "report.html").unlink()
    said = call("report", copy)
    assert (said.code, said.out.strip()) == (0, str(copy / "report.html"))
    assert "<html" in (copy / "report.html").read_text()


def test_python_interface(trained, tmp_path):
    """`train(config)` is silent and returns what the command prints."""
    import spark_dist

    config = RunConfig.model_validate_json((trained[0] / "config.json").read_text())
    trainer = config.trainer.model_copy(update={"steps": 2})
    config = config.model_copy(update={"run_dir": str(tmp_path / "run"), "trainer": trainer})
    result = spark_dist.train(config.model_copy(update={"profile": None}))
    assert (result.exit, result.step, result.cause) == (0, 2, "finished")
    # The schedule is that of 30 steps, so the beginning is the same, bit for bit.
    lines = spine.records(tmp_path / "run" / "metrics.jsonl")
    for line, known in zip(lines, spine.records(trained[0] / "metrics.jsonl"), strict=False):
        assert (line["loss"], line["grad_norm"]) == (known["loss"], known["grad_norm"])
    again = spark_dist.train(config.model_copy(update={"profile": None}), resume=True)
    assert (again.exit, again.step) == (0, 2)


# -- going on --------------------------------------------------------------------------------


def test_a_finished_run_says_so(copy, call):
    before = spine.tree_of(copy)
    said = call("train", "--resume", "--run-dir", copy)
    assert (said.code, said.err) == (0, "")
    assert "finished at step 30" in said.out
    assert "raise --trainer.steps" in said.out
    line = json.loads(call("train", "--resume", "--run-dir", copy, "--json").out.splitlines()[-1])
    assert set(line) == TRAIN_KEYS
    assert (line["step"], line["exit"]) == (30, 0)
    assert spine.tree_of(copy) == before


def test_a_finished_run_goes_on_when_its_steps_are_raised(copy, call, trained):
    said = call("train", "--resume", "--run-dir", copy, "--trainer.steps", "33", "--json")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out)["step"] == 33
    lines = spine.records(copy / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 34))
    assert lines[:30] == spine.records(trained[0] / "metrics.jsonl")
    assert lines[-1]["learning_rate"] == pytest.approx(1e-3), "the schedule keeps its end"
    assert [r["step"] for r in spine.records(copy / "validation.jsonl")] == [10, 20, 30, 33]
    events = spine.records(copy / "events.jsonl")
    assert [e["attempt"] for e in events if e["event"] == "end"] == [1, 2]
    assert "restore" in [e["event"] for e in events if e["attempt"] == 2]
    saved = RunConfig.model_validate_json((copy / "config.json").read_text())
    assert (saved.trainer.steps, saved.optimizer.schedule_steps) == (33, 30)
    assert spine.steps(copy)[-2:] == [32, 33]


def test_weights_alone_are_taken_from_another_run(trained, call, options, tmp_path):
    """At a learning rate that moves nothing the weights stay those of the source."""
    source, run = trained[0], tmp_path / "run"
    said = call(
        *options, "--run-dir", run, "--init-from", source, "--trainer.steps", "1",
        "--optimizer.learning-rate", "1e-30", "--optimizer.weight-decay", "0",
    )  # fmt: skip
    assert said.code == 0, said
    before, after = spine.saved_arrays(source, 30), spine.saved_arrays(run, 1)
    params = [name for name in before if name.startswith("['params']")]
    assert params
    for name in params:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    offset, moved = before["['ffn_offset']"], after["['ffn_offset']"]
    layer = np.abs(offset).argmax()
    assert abs(moved[layer] - offset[layer]) < abs(offset[layer]) / 2, "the offset is taken too"
    assert after["['step']"] == 1
    assert spine.facts(run, 1)["cursor"]["next_sample"] == 8
    count = next(name for name in after if name.endswith(".count") or "count" in name)
    assert after[count] == 1
    loss = spine.records(run / "metrics.jsonl")[0]["loss"]
    assert loss < spine.records(source / "metrics.jsonl")[5]["loss"]


def test_a_run_that_left_no_checkpoint_starts_again(trained, call, options, tmp_path):
    """Also from the weights that it was to start from, and without the lines it had written."""
    run = tmp_path / "run"
    config = RunConfig.model_validate_json((trained[0] / "config.json").read_text())
    trainer = config.trainer.model_copy(update={"steps": 2})
    update = {"init_from": str(trained[0]), "trainer": trainer, "profile": None}
    update["run_dir"] = str(run)
    RunDirectory(run).write_config(config.model_copy(update=update))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 9}\n{"step": 2, "loss": 8}\n{"st')
    (run / "checkpoints" / "1.orbax-checkpoint-tmp").mkdir(parents=True)
    request = plan(RunDirectory(run).saved_config(), resume=True)
    assert request is not None
    assert (request.resume, request.config.init_from) == (False, str(trained[0]))
    said = call("train", "--resume", "--run-dir", run, "--json")
    assert (said.code, said.err) == (0, ""), said
    lines = spine.records(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] < spine.records(trained[0] / "metrics.jsonl")[5]["loss"]
    assert spine.steps(run) == [2]
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["2"]


# -- endings ---------------------------------------------------------------------------------


def test_a_run_that_cannot_recover_says_so(call, options, tmp_path):
    run = tmp_path / "run"
    said = call(
        *options, "--run-dir", run, "--trainer.steps", "50", "--optimizer.learning-rate", "1e30",
        "--optimizer.warmup-steps", "0", "--trainer.max-consecutive-skips", "3",
        "--trainer.checkpoint-every", "2",
    )  # fmt: skip
    said.refused("step 4", "not finite", "3 steps in a row", "learning_rate", code=1)
    assert json.loads(said.out)["exit"] == 1
    lines = spine.records(run / "metrics.jsonl")
    assert [line["skipped_steps"] for line in lines] == [0, 1, 2, 3]
    assert lines[-1]["loss"] is None or lines[-1]["grad_norm"] is None
    kept = spine.steps(run)
    assert kept
    for step in kept:
        for name, array in spine.saved_arrays(run, step).items():
            assert np.isfinite(array).all(), (step, name)
    assert spine.records(run / "events.jsonl")[-1]["cause"] == "raised"


def test_a_stop_request_saves_and_the_run_goes_on(options, tmp_path):
    run = tmp_path / "run"
    asked = [
        *options, "--run-dir", run, "--trainer.steps", "1000000", "--trainer.log-every", "1",
        "--trainer.eval-every", "0", "--trainer.checkpoint-every", "0",
    ]  # fmt: skip
    with spine.started(*asked) as process:
        spine.wait_for(lambda: len(spine.records(run / "metrics.jsonl")) > 2, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=spine.PATIENCE)
    assert (process.returncode, err) == (4, "")
    (step,) = spine.steps(run)
    line = json.loads(out.splitlines()[-1])
    assert (line["exit"], line["step"]) == (4, step)
    events = spine.records(run / "events.jsonl")
    assert (events[-1]["event"], events[-1]["cause"]) == ("end", "preempted")
    assert spine.facts(run, step)["cursor"]["next_sample"] == 8 * step
    assert [r["step"] for r in spine.records(run / "metrics.jsonl")] == list(range(1, step + 1))
    done = spine.command(
        "train", "--resume", "--run-dir", run, "--trainer.steps", str(step + 2), "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [r["step"] for r in spine.records(run / "metrics.jsonl")] == list(range(1, step + 3))


def test_a_checkpoint_that_contradicts_itself(copy, call):
    path = copy / "checkpoints" / "30" / "json" / "metadata"
    facts = json.loads(path.read_text())
    facts["cursor"]["next_sample"] += 8
    path.write_text(json.dumps(facts))
    said = call("train", "--resume", "--run-dir", copy, "--trainer.steps", "33")
    said.refused("checkpoint 30 contradicts itself", "next_sample is 248, not 240", code=1)


def test_a_checkpoint_that_is_damaged(copy, call):
    for path in (copy / "checkpoints" / "30" / "state").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = call("train", "--resume", "--run-dir", copy, "--trainer.steps", "33")
    said.refused("checkpoint 30 cannot be read", "earlier step", code=1)
