"""The same run on 1, 2 and 4 hosts: real processes, connected, under the Ray launcher."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spine
import spine_payloads as payloads

from spark_dist.cluster import LocalLauncher, Outcome, RayLauncher
from spark_dist.config import RunConfig
from spark_dist.launch import plan
from spark_dist.preset_table import presets
from spark_dist.run_directory import RunDirectory

LAYOUTS = [
    pytest.param(2, 1, {}, id="2 hosts"),
    pytest.param(4, 1, {}, id="4 hosts"),
    pytest.param(2, 2, {"data": 2, "fsdp": 2}, id="2 hosts, data 2, fsdp 2"),
]


def changed(config: RunConfig, **sections: dict[str, Any]) -> RunConfig:
    """A configuration with other values in some of its sections."""
    values = {
        name: getattr(config, name).model_copy(update=update) for name, update in sections.items()
    }
    return config.model_copy(update=values)


def on_hosts(config: RunConfig, hosts: int, devices: int = 1, **mesh: int) -> RunConfig:
    config = changed(config, mesh={"data": -1, "fsdp": 1, "tensor": 1, **mesh})
    launcher = "local" if hosts == 1 else "ray"
    update = {"hosts": hosts, "devices_per_host": devices, "launcher": launcher}
    return config.model_copy(update=update)


def launched(
    payload: Callable[..., Any],
    request: Any,
    config: RunConfig,
    run_dir: Path,
    on_message: Callable[..., None] | None = None,
) -> Outcome:
    """Runs the payload on the hosts that the configuration names."""
    launcher = LocalLauncher() if config.launcher == "local" else RayLauncher()
    return launcher.run(
        payload,
        request,
        run_dir=run_dir,
        hosts=config.hosts,
        local_devices=config.devices_per_host,
        attempt=RunDirectory(run_dir).next_attempt(),
        on_message=on_message,
        startup_timeout=spine.PATIENCE,
    )


def recorded(config: RunConfig, run: Path, *, resume: bool = False) -> dict[str, Any]:
    """A whole training run; its result, with the digests of the batches and the losses."""
    config = config.model_copy(update={"run_dir": str(run)})
    request = plan(config, resume=resume)
    assert request is not None
    RunDirectory(run).write_config(request.config)
    outcome = launched(payloads.recorded, request, config, run)
    assert outcome.cause == "finished", outcome
    losses = [line["loss"] for line in spine.records(run / "metrics.jsonl")]
    return outcome.result | {"losses": losses, "run": run}


def short(name: str, corpus: Path, steps: int) -> RunConfig:
    """A preset at a short sequence, with its own learning rate."""
    config = changed(
        presets()[name],
        data={"sequence_length": 32, "corpus": (str(corpus),)},
        trainer={"steps": steps, "log_every": 1, "eval_every": 0, "checkpoint_every": 0},
        logging={"trackers": ()},
    )
    return config.resolved()


def test_two_hosts_through_the_command(corpus_file: Path, tmp_path: Path) -> None:
    """The one whole run under Ray in the fast tests."""
    run = tmp_path / "run"
    done = spine.command(
        "train", *spine.SMALL, "--data.corpus", corpus_file, "--run-dir", run, "--json",
        "--trainer.steps", "4", "--launcher", "ray", "--hosts", "2", "--logging.trackers",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["step"] == 4
    logs = sorted(p.name for p in (run / "attempts" / "1").glob("rank-*.log"))
    assert logs == ["rank-0.log", "rank-1.log"]
    assert [r["step"] for r in spine.records(run / "metrics.jsonl")] == [1, 2, 3, 4]
    events = spine.records(run / "events.jsonl")
    assert [e["rank"] for e in events if e["event"] == "started"] == [0, 1]
    assert sorted(e["rank"] for e in events if e["event"] == "exit") == [0, 1]
    samples = [e for e in events if e["event"] == "sample" and e["detail"]]
    assert [e["rank"] for e in samples] == [0]
    header = json.loads(next(e["detail"] for e in events if e["event"] == "header"))
    assert (header["processes"], header["devices"]) == (2, 2)
    assert spine.steps(run) == [4]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(("name", "tolerance"), [("tiny-dense", 1e-5), ("tiny", 5e-3)])
def test_a_free_run_on_any_number_of_hosts(
    name: str, tolerance: float, corpus_file: Path, tmp_path: Path
) -> None:
    """20 steps: the same global batches to the byte, losses as near as thresholds allow."""
    config = short(name, corpus_file, 20)
    found = {hosts: recorded(on_hosts(config, hosts), tmp_path / str(hosts)) for hosts in (1, 2, 4)}
    for hosts in (2, 4):
        assert found[hosts]["digests"] == found[1]["digests"]
        assert found[hosts]["losses"] == pytest.approx(found[1]["losses"], rel=tolerance)
    digests = list(found[1]["digests"].values())
    assert len(set(digests)) == len(digests) == 20


@pytest.fixture(scope="module")
def twenty_states(
    corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunConfig, dict[str, Any], dict[str, Any]]:
    """20 checkpoints of `tiny` on one host, over its warm-up and beyond; a step from each."""
    folder = tmp_path_factory.mktemp("states")
    config = short("tiny", corpus_file, 60)
    config = changed(config, trainer={"checkpoint_every": 3, "keep_checkpoints": 20})
    recorded(on_hosts(config, 1), folder / "run")
    job = {
        "config": on_hosts(config, 1).model_dump(mode="json"),
        "source": str(folder / "run"),
        "steps": spine.steps(folder / "run"),
        "reference": str(folder / "updates.npy"),
    }
    assert job["steps"] == list(range(3, 61, 3))
    outcome = launched(payloads.single_steps, job, on_hosts(config, 1), folder / "single")
    assert outcome.cause == "finished", outcome
    return config, job, outcome.result


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "devices", "mesh"), LAYOUTS)
def test_a_step_from_the_same_state_agrees(
    twenty_states: Any, tmp_path: Path, hosts: int, devices: int, mesh: dict[str, int]
) -> None:
    """Loss within 1e-5, parameter update within 1e-4 in L2, at the learning rate of the preset."""
    config, job, reference = twenty_states
    assert config.optimizer.learning_rate == presets()["tiny"].optimizer.learning_rate
    there = on_hosts(config, hosts, devices, **mesh)
    job = job | {"config": there.model_dump(mode="json")}
    outcome = launched(payloads.single_steps, job, there, tmp_path)
    assert outcome.cause == "finished", outcome
    found = outcome.result
    assert found["hosts"] == hosts
    assert {name: found["mesh"][name] for name in mesh} == mesh
    assert len(found["loss"]) == 20
    assert found["loss"] == pytest.approx(reference["loss"], rel=1e-5)
    assert max(found["relative"]) < 1e-4, found["relative"]


@pytest.mark.cluster
@pytest.mark.slow
def test_a_checkpoint_of_two_hosts_goes_on_anywhere(corpus_file: Path, tmp_path: Path) -> None:
    """Written by 2 hosts, restored by 1, 2 and 4: the same batches follow."""
    config = short("tiny", corpus_file, 12)
    straight = recorded(on_hosts(config, 2), tmp_path / "straight")
    half = changed(config, trainer={"steps": 6})
    for hosts in (1, 2, 4):
        run = tmp_path / str(hosts)
        first = recorded(on_hosts(half, 2), run)
        rest = recorded(on_hosts(config, hosts), run, resume=True)
        assert first["digests"] | rest["digests"] == straight["digests"]
        assert list(rest["digests"]) == [str(step) for step in range(7, 13)]
        if hosts == 2:
            assert rest["losses"] == straight["losses"]
        else:
            assert rest["losses"] == pytest.approx(straight["losses"], rel=5e-3)


@pytest.mark.cluster
def test_a_rank_that_runs_something_else_is_named(corpus_file: Path, tmp_path: Path) -> None:
    config = on_hosts(short("tiny", corpus_file, 2), 2)
    request = plan(config.model_copy(update={"run_dir": str(tmp_path / "run")}), resume=False)
    told: dict[int, dict[str, str]] = {}

    def note(rank: int, message: dict[str, Any]) -> None:
        if message["kind"] == "found":
            told[rank] = message["found"]

    outcome = launched(payloads.differing, request, config, tmp_path / "run", note)
    assert outcome.cause == "finished", outcome
    assert sorted(told) == [0, 1]
    for found in told.values():
        assert found.pop("devices") == (
            "each host should own 3 devices: rank 0 has 1, rank 1 has 1; give all hosts the same"
        )
        assert found == {
            name: f"{what} of ranks [1] differs from rank 0's; "
            "start all hosts from the same installation and configuration"
            for name, what in {
                "config_digest": "configuration",
                "code_digest": "code",
                "backend": "kernel backend",
            }.items()
        }


@pytest.mark.cluster
def test_a_run_does_not_start_on_two_backends(corpus_file: Path, tmp_path: Path) -> None:
    config = on_hosts(short("tiny", corpus_file, 2), 2)
    request = plan(config.model_copy(update={"run_dir": str(tmp_path / "run")}), resume=False)
    outcome = launched(payloads.train_with_another_backend, request, config, tmp_path / "run")
    assert (outcome.cause, outcome.exit_code) == ("raised", 1)
    assert "kernel backend of ranks [1] differs from rank 0's" in outcome.detail
    assert spine.steps(tmp_path / "run") == []
