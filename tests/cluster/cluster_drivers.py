"""Processes that print JSON lines and start others: read with bounds, and cleaned up."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PATIENCE = 120.0  # seconds; machines that run tests are busy


class Driver:
    """A process that prints JSON lines, and every process that it has started."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.family: set[psutil.Process] = set()
        self.seen: list[dict[str, Any]] = []
        self._errors: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=target, daemon=True)
            for target in (self._read, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return "".join(self._errors)

    def next(self) -> dict[str, Any] | None:
        """The next line, None at the end of the output."""
        line = self._lines.get(timeout=PATIENCE)
        if line is None:
            return None
        record = json.loads(line)
        self.seen.append(record)
        return record

    def wait_for(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next line that `found` accepts."""
        while (record := self.next()) is not None:
            if found(record):
                return record
        raise AssertionError(f"the driver ended early: {self.seen} {self.errors}")

    def wait_ready(self, ranks: int) -> dict[int, dict[str, Any]]:
        """The "ready" message of each rank; notes all processes that run then."""
        ready: dict[int, dict[str, Any]] = {}
        while len(ready) < ranks:
            record = self.wait_for(lambda r: r.get("message", {}).get("kind") == "ready")
            ready[record["rank"]] = record["message"]
        self.note_family()
        return ready

    def note_family(self) -> None:
        """Remember every process that descends from the driver now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            self.family |= set(own.children(recursive=True))

    def outcome(self) -> dict[str, Any]:
        """The last line: the outcome. Checks that it is the last, and the exit code."""
        record = self.wait_for(lambda r: "outcome" in r)
        assert self.next() is None, "nothing may follow the outcome on standard output"
        assert self.process.wait(PATIENCE) == record["outcome"]["exit_code"]
        return record

    def left_over(self, seconds: float = 30.0) -> list[psutil.Process]:
        """Processes of the family that still run after `seconds` at most."""
        _, alive = psutil.wait_procs(self.family, timeout=seconds)
        return alive

    def close(self) -> None:
        """Kill what is left."""
        self.note_family()
        for process in [*self.family, self.process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def environment(**more: str) -> dict[str, str]:
    """For a process that imports this checkout and the test payloads."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}", **more}


@dataclass(frozen=True)
class Running:
    """A cluster of node processes: where it is, and the variables a driver needs to join it."""

    driver: Driver
    address: str
    variables: dict[str, str]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether `condition` becomes true in time."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        never.wait(0.02)
    return True
