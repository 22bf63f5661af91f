"""Keys and values of the tokens seen so far."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..config import ModelConfig


class KVCache(NamedTuple):
    """k, v [layers, B, S, kv heads, head_dim] after rotation; positions, segments int32[B, S].

    Segment 0 marks an empty slot. `length` int32[] is the number of filled slots.
    """

    k: jax.Array
    v: jax.Array
    positions: jax.Array
    segments: jax.Array
    length: jax.Array


def empty_cache(cfg: ModelConfig, batch: int, size: int, dtype: jnp.dtype = jnp.float32) -> KVCache:
    """A cache of `size` slots for `batch` rows."""
    shape = (cfg.num_layers, batch, size, cfg.num_kv_heads, cfg.head_dim)
    return KVCache(
        jnp.zeros(shape, dtype),
        jnp.zeros(shape, dtype),
        jnp.zeros((batch, size), jnp.int32),
        jnp.zeros((batch, size), jnp.int32),
        jnp.zeros((), jnp.int32),
    )
