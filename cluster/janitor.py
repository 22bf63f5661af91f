"""Leaves nothing of an embedded cluster: a small process that outlives the driver.

    python -I -S janitor.py MARK FOLDER TOKEN_FILE < pipe held by the driver

When the pipe closes, because the driver closed it or ended in any way, SIGKILL included, every
process whose initial environment holds MARK is killed and the two paths are removed. Ray
ends most of its processes by itself when the driver dies; this ends the rest, and at once.
"""

import os
import shutil
import signal
import sys
import time

PATIENCE_SECONDS = 20.0


def marked(mark: bytes) -> list[int]:
    """Processes, other than this one, that were started with `mark` in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                entries = file.read().split(b"\0")
        except OSError:  # another user's, or gone
            continue
        if mark in entries:
            found.append(int(name))
    return found


def main(mark: str, folder: str, token: str) -> None:
    """Wait for the pipe to close, then clean up."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (processes := marked(mark.encode())) and time.monotonic() < deadline:
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)  # the kernel needs a moment to end them
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.exists(token):
        os.remove(token)


if __name__ == "__main__":
    main(*sys.argv[1:])
