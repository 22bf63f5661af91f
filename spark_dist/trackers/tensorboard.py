"""TensorBoard event files, written with TensorBoard's own record writer.

Written in the calling thread: a full disk is then an error of `log`, not of a thread. Neither
TensorFlow nor PyTorch is needed.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .append import AppendFile
from .interface import scalars


class TensorBoardTracker:
    """One new event file in `folder`; older files there belong to earlier attempts.

    config: shown as text under "config". resume_step: points after it that earlier attempts
    wrote are dropped by TensorBoard when it reads the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        config: Mapping[str, Any] | None = None,
        resume_step: int | None = None,
    ):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Names made at run time, which type checkers cannot see.
        self._event: Any = event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
        session: Any = event_pb2.SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Files are read in the order of their names.
        stamp = f"{time.time_ns() / 1e9:020.9f}"
        self.path = folder / f"events.out.tfevents.{stamp}.{socket.gethostname()}.{os.getpid()}"
        self._file = AppendFile(self.path, new=True)
        self._records = RecordWriter(self._file)
        self._write(self._event(file_version="brain.Event:2"))
        if resume_step is not None:
            start = session(status=session.START)
            self._write(self._event(step=resume_step + 1, session_log=start))
        if config is not None:
            self._write(self._text("config", json.dumps(config, indent=2, default=str)))

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes one point a name; lists are NAME/0, NAME/1, ... On disk when it returns.

        Raises OSError when the point could not be written.
        """
        event = self._event(step=step)
        for name, value in scalars(metrics).items():
            event.summary.value.add(tag=name, simple_value=value)
        self._write(event)

    def close(self) -> None:
        self._file.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())

    def _text(self, tag: str, text: str) -> Any:
        """A text summary; the four blanks make Markdown show it as it stands."""
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        event = self._event(step=0)
        event.summary.value.add(
            tag=tag,
            tensor=make_tensor_proto("\n".join("    " + line for line in text.splitlines())),
            metadata=create_summary_metadata(tag, None),
        )
        return event
