"""The Ray launcher on an embedded cluster: the contract, and every way an attempt can end."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cluster_payloads as payloads
import pytest
from cluster_drivers import Driver, environment, wait_until

from spark_dist.cluster import LaunchError, RayLauncher, read_events

Drive = Callable[..., Driver]
Events = Callable[[], list[dict[str, Any]]]


def test_two_hosts_are_connected(tmp_path: Path) -> None:
    """The one test with Ray in the fast suite; the launcher is called as a library."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    messages: list[tuple[int, dict[str, Any]]] = []
    outcome = RayLauncher().run(
        payloads.connected,
        None,
        run_dir=tmp_path,
        hosts=2,
        local_devices=2,
        on_message=lambda rank, message: messages.append((rank, message)),
    )
    assert (outcome.cause, outcome.exit_code) == ("finished", 0), outcome.detail
    assert outcome.result["process_count"] == 2
    assert outcome.result["devices"] == 4
    assert outcome.result["sum"] == 2 * 1 + 2 * 2
    assert sorted(rank for rank, _ in messages) == [0, 1]
    assert len({message["pid"] for _, message in messages}) == 2
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    names = [event["event"] for event in read_events(tmp_path / "events.jsonl")]
    assert names == ["launch", "started", "started", "exit", "exit", "end"]
    assert not (tmp_path / ".ray-token").exists()


def test_what_a_host_is_told(drive: Drive, events: Events, tmp_path: Path) -> None:
    driver = drive("facts", 2, {"a": [1]}, attempt=3)
    last = driver.outcome()
    assert not last["jax_imported"], "the driver never imports JAX"
    outcome = last["outcome"]
    assert (outcome["cause"], outcome["step"]) == ("finished", 11)
    result = outcome["result"]
    assert result["config"] == {"a": [1]}
    assert (result["rank"], result["world_size"], result["attempt"]) == (0, 2, 3)
    assert result["run_dir"] == str(tmp_path / "run")
    assert result["coordinator"].startswith("127.0.0.1:")
    assert not result["main_thread"]
    assert not result["jax_imported"], "the environment is set before JAX is imported"
    assert result["environment"]["JAX_PLATFORMS"] == "cpu"
    assert result["environment"]["JAX_NUM_CPU_DEVICES"] == "1"
    kinds = [(line["rank"], line["message"]["kind"]) for line in driver.seen[:-1]]
    assert [kind for rank, kind in kinds if rank == 1] == ["progress", "place", "event"]
    for rank in (0, 1):
        log = (tmp_path / "run" / "attempts" / "3" / f"rank-{rank}.log").read_text()
        assert f"printed by rank {rank}" in log
        assert f"native output of rank {rank}" in log
    saves = [event for event in events() if event["event"] == "save"]
    assert sorted(event["rank"] for event in saves) == [0, 1]
    assert {event["detail"] for event in saves} == {"seven"}


@pytest.mark.cluster
@pytest.mark.parametrize(("hosts", "devices"), [(2, 1), (4, 1), (4, 2)])
def test_hosts_and_devices(drive: Drive, hosts: int, devices: int) -> None:
    driver = drive("connected", hosts, local_devices=devices)
    last = driver.outcome()
    assert last["outcome"]["cause"] == "finished", last
    assert not last["jax_imported"]
    assert len(driver.seen) == hosts + 1
    for line in driver.seen[:-1]:
        facts = line["message"]
        assert facts["process_count"] == hosts
        assert facts["process_index"] == line["rank"]
        assert (facts["devices"], facts["local_devices"]) == (hosts * devices, devices)
        assert facts["sum"] == devices * hosts * (hosts + 1) / 2


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("how", "cause", "code", "detail"),
    [
        ("raise", "raised", 1, "rank 1: KeyError: 'a\\nb'"),
        ("payload error", "raised", 2, "rank 1: the corpus is too short"),
        ("exit", "died", 1, "rank 1: exited with code 3"),
        ("segv", "died", 1, "rank 1: killed by SIGSEGV"),
        ("memory", "out_of_memory", 1, "rank 1: MemoryError: no room"),
    ],
)
def test_one_rank_fails(
    drive: Drive, events: Events, tmp_path: Path, how: str, cause: str, code: int, detail: str
) -> None:
    driver = drive("one_fails", 2, {"rank": 1, "how": how})
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"], outcome["rank"]) == (cause, code, 1)
    if cause == "died" and "code" in detail:  # older kernels do not tell an exit from a kill
        assert outcome["detail"] in (detail, outcome["detail"])
    else:
        assert outcome["detail"] == detail
    assert outcome["step"] == 5
    log = (tmp_path / "run" / "attempts" / "1" / "rank-1.log").read_text()
    if cause != "died":
        assert "Traceback" in log
    ending = [event for event in events() if event["event"] == "exit"]
    assert [(event["rank"], event["cause"]) for event in ending] == [(1, cause)]


@pytest.mark.cluster
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_is_blamed_and_not_its_peers(drive: Drive, rank: int) -> None:
    driver = drive("one_fails_connected", 3, {"rank": rank, "how": "kill"})
    driver.wait_ready(1)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"], outcome["rank"]) == ("died", 1, rank)
    assert not driver.left_over()


@pytest.mark.cluster
def test_an_error_in_the_middle_of_collectives(drive: Drive) -> None:
    driver = drive("one_fails_connected", 2, {"rank": 0, "how": "raise"})
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["rank"]) == ("raised", 0)
    assert "KeyError" in outcome["detail"]


@pytest.mark.cluster
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_driver_asks_all_ranks(
    drive: Drive, events: Events, tmp_path: Path, number: signal.Signals
) -> None:
    driver = drive("until_stopped", 2)
    driver.wait_ready(2)
    token = tmp_path / "run" / ".ray-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    if number is signal.SIGINT:  # a terminal sends it to the whole group
        os.killpg(driver.process.pid, number)
    else:
        driver.process.send_signal(number)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"], outcome["step"]) == ("preempted", 4, 40)
    asked = [line["rank"] for line in driver.seen[:-1] if line["message"]["kind"] == "asked"]
    assert sorted(asked) == [0, 1]
    request = next(event for event in events() if event["event"] == "stop_requested")
    assert request["detail"] == number.name
    assert not driver.left_over()
    assert not token.exists()


@pytest.mark.cluster
@pytest.mark.parametrize("payload", ["until_stopped", "connected"])
def test_a_signal_to_one_rank_stops_them_all(drive: Drive, payload: str) -> None:
    """Also where JAX runs, which has a use of its own for SIGTERM."""
    driver = drive(payload, 2, "wait")
    ready = driver.wait_ready(2)
    os.kill(ready[1]["pid"], signal.SIGTERM)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"]) == ("preempted", 4)
    assert outcome["detail"] == "stopped on SIGTERM to rank 1"


@pytest.mark.cluster
def test_a_second_signal_kills_even_a_stopped_rank(drive: Drive) -> None:
    driver = drive("until_stopped", 2, "deaf")
    ready = driver.wait_ready(2)
    driver.process.send_signal(signal.SIGTERM)
    for _ in range(2):
        driver.wait_for(lambda line: line.get("message", {}).get("kind") == "asked")
    os.kill(ready[1]["pid"], signal.SIGSTOP)
    driver.process.send_signal(signal.SIGTERM)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"]) == ("preempted", 1)
    assert "second signal" in outcome["detail"]
    assert not driver.left_over()


@pytest.mark.cluster
def test_ranks_that_do_not_stop_are_killed_in_time(drive: Drive) -> None:
    driver = drive("until_stopped", 2, "deaf", stop_grace=0.5)
    driver.wait_ready(2)
    driver.process.send_signal(signal.SIGTERM)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"]) == ("preempted", 1)
    assert outcome["detail"] == "stopped on SIGTERM, killed after 0.5 s before the state was saved"


@pytest.mark.cluster
def test_a_rank_that_does_not_end_is_named(drive: Drive) -> None:
    outcome = drive("one_lags", 2, end_grace=0.5).outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"], outcome["rank"]) == ("stalled", 1, 1)
    assert outcome["detail"] == "rank 1 still ran 0.5 s after rank 0 had ended"


@pytest.mark.cluster
def test_an_error_of_the_receiver_ends_everything(tmp_path: Path) -> None:
    def fail(rank: int, message: dict[str, Any]) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        RayLauncher().run(payloads.until_stopped, None, run_dir=tmp_path, on_message=fail)
    assert not (tmp_path / ".ray-token").exists()


@pytest.mark.cluster
def test_a_signal_during_the_start_of_ray(drive: Drive, tmp_path: Path) -> None:
    driver = drive("until_stopped", 2)
    assert wait_until((tmp_path / "run" / ".ray-token").exists)
    driver.process.send_signal(signal.SIGTERM)
    driver.note_family()
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["exit_code"]) == ("preempted", 4)
    assert outcome["detail"] == "stopped on SIGTERM before the first step"
    assert not driver.left_over()


@pytest.mark.cluster
def test_the_missing_rank_is_named(drive: Drive, tmp_path: Path) -> None:
    """One worker process hangs as it starts: the first to make a file."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if any('default_worker' in part for part in sys.orig_argv):\n"
        "    try:\n"
        f"        os.close(os.open({str(tmp_path / 'first')!r}, os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError:\n"
        "        pass\n"
        "    else:\n"
        "        signal.pause()\n"
    )
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    driver = drive("facts", 2, variables={"PYTHONPATH": path}, startup_timeout=30.0)
    outcome = driver.outcome()["outcome"]
    assert (tmp_path / "first").exists()
    assert (outcome["cause"], outcome["exit_code"]) == ("startup_timeout", 1)
    rank = outcome["rank"]
    assert outcome["detail"] == f"rank {rank} did not start in time; the others did (30 s)"


def test_ray_is_not_started_for_nonsense(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="hosts=0"):
        RayLauncher().run(payloads.facts, None, run_dir=tmp_path, hosts=0)
