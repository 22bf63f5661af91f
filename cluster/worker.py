"""What one host is told about the attempt it takes part in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def _post_nothing(message: dict[str, Any]) -> None:
    del message


def _never() -> bool:
    return False


@dataclass(frozen=True)
class WorkerInfo:
    """One host's place in an attempt; the second argument of every payload.

    `coordinator` is "address:port" of JAX's coordination service on rank 0's host, None where
    there is one host without it. A loopback address means that the whole attempt is on one machine:
    bind there too. `local_devices` is the number of devices this host should have (CPU devices to
    pretend, or the accelerators Ray assigned). `post` sends a dictionary of plain JSON values to
    the launcher's `on_message`, from any thread, without waiting. `should_stop` turns true
    when the run was asked to end: save, then raise `Stopped(step)`. Ranks may see it at different
    steps, so a payload of several hosts has to agree on the step by itself.
    """

    rank: int
    world_size: int
    coordinator: str | None
    attempt: int
    run_dir: str
    local_devices: int = 1
    post: Callable[[dict[str, Any]], None] = _post_nothing
    should_stop: Callable[[], bool] = _never


def rank_log(run_dir: str | Path, attempt: int, rank: int) -> Path:
    """The file that holds everything a rank wrote in an attempt."""
    return Path(run_dir) / "attempts" / str(attempt) / f"rank-{rank}.log"
