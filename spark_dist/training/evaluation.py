"""Held-out loss and realised sparsity of given weights, on the mesh of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from ..config import ModelConfig
from .feed import Rows, place
from .step import Sums


class Evaluation(NamedTuple):
    """loss: nats a target. Fractions and means are one a layer; means NaN where no row was long."""

    loss: float
    bits_per_byte: float
    ffn_active_fraction: list[float]
    attention_active_mean: list[float]
    tokens: int


def run_evaluation(
    model: ModelConfig,
    eval_step: Callable[..., Sums],
    params: Any,
    ffn_offset: jax.Array,
    batches: Iterable[Rows],
    sharding: NamedSharding,
) -> Evaluation:
    """Sums over all batches, in float64 on the host, so that their number does not matter.

    Raises ValueError when there is no batch.
    """
    total: Any = None
    previous: Sums | None = None
    for batch in batches:
        following = eval_step(params, ffn_offset, place(batch, sharding))
        total = _add(total, previous)  # while the devices work on the following batch
        previous = following
    total = _add(total, previous)
    if total is None:
        raise ValueError("no held-out batch to evaluate; name --data.validation files")
    layers = total.layers
    with np.errstate(invalid="ignore", divide="ignore"):
        attended = layers.attention_keys / layers.attention_rows
    return Evaluation(
        loss=float(total.nats / total.targets),
        bits_per_byte=float(total.nats / math.log(2) / total.bytes),
        ffn_active_fraction=(layers.ffn_active / (layers.tokens * model.d_ff)).tolist(),
        attention_active_mean=attended.tolist(),
        tokens=int(total.targets),
    )


def _add(total: Any, out: Sums | None) -> Any:
    if out is None:
        return total
    found = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(out))
    return found if total is None else jax.tree.map(np.add, total, found)
