"""What is known of the end of a process that is not our child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from spark_dist.cluster.exits import Watched, describe, lost_a_peer, signal_in_log


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (signal.SIGKILL, "killed by SIGKILL"),
        (signal.SIGSEGV | 0x80, "killed by SIGSEGV"),
        (3 << 8, "exited with code 3"),
        (0, "exited with code 0"),
    ],
)
def test_wait_status_in_words(status: int, words: str) -> None:
    assert describe(status) == words


def _kernel_keeps_exits() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int(minor)) >= (6, 15)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os._exit(7)", "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_the_end_of_a_process_is_seen_from_outside(code: str, words: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"input(); {code}"], stdin=subprocess.PIPE)
    watched = Watched(child.pid)
    assert not watched.gone()
    child.communicate(b"\n")
    assert watched.gone()
    assert watched.ending() == (words if _kernel_keeps_exits() else None)
    watched.close()


def test_a_watched_process_can_be_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = Watched(child.pid)
    watched.kill()
    assert child.wait(30) == -signal.SIGKILL
    watched.kill()
    watched.close()
    assert child.stdin is not None
    child.stdin.close()


def test_a_process_that_never_was() -> None:
    watched = Watched(2**22 + 1)  # above the largest process number
    assert watched.gone()
    assert watched.ending() is None


def test_logs_tell_of_fatal_signals() -> None:
    assert signal_in_log("x\n*** SIGABRT received at time=17 on cpu 0 ***\n") == "killed by SIGABRT"
    assert signal_in_log("Fatal Python error: Aborted\n") == "fatal error: Aborted"
    assert signal_in_log("all is well") is None
    assert lost_a_peer("F client.h:80] ... JAX distributed service detected fatal errors. This")
    assert not lost_a_peer("all is well")
