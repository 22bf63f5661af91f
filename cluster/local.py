"""The launcher without Ray: the payload runs in this process, as the only host."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .ending import run_payload
from .events import EventLog
from .launcher import LaunchError, Mailbox, OnMessage, Payload, check_request, encode
from .outcome import Outcome
from .signals import StopSignals
from .worker import WorkerInfo, rank_log


class LocalLauncher:
    """Runs one host in the calling process. Output goes where this process's output goes.

    The rank log holds the traceback of an error. The number of CPU devices is set through the
    environment and so takes effect only where JAX is not imported yet.
    """

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
        """See `Launcher.run`. Raises LaunchError for more than one host."""
        del startup_timeout  # there is nothing to wait for
        check_request(hosts, local_devices, attempt)
        if hosts != 1:
            raise LaunchError(f"hosts={hosts} needs --launcher ray; the local launcher has one")
        run_dir = Path(run_dir).absolute()
        events = EventLog(run_dir / "events.jsonl")
        mailbox = Mailbox(events, attempt, on_message)
        log_path = rank_log(run_dir, attempt, rank=0)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        undelivered: list[Exception] = []

        def post(message: dict[str, Any]) -> None:
            text = encode(message)
            try:
                mailbox.deliver(0, text)
            except Exception as error:
                undelivered.append(error)
                raise

        events.write("launch", attempt=attempt, seconds=0.0, detail="local, hosts=1")
        with (
            StopSignals(on_second=_interrupt) as signals,
            _environment({"JAX_NUM_CPU_DEVICES": local_devices}),
            open(log_path, "a", encoding="utf-8") as log,
        ):
            worker = WorkerInfo(
                rank=0,
                world_size=1,
                coordinator=None,
                attempt=attempt,
                run_dir=str(run_dir),
                local_devices=local_devices or 1,
                post=post,
                should_stop=lambda: signals.count > 0,
            )
            events.write("started", attempt=attempt, rank=0, seconds=0.0)
            end = run_payload(lambda: (payload, config), worker, log)
        if undelivered:
            raise undelivered[0]
        step = mailbox.step if end.step is None else end.step
        seconds = time.monotonic() - started
        for event, rank in (("exit", 0), ("end", None)):
            events.write(
                event,
                attempt=attempt,
                rank=rank,
                step=step,
                seconds=seconds,
                cause=end.cause,
                detail=end.detail or None,
            )
        return Outcome(end.cause, end.exit_code, step, end.result, end.detail, rank=0)


def _interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def _environment(values: dict[str, int | None]) -> Iterator[None]:
    """Set variables for JAX, unless it has read them already."""
    if "jax" in sys.modules:
        values = {}
    former = {name: os.environ.get(name) for name in values}
    os.environ.update({name: str(value) for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
