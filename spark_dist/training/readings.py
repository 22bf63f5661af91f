"""From a step's metrics to a line of metrics.jsonl and a line on the screen."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jax.sharding import Mesh

from ..config import RunConfig
from ..model import flops_per_token
from .peaks import peak_flops
from .watch import SparsityWatch


class Readings:
    """Time and tokens since the last logged step; warnings about sparsity.

    post: takes the messages for the person.
    """

    def __init__(self, config: RunConfig, mesh: Mesh, post: Callable[[dict[str, Any]], None]):
        model, trainer = config.model, config.trainer
        self.config, self.post = config, post
        self.tokens_a_step = trainer.global_batch_size * config.data.sequence_length
        flops = flops_per_token(model, config.data.sequence_length)
        peak = peak_flops(mesh.devices.flat[0].device_kind, trainer.compute_dtype)
        self._flops = flops.dense_equivalent
        self._peak = None if peak is None else peak * mesh.devices.size
        self._watches: list[tuple[str, SparsityWatch]] = []
        if model.sparse_ffn and model.ffn_k:
            self._watches.append(
                (
                    "ffn_active_fraction",
                    SparsityWatch("FFN active fraction", model.ffn_k / model.d_ff),
                )
            )
        if model.attention == "spark":
            self._watches.append(
                ("attention_active_mean", SparsityWatch("attended keys", model.attention_k))
            )
        self._restart()
        self._begin_run = time.monotonic()
        self._steps_run = 0
        self._paused_run = 0.0

    def _restart(self) -> None:
        self._begin, self._paused, self._waited, self._steps = time.monotonic(), 0.0, 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent waiting for data."""
        begin = time.monotonic()
        yield
        self._waited += time.monotonic() - begin

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is not training: evaluation and saves."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self._paused += time.monotonic() - begin
            self._paused_run += time.monotonic() - begin

    def count(self, step: int) -> None:
        """One more step is known to be done."""
        self._steps += 1
        self._steps_run += 1

    def line(self, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
        """The values of metrics.jsonl for this step; posts progress and due warnings."""
        seconds = max(time.monotonic() - self._begin - self._paused, 1e-9)
        rate = self._steps * self.tokens_a_step / seconds
        share = None if self._peak is None else rate * self._flops / self._peak
        values = {
            "loss": float(metrics["loss"]),
            "bits_per_byte": float(metrics["bits_per_byte"]),
            "grad_norm": float(metrics["grad_norm"]),
            "learning_rate": float(metrics["learning_rate"]),
            "tokens_per_second": rate,
            "step_seconds": seconds / max(self._steps, 1),
            "data_wait_seconds": self._waited,
            "skipped_steps": int(metrics["skipped_steps"]),
            "ffn_active_fraction": np.asarray(metrics["ffn_active_fraction"]).tolist(),
            "ffn_offset": np.asarray(metrics["ffn_offset"]).tolist(),
            "attention_active_mean": np.asarray(metrics["attention_active_mean"]).tolist(),
            "mfu_dense_equivalent": share,
            # Training computes every product, so what is executed is the dense equivalent.
            "mfu_executed": share,
        }
        self._restart()
        for key, watch in self._watches:
            for text in watch.observe(step, values[key]):
                self.post({"kind": "warning", "step": step, "message": text})
                self.post({"kind": "event", "event": "warning", "step": step, "detail": text})
        self.post(self._progress(step, values))
        return values

    def _progress(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        fractions = [f for f in values["ffn_active_fraction"] if math.isfinite(f)]
        sparse = self.config.model.sparse_ffn and bool(fractions)
        elapsed = time.monotonic() - self._begin_run - self._paused_run
        left = self.config.trainer.steps - step
        return {
            "kind": "progress",
            "step": step,
            "steps": self.config.trainer.steps,
            "loss": values["loss"],
            "tokens_per_second": values["tokens_per_second"],
            "ffn_active_fraction": sum(fractions) / len(fractions) if sparse else None,
            "eta_seconds": left * elapsed / max(self._steps_run, 1),
        }
