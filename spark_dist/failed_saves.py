"""Keeps the libraries below quiet about a failed save, which is raised and told in one line.

Orbax logs the error of every part of a save with its traceback, asyncio those of writes that
nobody waited for any more, and tensorstore, whose writes outlive the event loop of a save that
failed, reports one for each of them to `sys.unraisablehook`.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

_former_hook = sys.unraisablehook


def quieten() -> None:
    """For the rest of the process; a second call changes nothing."""
    global _former_hook
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(_is_news)
    if sys.unraisablehook is not _hook:
        _former_hook, sys.unraisablehook = sys.unraisablehook, _hook


def _is_news(record: logging.LogRecord) -> bool:
    if record.levelno < logging.ERROR:
        return True
    trace = record.exc_info[2] if record.exc_info else None
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)]
    return not any("/orbax/" in name for name in (record.pathname, *files))


def _hook(what: Any) -> None:
    late = what.object is None and str(what.exc_value) == "Event loop is closed"
    if not late:
        _former_hook(what)
