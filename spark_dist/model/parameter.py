"""Parameters that carry the names of their axes; where the axes lie is decided in `sharding`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx


def weight(
    rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], fan_in: int
) -> nnx.Param[jax.Array]:
    """Float32 weights from a normal of variance 1 / fan_in, truncated at two deviations.

    shape: sizes of the axes. axes: their logical names. fan_in: summed-over inputs of one output.
    """
    # 0.8796 is the deviation of a standard normal truncated to [-2, 2].
    scale = 1.0 / (0.87962566103423978 * math.sqrt(fan_in))
    value = jax.random.truncated_normal(rngs.params(), -2.0, 2.0, shape, jnp.float32) * scale
    return nnx.Param(value, logical_axes=axes)


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * (1 + scale): x[..., size], scale[size] -> the shape and dtype of x."""
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    scale = (1.0 + scale).reshape((1,) * (x.ndim - 1) + (-1,))
    return (x32 * inverse * scale).astype(x.dtype)


class RMSNorm(nnx.Module):
    """Root-mean-square norm with Gemma's `1 + scale`; statistics in float32."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.zeros((size,), jnp.float32), logical_axes=("embed",))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """x[..., size] -> the same shape and dtype."""
        return rms_norm(x, self.scale[...], self.eps)
