"""metrics.jsonl: one line a logged step, the same keys in the same order on every line.

validation.jsonl holds the held-out results in the same way.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .append import AppendFile
from .interface import plain

METRIC_KEYS = (
    "step",
    "loss",
    "bits_per_byte",
    "grad_norm",
    "learning_rate",
    "tokens_per_second",
    "step_seconds",
    "data_wait_seconds",
    "skipped_steps",
    "ffn_active_fraction",
    "ffn_offset",
    "attention_active_mean",
    "mfu_dense_equivalent",
    "mfu_executed",
)


VALIDATION_KEYS = ("step", "loss", "bits_per_byte")


class JsonlTracker:
    """The record of a run in its own folder: metrics.jsonl and, held out, validation.jsonl.

    resume_step: the last step that the resumed state contains; lines of later steps, and what is
    left of a line that was cut off, are removed from each file in one atomic replacement. Without
    it the files must not hold anything yet.
    Raises ValueError when a file already holds lines and no resume_step is given, or when one of
    its lines cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str], resume_step: int | None = None):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics = JsonLines(folder / "metrics.jsonl", METRIC_KEYS, resume_step)
        self._validation = JsonLines(folder / "validation.jsonl", VALIDATION_KEYS, resume_step)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends the line of `step`. Keys that are not given are null, as are NaN and infinities.

        Names that begin with "validation/" make a line of validation.jsonl instead; a step may
        have two lines there, of which the later one counts (the last evaluation reads all rows).
        Raises ValueError for an unknown key or for a step that is not after the last one, OSError
        when the line could not be written whole; the file then ends before it.
        """
        prefix = "validation/"
        own = {k: v for k, v in metrics.items() if not k.startswith(prefix)}
        held_out = {k[len(prefix) :]: v for k, v in metrics.items() if k.startswith(prefix)}
        if own:
            self._metrics.append(step, own)
        if held_out:
            self._validation.append(step, held_out, again=True)

    def close(self) -> None:
        self._metrics.close()
        self._validation.close()


class JsonLines:
    """A file of JSON objects with the same keys, in the order of their steps."""

    def __init__(self, path: Path, keys: Sequence[str], resume_step: int | None):
        self.path, self.keys, self._last = path, tuple(keys), -1
        if path.is_file() and path.stat().st_size:
            if resume_step is None:
                raise ValueError(f"{path} already holds a run; resume it, or name another folder")
            self._last = _keep_until(path, resume_step)
        self._file = AppendFile(path)

    def append(self, step: int, values: Mapping[str, Any], *, again: bool = False) -> None:
        """again: whether the last step may get another line."""
        unknown = sorted(set(values) - set(self.keys))
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)}: no key of {self.path.name}; known: {', '.join(self.keys)}"
            )
        if step < self._last or (step == self._last and not again):
            raise ValueError(f"step {step} of {self.path.name} comes after step {self._last}")
        row = {key: json_value(values.get(key)) for key in self.keys} | {"step": step}
        self._file.write((json.dumps(row, allow_nan=False) + "\n").encode())
        self._last = step

    def close(self) -> None:
        self._file.close()


def json_value(value: Any) -> Any:
    """`value` with plain numbers and lists, and null for what JSON cannot say (NaN, infinity)."""
    value = plain(value)
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _keep_until(path: Path, step: int) -> int:
    """Removes the lines after `step` and an unfinished last line; the last step that is left."""
    content = path.read_bytes()
    whole, end, _ = content.rpartition(b"\n")
    kept, last = [], -1
    for number, line in enumerate((whole + end).splitlines(keepends=True), start=1):
        try:
            at = int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{path}:{number}: not a line of metrics; remove or repair it, then resume"
            ) from None
        if at <= step:
            kept.append(line)
            last = max(last, at)
    result = b"".join(kept)
    if result != content:
        scratch = path.with_name(path.name + ".tmp")
        with open(scratch, "wb") as file:
            file.write(result)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    return last
