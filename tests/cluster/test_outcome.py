"""Outcomes and what payloads raise."""

from __future__ import annotations

import pytest

from spark_dist.cluster import CAUSES, DONE, FAILED, Outcome, PayloadError, Stopped
from spark_dist.cluster.outcome import not_begun, one_line


def test_the_causes_are_a_contract() -> None:
    assert CAUSES == (
        "finished",
        "raised",
        "died",
        "out_of_memory",
        "preempted",
        "stalled",
        "startup_timeout",
    )


def test_an_unknown_cause_is_refused() -> None:
    with pytest.raises(ValueError, match="cause='tired' is none of finished, raised"):
        Outcome("tired", FAILED)


def test_exceptions_carry_what_they_say() -> None:
    assert Stopped(7).step == 7
    assert str(PayloadError("too short")) == "too short"
    assert PayloadError("too short").exit_code == FAILED
    assert PayloadError("too short", exit_code=2).exit_code == 2


def test_stopped_before_the_start_can_be_resumed() -> None:
    outcome = not_begun("SIGTERM")
    assert (outcome.cause, outcome.exit_code) == ("preempted", 4)
    assert "SIGTERM" in outcome.detail
    assert DONE == 0


def test_one_line() -> None:
    assert one_line("\n  \n first \nsecond") == "first"
    assert one_line("") == ""
    assert len(one_line("x" * 999, limit=20)) == 20
