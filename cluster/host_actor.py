"""The process of one host: a Ray actor that runs the payload in a thread and answers calls.

Calls run in the actor's other threads, so the driver always gets an answer while the process
lives, whatever the payload does. One process serves one attempt.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from collections import deque
from types import FrameType
from typing import Any

from .ending import Ending, run_payload
from .launcher import encode
from .worker import WorkerInfo, rank_log

CALLS_AT_ONCE = 4  # a waiting poll, a stop, and room for questions about a stalled payload
_MESSAGES_A_POLL = 1000


class HostActor:
    """Rank `rank` of an attempt. The driver wraps this class with `ray.remote`."""

    def __init__(self, rank: int, attempt: int, run_dir: str) -> None:
        self._rank = rank
        self._attempt = attempt
        self._run_dir = run_dir
        self._changed = threading.Condition()
        self._messages: deque[str] = deque()
        self._ending: Ending | None = None
        self._signalled = ""
        self._stop = threading.Event()
        self._reserved: socket.socket | None = None
        _redirect_output(run_dir, attempt, rank)
        if threading.current_thread() is threading.main_thread():
            # Ray's own handler ends the process at once; a preempted host has something to save.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def hello(self) -> dict[str, Any]:
        """Where this process is."""
        import ray
        from ray.util import get_node_ip_address

        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "address": get_node_ip_address(),
            "node": ray.get_runtime_context().get_node_id(),
            "jax_imported": "jax" in sys.modules,
        }

    def reserve_port(self) -> int:
        """A port of this host for JAX's coordination service.

        The socket stays bound, without listening, so that no other process is given the port; the
        service can still bind it, because gRPC shares ports between sockets of one user.
        """
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("", 0))
        return self._reserved.getsockname()[1]

    def start(self, blob: bytes, place: dict[str, Any]) -> None:
        """Start the payload. `blob` is the pickled (payload, config), `place` fills WorkerInfo."""
        worker = WorkerInfo(
            rank=self._rank,
            attempt=self._attempt,
            run_dir=self._run_dir,
            post=self._post,
            should_stop=self._stop.is_set,
            **place,
        )
        thread = threading.Thread(target=self._run, args=(blob, worker), name="payload")
        thread.daemon = True
        thread.start()

    def poll(self, seconds: float) -> dict[str, Any]:
        """What is new: waits up to `seconds` for messages, the ending, or a signal."""
        with self._changed:
            self._changed.wait_for(self._has_news, seconds)
            count = min(len(self._messages), _MESSAGES_A_POLL)
            messages = [self._messages.popleft() for _ in range(count)]
            ended = self._ending if not self._messages else None
            signalled, self._signalled = self._signalled, ""
        return {
            "messages": messages,
            "ending": None if ended is None else ended.encoded(),
            "signalled": signalled,
        }

    def stop(self) -> None:
        """Ask the payload to stop."""
        self._stop.set()

    def _run(self, blob: bytes, worker: WorkerInfo) -> None:
        from ray import cloudpickle

        # A failure to import the payload, or to find its modules here, is an ending like others.
        ending = run_payload(lambda: cloudpickle.loads(blob), worker, sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        with self._changed:
            self._ending = ending
            self._changed.notify_all()

    def _post(self, message: dict[str, Any]) -> None:
        text = encode(message)
        with self._changed:
            self._messages.append(text)
            self._changed.notify_all()

    def _has_news(self) -> bool:
        return bool(self._messages or self._ending or self._signalled)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        # No lock here: the interrupted code may hold it. A waiting poll sees this when it ends.
        del frame
        self._signalled = signal.Signals(number).name
        self._stop.set()


def _redirect_output(run_dir: str, attempt: int, rank: int) -> None:
    """Send everything this process writes, native code included, to the rank log."""
    path = rank_log(run_dir, attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    # Ray may have put other objects in their place.
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(file=sys.stderr)
