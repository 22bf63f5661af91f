"""Rotary position embedding (arXiv 2104.09864), half-split layout as in Gemma."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Rotation(NamedTuple):
    """cos and sin, each float32[B, T, 1, dim / 2]."""

    cos: jax.Array
    sin: jax.Array


def rotation(positions_BT: jax.Array, dim: int, base: float) -> Rotation:
    """Angles of a rotary block of `dim` features at integer positions[B, T]."""
    frequency = base ** (-np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))
    angle = positions_BT[:, :, None, None].astype(jnp.float32) * frequency.reshape(1, 1, 1, -1)
    return Rotation(jnp.cos(angle), jnp.sin(angle))


def rotate(x_BTHD: jax.Array, by: Rotation) -> jax.Array:
    """Rotates feature i against feature i + D / 2. x[B, T, H, D] -> the same shape and dtype."""
    first, second = jnp.split(x_BTHD.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [first * by.cos - second * by.sin, second * by.cos + first * by.sin], axis=-1
    )
    return turned.astype(x_BTHD.dtype)
