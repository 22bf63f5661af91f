"""Statistical top-k: arguments checked at the door, then handed to the serving backend.

    x = jax.random.normal(jax.random.key(0), (4, 13824))
    y = statistical_top_k(x, 1106)           # about 1106 entries of each row are above zero

Source: arXiv 2506.06644, sections 2.1 and D.4, eq. 4 to 6.
"""

from __future__ import annotations

import math
import operator

import jax
import jax.numpy as jnp
from jax import lax

from . import xla


def statistical_threshold(
    x: jax.Array,
    k: int,
    *,
    axis: int = -1,
    where: jax.Array | None = None,
    offset: jax.typing.ArrayLike = 0.0,
    ddof: float = 1,
    axis_name: str | tuple[str, ...] | None = None,
) -> jax.Array:
    """The value that about k entries of each row exceed if the row is normally distributed.

    theta = mean + sd * (Q(1 - k/n) + offset), with n, mean and sd over the valid entries and Q
    the inverse of the normal distribution function.

    Args:
      x: array of any float dtype; rows run along `axis`.
      k: how many entries to keep, 0 <= k <= row length; a Python integer.
      axis: the axis of a row.
      where: bool, broadcasts to x: the valid entries. An entry of -inf counts as not valid, with
        or without `where` (in float32 any below -2^98, for the lowest float often stands for
        -inf). An entry of +inf, or one whose square is not finite, makes its row NaN.
      offset: scalar or array that broadcasts to the result; may be traced. Gets no gradient.
      ddof: the variance divides by max(n - ddof, 1).
      axis_name: mesh axis or axes over which rows are sharded, inside `shard_map`. n, mean and
        the centred sum of squares are merged exactly by one collective of these three scalars a
        row and shard. k then counts over the whole row.

    Returns:
      theta, shape of x with `axis` of size 1, dtype promote_types(x.dtype, float32). -inf where
      n <= k, else +inf where k = 0, NaN where a valid entry is NaN. Differentiable by x.

    Raises:
      ValueError: k is negative or above the row length, x is not of a float dtype, ddof is
        negative, or `where` or `offset` does not broadcast.
    """
    x = jnp.asarray(x)
    options = _options(x, k, axis, 0.0, ddof, axis_name, 0.0)
    where, offset = _operands(x, where, offset, options)
    return xla.theta(x, where, offset, options)


def statistical_top_k(
    x: jax.Array,
    k: int,
    *,
    axis: int = -1,
    where: jax.Array | None = None,
    fill: float = 0.0,
    offset: jax.typing.ArrayLike = 0.0,
    ddof: float = 1,
    axis_name: str | tuple[str, ...] | None = None,
    huber_delta: float = 0.0,
) -> jax.Array:
    """Keep about k entries of each row: those above `statistical_threshold`.

    fill=0.0 returns max(x - theta, 0), and its gradient flows through theta too (closed form).
    fill=-inf returns x where x > theta and -inf elsewhere, for scores before a softmax; the
    maximum of a row is always kept (with its equals) and no gradient flows through theta.

    Rows of at most k valid entries keep them all, unchanged. For k = 0 and where nothing is
    valid the result is fill. A NaN among the valid entries makes all of them NaN. Entries that
    are not valid are fill and get gradient 0. On a row without spread fill=0.0 gives 0, with
    gradient 0.

    Args:
      x, k, axis, where, offset, ddof, axis_name: as in `statistical_threshold`. Over a sharded
        row fill=-inf sends a fourth scalar, the maximum; the backward pass of fill=0.0 sums one.
      fill: 0.0 or -inf.
      huber_delta: with fill=0.0, replaces z = max(x - theta, 0) by z^2 / (2 delta) up to delta
        and by z - delta/2 above, so that the first derivative is continuous.

    Returns:
      Shape and dtype of x. Statistics and comparison are at least float32.

    Raises:
      ValueError: as in `statistical_threshold`; fill is neither 0 nor -inf; huber_delta is
        negative, not finite, or used with fill=-inf.
    """
    x = jnp.asarray(x)
    options = _options(x, k, axis, fill, ddof, axis_name, huber_delta)
    where, offset = _operands(x, where, offset, options)
    if options.fill == 0:
        return xla.soft_threshold(x, where, offset, options)
    return xla.hard_threshold(x, where, offset, options)


def _options(x, k, axis, fill, ddof, axis_name, huber_delta) -> xla.Options:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x has dtype {x.dtype}; give it a floating dtype")
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis={axis} is outside an array of shape {x.shape}")
    axis %= x.ndim
    k = operator.index(k)
    length = x.shape[axis] * (1 if axis_name is None else lax.axis_size(axis_name))
    if not 0 <= k <= length:
        raise ValueError(f"k={k} must lie between 0 and the row length {length}")
    if fill not in (0.0, -math.inf):
        raise ValueError(f"fill={fill} must be 0.0 or -inf")
    if not ddof >= 0:
        raise ValueError(f"ddof={ddof} must not be negative")
    if not 0 <= huber_delta < math.inf:
        raise ValueError(f"huber_delta={huber_delta} must be finite and not negative")
    if huber_delta and fill != 0:
        raise ValueError(f"huber_delta={huber_delta} smooths fill=0.0 only; fill is {fill}")
    return xla.Options(k, axis, float(fill), float(ddof), axis_name, float(huber_delta))


def _operands(x, where, offset, options):
    row = tuple(1 if i == options.axis else size for i, size in enumerate(x.shape))
    if where is not None:
        where = jnp.asarray(where)
        if where.dtype != bool:
            raise ValueError(f"where has dtype {where.dtype}; give it bool")
        where = _fitting("where", where, x.shape)
    offset = jnp.asarray(offset, jnp.promote_types(x.dtype, jnp.float32))
    return where, lax.stop_gradient(_fitting("offset", offset, row))


def _fitting(name: str, value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`value` with leading axes of size 1 up to the rank of `shape`, to which it broadcasts."""
    padded = (1,) * (len(shape) - value.ndim) + value.shape
    if len(padded) > len(shape) or any(a not in (1, b) for a, b in zip(padded, shape, strict=True)):
        raise ValueError(f"{name} of shape {value.shape} does not broadcast to {shape}")
    return value.reshape(padded)
