"""AdamW and its learning-rate schedule.

The schedule is a function of the step number kept in the state, not of a counter inside the
optimizer, so that skipped steps move along it and a resumed run is at the same place.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..config import OptimizerConfig


def learning_rate(cfg: OptimizerConfig, step: jax.Array) -> jax.Array:
    """Rate of optimizer step `step` (int32[], from 0): linear warm-up, then `cfg.schedule`.

    Raises ValueError when `cfg.schedule_steps` was not resolved.
    """
    if cfg.schedule_steps is None:
        raise ValueError("optimizer.schedule_steps is not set; use RunConfig.resolved()")
    total, floor = cfg.schedule_steps, cfg.final_fraction
    done = step.astype(jnp.float32)
    warmup = jnp.minimum((done + 1.0) / max(cfg.warmup_steps, 1), 1.0) if cfg.warmup_steps else 1.0
    if cfg.schedule == "constant":
        factor = jnp.float32(1.0)
    elif cfg.schedule == "cosine":
        span = max(total - cfg.warmup_steps, 1)
        progress = jnp.clip((done - cfg.warmup_steps) / span, 0.0, 1.0)
        factor = floor + (1.0 - floor) * 0.5 * (1.0 + jnp.cos(math.pi * progress))
    else:
        span = max(round(total * cfg.decay_fraction), 1)
        progress = jnp.clip((done - (total - span)) / span, 0.0, 1.0)
        factor = 1.0 - (1.0 - floor) * progress
    return cfg.learning_rate * warmup * factor


def _decayed(params: Any) -> Any:
    """Weight decay on the matrices; norm scales have none."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) != "scale", params
    )


def make_optimizer(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """AdamW's direction at learning rate -1: multiply by `learning_rate` and add."""
    return optax.chain(
        optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.eps),
        optax.add_decayed_weights(cfg.weight_decay, mask=_decayed),
        optax.scale(-1.0),
    )
