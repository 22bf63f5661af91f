"""What every launcher does, and what they share: checks at the door and the mailbox."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .events import EventLog
from .outcome import Outcome
from .worker import WorkerInfo

Payload = Callable[[Any, WorkerInfo], Any]
OnMessage = Callable[[int, dict[str, Any]], None]


class LaunchError(RuntimeError):
    """The attempt could not be started as asked. One line: the field, the value and the fix."""


class Interrupted(RuntimeError):
    """The run was asked to stop before its payloads were started."""


class Launcher(Protocol):
    """Runs one attempt of a payload on some number of hosts."""

    def run(
        self,
        payload: Payload,
        config: Any,
        *,
        run_dir: str | Path,
        hosts: int = 1,
        local_devices: int | None = None,
        attempt: int = 1,
        on_message: OnMessage | None = None,
        startup_timeout: float = 300.0,
    ) -> Outcome:
        """Call `payload(config, worker)` on every host and say how that ended.

        `payload` is a function of an importable module, and returns plain JSON values.
        `on_message(rank, message)` is called for every dictionary a rank posts, one at a time.
        SIGTERM and SIGINT ask the payload to stop; a second one ends it at once. Failures of the
        payload are in the Outcome; LaunchError is raised for what cannot be started at all,
        and an exception of `on_message` passes through after everything was ended.
        """
        ...


def check_request(hosts: int, local_devices: int | None, attempt: int) -> None:
    """Refuse sizes that make no sense."""
    if hosts < 1:
        raise LaunchError(f"hosts={hosts} must be at least 1")
    if local_devices is not None and local_devices < 1:
        raise LaunchError(f"local_devices={local_devices} must be at least 1")
    if attempt < 1:
        raise LaunchError(f"attempt={attempt} must be at least 1")


def encode(message: Any) -> str:
    """`message` as JSON. The driver has no JAX: only plain values may travel."""
    try:
        return json.dumps(message)
    except (TypeError, ValueError) as error:
        raise TypeError(f"a payload posts and returns plain JSON values: {error}") from None


class Mailbox:
    """Takes the messages of all ranks: remembers the step, writes events, hands them on."""

    def __init__(self, events: EventLog, attempt: int, on_message: OnMessage | None) -> None:
        self.step: int | None = None
        self._events = events
        self._attempt = attempt
        self._on_message = on_message
        self._lock = threading.Lock()

    def deliver(self, rank: int, text: str) -> None:
        """Handle one encoded message of `rank`."""
        message = json.loads(text)
        with self._lock:
            step = message.get("step")
            if isinstance(step, int) and (self.step is None or step > self.step):
                self.step = step
            if message.get("kind") == "event":
                self._events.write(
                    message.get("event", "event"),
                    attempt=self._attempt,
                    rank=rank,
                    step=step,
                    seconds=message.get("seconds"),
                    cause=message.get("cause"),
                    detail=message.get("detail"),
                )
            if self._on_message is not None:
                self._on_message(rank, message)
