"""The local launcher keeps the contract of `Launcher`, in this process."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import cluster_payloads as payloads
import pytest

from spark_dist.cluster import LaunchError, LocalLauncher, Stopped, WorkerInfo, read_events


@pytest.fixture(autouse=True)
def handlers_stay() -> Any:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_finished(tmp_path: Path) -> None:
    messages: list[tuple[int, dict]] = []
    outcome = LocalLauncher().run(
        payloads.facts,
        {"a": 1},
        run_dir=tmp_path,
        attempt=2,
        local_devices=3,
        on_message=lambda rank, message: messages.append((rank, message)),
    )
    assert (outcome.cause, outcome.exit_code, outcome.step) == ("finished", 0, 10)
    result = outcome.result
    assert result["config"] == {"a": 1}
    assert (result["rank"], result["world_size"], result["coordinator"]) == (0, 1, None)
    assert (result["attempt"], result["local_devices"]) == (2, 3)
    assert result["run_dir"] == str(tmp_path)
    assert [(rank, message["kind"]) for rank, message in messages] == [
        (0, "progress"),
        (0, "event"),
    ]
    events = read_events(tmp_path / "events.jsonl")
    assert [event["event"] for event in events] == ["launch", "started", "save", "exit", "end"]
    assert events[2]["detail"] == "seven"
    assert all(event["attempt"] == 2 for event in events)
    assert events[-1]["cause"] == "finished"


@pytest.mark.parametrize(
    ("how", "cause", "code", "detail"),
    [
        ("raise", "raised", 1, "KeyError: 'a\\nb'"),
        ("payload error", "raised", 2, "the corpus is too short"),
        ("sys.exit", "raised", 1, "the payload called sys.exit(5)"),
        ("memory", "out_of_memory", 1, "MemoryError: no room"),
    ],
)
def test_failures(tmp_path: Path, how: str, cause: str, code: int, detail: str) -> None:
    config = {"rank": 0, "how": how}
    outcome = LocalLauncher().run(payloads.one_fails, config, run_dir=tmp_path)
    assert (outcome.cause, outcome.exit_code, outcome.step) == (cause, code, 5)
    assert outcome.detail == detail
    log = (tmp_path / "attempts" / "1" / "rank-0.log").read_text()
    assert ("Traceback" in log) == (how != "sys.exit")


def test_a_result_that_is_no_json_is_a_failure(tmp_path: Path) -> None:
    outcome = LocalLauncher().run(payloads.returns_nonsense, None, run_dir=tmp_path)
    assert outcome.cause == "raised"
    assert "plain JSON values" in outcome.detail


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_asks_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    def ask(rank: int, message: dict) -> None:
        if message["kind"] == "ready":
            os.kill(os.getpid(), number)

    outcome = LocalLauncher().run(
        payloads.until_stopped,
        None,
        run_dir=tmp_path,
        on_message=ask,
    )
    assert (outcome.cause, outcome.exit_code, outcome.step) == ("preempted", 4, 40)
    end = read_events(tmp_path / "events.jsonl")[-1]
    assert (end["event"], end["cause"], end["step"]) == ("end", "preempted", 40)


def test_a_second_signal_ends_it(tmp_path: Path) -> None:
    def interrupt(rank: int, message: dict) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    outcome = LocalLauncher().run(
        payloads.until_stopped,
        "deaf",
        run_dir=tmp_path,
        on_message=interrupt,
    )
    assert (outcome.cause, outcome.exit_code, outcome.step) == ("preempted", 1, 3)
    assert "second signal" in outcome.detail


def test_an_error_of_the_receiver_passes_through(tmp_path: Path) -> None:
    def fail(rank: int, message: dict) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        LocalLauncher().run(payloads.facts, None, run_dir=tmp_path, on_message=fail)


def test_it_runs_outside_the_main_thread(tmp_path: Path) -> None:
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(LocalLauncher().run(payloads.facts, None, run_dir=tmp_path))
    )
    thread.start()
    thread.join(60)
    assert outcomes[0].cause == "finished"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hosts": 2}, "hosts=2 needs --launcher ray"),
        ({"hosts": 0}, "hosts=0 must be at least 1"),
        ({"local_devices": 0}, "local_devices=0 must be at least 1"),
        ({"attempt": 0}, "attempt=0 must be at least 1"),
    ],
)
def test_sizes_that_make_no_sense(tmp_path: Path, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        LocalLauncher().run(payloads.facts, None, run_dir=tmp_path / "run", **sizes)
    assert not (tmp_path / "run").exists()


def test_a_worker_made_by_hand_needs_no_launcher() -> None:
    worker = WorkerInfo(0, 1, None, 1, "/nowhere")
    worker.post({"kind": "progress"})
    assert not worker.should_stop()
    assert Stopped(3).step == 3
