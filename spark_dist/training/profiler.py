"""`--profile FIRST:LAST`: a JAX trace of those steps and a memory profile after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax


class Profiler:
    """Writes RUN/profile/: a trace for TensorBoard or Perfetto, and memory.prof for pprof."""

    def __init__(self, steps: str | None, run_dir: Path):
        self.first, self.last = map(int, steps.split(":")) if steps else (0, 0)
        self.folder = run_dir / "profile"
        self._on = False

    def before(self, step: int) -> None:
        """Starts the trace when `step` is the first or lies within (a resumed run)."""
        if not self._on and 0 < self.first <= step <= self.last:
            jax.profiler.start_trace(str(self.folder))
            self._on = True

    def after(self, step: int, result: Any) -> None:
        """Ends the trace after the last step, once `result` is computed."""
        if self._on and step >= self.last:
            jax.block_until_ready(result)
            jax.profiler.stop_trace()
            jax.profiler.save_device_memory_profile(str(self.folder / "memory.prof"))
            self._on = False
