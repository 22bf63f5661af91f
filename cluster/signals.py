"""SIGTERM and SIGINT as a request: the first one asks to stop, a second one insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Context in which SIGTERM and SIGINT are counted; the former handlers return afterwards.

    Handlers exist only in a process's main thread: anywhere else the context counts nothing.
    `on_second` is called inside the handler of the second signal and may raise.
    """

    def __init__(self, on_second: Callable[[], None] | None = None) -> None:
        self.count = 0
        self.name = ""
        self._on_second = on_second
        self._former: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.getsignal(number) for number in SIGNALS}
            self.install()
        return self

    def install(self) -> None:
        """Take the signals (again: `ray.init` puts a handler of its own in place)."""
        for number in self._former:
            signal.signal(number, self._handle)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():
            # None: a handler that was not installed by Python and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.count += 1
        self.name = self.name or signal.Signals(number).name
        if self.count > 1 and self._on_second is not None:
            self._on_second()
