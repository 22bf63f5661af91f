"""Errors that a person can act on: the command line prints them as one line."""

import errno
import os

_ADVICE = {
    errno.ENOSPC: "free disk space, then --resume",
    errno.EDQUOT: "free disk space or raise the quota, then --resume",
    errno.EFBIG: "raise the file-size limit (ulimit -f), then --resume",
}


class UserError(Exception):
    """A mistake in what the user asked for. The message names the field, the value and the fix.

    Not a ValueError: libraries that catch those (pydantic, tyro) must let it through unchanged.
    """


class RunFailed(RuntimeError):
    """A run that started and cannot go on. The message names the cause, the step and what to do."""


def disk_advice(number: int | None) -> str:
    """What to do about the error `number` of the system on writing a file."""
    return _ADVICE.get(number or 0, "mend the folder, then --resume, or name another --run-dir")


def disk_failure(run_dir: str | os.PathLike[str], error: OSError) -> str:
    """One line about a folder that refused a file: the folder, the reason and what to do."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    where = f" ({error.filename})" if error.filename else ""
    return f"run_dir={os.fspath(run_dir)}: {reason}{where}; {disk_advice(error.errno)}"
