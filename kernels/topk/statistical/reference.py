"""Statistical top-k written as its definition: what the other implementations are tested against.

Plain operations, gradients by automatic differentiation, rows whole on one device.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from .quantiles import gaussian_quantiles


def statistical_threshold(x, k, *, axis=-1, where=None, offset=0.0, ddof=1) -> jax.Array:
    """theta = mean + sd * (Q(1 - k/n) + offset); arguments as in the public function."""
    return _row(x, k, axis, where, offset, ddof)[2]


def statistical_top_k(
    x, k, *, axis=-1, where=None, fill=0.0, offset=0.0, ddof=1, huber_delta=0.0
) -> jax.Array:
    """max(x - theta, 0), or x where x > theta; arguments as in the public function."""
    full, valid, theta = _row(x, k, axis, where, offset, ddof)
    if fill == 0:
        over = jax.nn.relu(full - jnp.where(jnp.isfinite(theta), theta, 0))
        if huber_delta:
            quadratic, linear = over**2 / (2 * huber_delta), over - huber_delta / 2
            over = jnp.where(over < huber_delta, quadratic, linear)
        over = jnp.where(theta == -jnp.inf, full, jnp.where(theta == jnp.inf, 0, over))
    else:
        theta = jax.lax.stop_gradient(theta)
        top = jnp.max(jnp.where(valid, full, -jnp.inf), axis=axis, keepdims=True)
        keep = ((full > theta) | (full == top)) & (k > 0)
        over = jnp.where(keep, full, -jnp.inf)
    over = jnp.where(jnp.isnan(theta), jnp.nan, over)
    return jnp.where(valid, over, fill).astype(x.dtype)


def _row(x, k, axis, where, offset, ddof):
    """(x in the dtype of the statistics with 0 where not valid, valid, theta)."""
    full = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    valid = full != -jnp.inf
    if where is not None:
        valid &= jnp.broadcast_to(where, x.shape)
    full = jnp.where(valid, full, 0)
    n = jnp.sum(valid, axis=axis, keepdims=True)
    mean = jnp.sum(full, axis=axis, keepdims=True) / jnp.maximum(n, 1)
    squares = jnp.where(valid, jnp.square(full - mean), 0)
    variance = jnp.sum(squares, axis=axis, keepdims=True) / jnp.maximum(n - ddof, 1)
    # The inner selection keeps the derivative of the square root finite where it is not used.
    deviation = jnp.where(variance > 0, jnp.sqrt(jnp.where(variance > 0, variance, 1)), 0)
    quantile = jnp.asarray(gaussian_quantiles(k, x.shape[axis]), full.dtype)[n]
    reach = jnp.where(jnp.isfinite(quantile), quantile, 0) + jax.lax.stop_gradient(offset)
    theta = jnp.where(math.inf == jnp.abs(quantile), quantile, mean + deviation * reach)
    nan = jnp.any(valid & (jnp.isnan(full) | (full == jnp.inf)), axis=axis, keepdims=True)
    return full, valid, jnp.where(nan, jnp.nan, theta)
