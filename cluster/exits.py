"""How a process ended that is not our child: its exit code or signal, where that can be known.

Linux keeps the exit status of any process for those who hold a descriptor of it (ioctl
PIDFD_GET_INFO, since Linux 6.15). On older kernels and for processes of other machines the
rank log may still tell: fatal signals other than SIGKILL write a line there.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import time
from pathlib import Path

_PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, struct of 64 bytes)
_INFO_EXIT = 1 << 3
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, wait status
_TAIL_BYTES = 64 << 10
_SIGNAL_LINE = re.compile(r"\*\*\* (SIG[A-Z]+) (?:\(.*\) )?received|Fatal Python error: (\w.*)")
_PEER_LINES = (
    "JAX distributed service detected fatal errors",
    "another task died",
    "coordination service agent",
)


class Watched:
    """A process of this machine, watched from before its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except OSError:
            self._descriptor = None

    def ending(self, patience: float = 0.5) -> str | None:
        """ "killed by SIGKILL" or "exited with code 3"; None if unknown within `patience` s."""
        deadline = time.monotonic() + patience
        while self._descriptor is not None:
            status = self._status()
            if status is not None:
                return describe(status)
            if time.monotonic() > deadline:
                break
            time.sleep(0.005)  # its parent has not collected it yet
        return None

    def gone(self) -> bool:
        """Whether the process has ended (true also if it was never seen)."""
        if self._descriptor is None:
            return True
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except OSError:
            return True
        return False

    def kill(self) -> None:
        """Send SIGKILL, to this very process: a descriptor never names a successor."""
        if not self.gone() and self._descriptor is not None:
            try:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            except ProcessLookupError:
                return

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _status(self) -> int | None:
        if self._descriptor is None:
            return None
        buffer = bytearray(_INFO.pack(_INFO_EXIT, 0, *[0] * 11, 0))
        try:
            fcntl.ioctl(self._descriptor, _PIDFD_GET_INFO, buffer)
        except OSError:
            return None
        mask, *_, status = _INFO.unpack(buffer)
        return status if mask & _INFO_EXIT else None


def describe(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {member.value: member.name for member in signal.Signals}
        return f"killed by {names.get(number, f'signal {number}')}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"


def read_tail(path: Path) -> str:
    """The last 64 KiB of a log; empty if it is not readable here."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def signal_in_log(tail: str) -> str | None:
    """ "killed by SIGSEGV" if the end of a rank log says that a fatal signal arrived."""
    found = _SIGNAL_LINE.search(tail)
    if found is None:
        return None
    return f"killed by {found[1]}" if found[1] else f"fatal error: {found[2]}"


def lost_a_peer(tail: str) -> bool:
    """Whether JAX ended this process because another rank, or the coordinator, was gone."""
    return any(line in tail for line in _PEER_LINES)
