"""Statistical top-k in XLA operations with the closed-form gradient.

The forward pass is two rounds of reductions over x and one elementwise pass, each fused so that
nothing as large as x is stored but the result; the backward pass keeps x and a few scalars a row.

XLA for CPU hands a reduction to vector code only if all its steps are sums, products, minima and
maxima; a comparison inside makes it 3 to 6 times slower, and a step shared by two reductions is
stored at full size. That vector code drops a NaN in a minimum or maximum, also in `jnp.max`, where
a sum keeps it. These three decide the form of `local_moments` (measured with JAX 0.10 and 0.12).

Entries that are not valid are set to -inf first, and -inf means "not valid" from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .quantiles import gaussian_quantiles


class Options(NamedTuple):
    """What is fixed when the program is traced."""

    k: int
    axis: int
    fill: float
    ddof: float
    axis_name: str | tuple[str, ...] | None
    huber_delta: float


class Threshold(NamedTuple):
    """The threshold of each row and its derivative: d theta / d x_i = flat + slope (x_i - mean)."""

    theta: jax.Array
    mean: jax.Array
    flat: jax.Array
    slope: jax.Array
    top: jax.Array | None


def _floor(x: jax.Array) -> float:
    """-2^100 in float32: far below any entry whose square is finite; 2^27 of them sum finitely."""
    return -(2.0 ** (jnp.finfo(x.dtype).maxexp - 28))


def _valid(x: jax.Array) -> jax.Array:
    """Where x is not -inf, nor near it: above -2^98 in float32. True at NaN."""
    return ~(x <= _floor(x) / 4)


def _centred(x: jax.Array, mean: jax.Array) -> jax.Array:
    """x - mean where valid, else 0; no -inf on the way, so that derivatives are finite too."""
    return jnp.where(_valid(x), x, mean) - mean


def local_moments(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Count, mean and centred sum of squares of the valid entries: three rows.

    A first sum gives the mean; where it is -inf, entries are not valid, and a second one, of
    entries raised to a very low floor, tells how many. Such a row is centred at its least valid
    entry instead, and everything below is raised to that, where it adds 0 to all sums. The second
    round sums the differences from the centre and their squares; the first of these corrects the
    mean, whose error so comes down from that of a long sum to one rounding. A sum of squares that
    is nothing but the rounding of that correction is set to 0: a constant row has deviation 0
    exactly. The mean is NaN where an entry is NaN or +inf.
    """
    length, floor = x.shape[axis], _floor(x)
    total = partial(jnp.sum, axis=axis, keepdims=True)

    first = total(x)
    holed = first < floor / 2
    holes = jnp.round(total(jnp.maximum(x, floor)) / floor)
    n = length - jnp.where(holed, holes, 0)
    # The least valid entry: the parabola y (1 - 4 y / floor) is y, but -y at y = floor / 2.
    y = jnp.maximum(x, floor / 2)
    least = jnp.min(y * (1 - y * (4 / floor)), axis=axis, keepdims=True, initial=jnp.inf)

    centre = jnp.where(holed, least, first / max(length, 1))
    lowest = jnp.where(holed, least, -jnp.inf)
    error = total(jnp.maximum(x, lowest) - centre) / jnp.maximum(n, 1)
    # The same values under another name, so that the two reductions share no step of full size.
    centre_again, lowest_again = lax.optimization_barrier((centre, lowest))
    squares = total(jnp.square(jnp.maximum(x, lowest_again) - centre_again))

    mean = jnp.where(n > 0, centre + error, 0)
    mean = jnp.where(first < jnp.inf, mean, jnp.nan)
    m2 = squares - n * error * error
    noise = jnp.where(holed, 0, min(length * float(jnp.finfo(x.dtype).eps), 0.01)) * squares
    return n, mean, jnp.where(m2 < noise, 0, m2)


def merge_moments(
    n: jax.Array, mean: jax.Array, m2: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moments of the union of parts that lie along axis 0; exact, Chan et al. 1979.

    Means are merged as differences from one of them: their common part, however large, cancels.
    """
    origin = jnp.max(jnp.where(n > 0, mean, -jnp.inf), axis=0)
    origin = jnp.where(origin == -jnp.inf, 0, origin)
    count = jnp.sum(n, axis=0)
    merged = origin + jnp.sum(n * (mean - origin[None]), axis=0) / jnp.maximum(count, 1)
    return count, merged, jnp.sum(m2 + n * jnp.square(mean - merged[None]), axis=0)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _saved_moments(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`local_moments` that keeps x and rows for the backward pass."""
    return local_moments(x, axis)


def _moments_forward(x, axis):
    n, mean, m2 = local_moments(x, axis)
    return (n, mean, m2), (x, n, mean)


def _moments_backward(axis, saved, g):
    x, n, mean = saved
    _, g_mean, g_m2 = g
    each = g_mean / jnp.maximum(n, 1) + 2 * g_m2 * _centred(x, mean)
    return (jnp.where(_valid(x), each, 0),)


_saved_moments.defvjp(_moments_forward, _moments_backward)


def _gathered(rows: list[jax.Array], axis_name: str | tuple[str, ...]) -> jax.Array:
    """[rows, shards, ...]: the one collective. Typed as equal on all shards where types tell."""
    x = jnp.stack(rows)
    names = {axis_name} if isinstance(axis_name, str) else set(axis_name)
    typed = names <= jax.typeof(x).manual_axis_type.varying
    return lax.all_gather(x, axis_name, axis=1, to="invarying" if typed else "varying")


def prepare(x: jax.Array, where: jax.Array | None) -> jax.Array:
    """x in the dtype of the statistics, at least float32, with holes where it is not valid."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return x if where is None else jnp.where(where, x, -jnp.inf)


def threshold(
    x: jax.Array, offset: jax.Array, options: Options, moments: Callable[..., Any] = _saved_moments
) -> Threshold:
    """The threshold of each row of `x = prepare(...)`; offset broadcasts against the rows."""
    n, mean, m2 = moments(x, options.axis)
    length = x.shape[options.axis]
    rows = [n, mean, m2]
    if options.fill != 0:
        rows.append(jnp.max(x, axis=options.axis, keepdims=True, initial=-jnp.inf))
    if options.axis_name is not None:
        length *= lax.axis_size(options.axis_name)
        parts = _gathered(rows, options.axis_name)
        rows = [*merge_moments(*parts[:3]), *jnp.max(parts[3:], axis=1)]
    n, mean, m2 = rows[:3]

    table = jnp.asarray(gaussian_quantiles(options.k, length), x.dtype)
    quantile = table.at[jnp.where(n > 0, n, 0).astype(jnp.int32)].get(mode="clip")
    finite = jnp.isfinite(quantile)
    reach = jnp.where(finite, quantile + offset, 0)

    degrees = jnp.maximum(n - options.ddof, 1)
    spread = m2 > 0
    deviation = jnp.where(spread, jnp.sqrt(jnp.where(spread, m2, 1) / degrees), 0)
    theta = jnp.where(finite, mean + deviation * reach, quantile)
    bad = jnp.isnan(mean) | (finite & ~jnp.isfinite(m2))
    theta = jnp.where(bad, jnp.nan, theta)
    slope = jnp.where(spread, reach / (degrees * jnp.where(spread, deviation, 1)), 0)
    return Threshold(
        theta, mean, 1 / jnp.maximum(n, 1), slope, rows[3] if options.fill != 0 else None
    )


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _soft(x: jax.Array, where: jax.Array | None, offset: jax.Array, options: Options) -> jax.Array:
    return _soft_forward(x, where, offset, options)[0]


def _soft_forward(x, where, offset, options):
    full = prepare(x, where)
    row = threshold(full, offset, options, local_moments)
    plain = full - jnp.where(row.theta == -jnp.inf, 0, row.theta)
    over = jnp.maximum(plain, 0)
    if options.huber_delta:
        inner = jnp.minimum(over, options.huber_delta)
        over = inner * (over - inner / 2) / options.huber_delta
    over = jnp.where(row.theta > -jnp.inf, over, plain)  # plain where all is kept, or theta is NaN
    return jnp.where(_valid(full), over, 0).astype(x.dtype), (x, where, row)


def _soft_backward(options, saved, g):
    x, where, row = saved
    full = prepare(x, where)
    g = g.astype(full.dtype)
    if options.huber_delta:
        over = jnp.maximum(full - jnp.maximum(row.theta, _floor(full)), 0)
        g *= jnp.minimum(over / options.huber_delta, 1)
    passed = jnp.where(_valid(full) & (full > row.theta), g, 0)
    pull = jnp.sum(passed, axis=options.axis, keepdims=True)  # what theta receives, negated
    if options.axis_name is not None:
        pull = lax.psum(pull, options.axis_name)  # the one scalar of the backward pass
    pull = jnp.where(jnp.isinf(row.theta), 0, pull)  # such rows have no threshold
    through = jnp.where(_valid(full), row.flat + row.slope * _centred(full, row.mean), 0)
    return (passed - pull * through).astype(x.dtype), None, None


_soft.defvjp(_soft_forward, _soft_backward)


@partial(jax.jit, static_argnames="options")
def theta(x: jax.Array, where: jax.Array | None, offset: jax.Array, options: Options) -> jax.Array:
    """The threshold of each row."""
    return threshold(prepare(x, where), offset, options).theta


@partial(jax.jit, static_argnames="options")
def soft_threshold(
    x: jax.Array, where: jax.Array | None, offset: jax.Array, options: Options
) -> jax.Array:
    """max(x - theta, 0) for each row; 0 where not valid; x in rows of at most k valid entries."""
    return _soft(x, where, offset, options)


@partial(jax.jit, static_argnames="options")
def hard_threshold(
    x: jax.Array, where: jax.Array | None, offset: jax.Array, options: Options
) -> jax.Array:
    """x where above theta or equal to the row's maximum, else -inf; no gradient through theta."""
    full = lax.stop_gradient(prepare(x, where))
    row = threshold(full, offset, options, local_moments)
    valid, bad = _valid(full), jnp.isnan(row.theta)
    keep = valid & ~bad & ((full > row.theta) | (full == row.top)) & (options.k > 0)
    return jnp.where(keep, x, jnp.where(valid & bad, jnp.nan, -jnp.inf).astype(x.dtype))
