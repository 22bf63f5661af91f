"""Statistical top-k against numpy in float64, on rows that hypothesis chooses."""

from __future__ import annotations

import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_dist.kernels import statistical_threshold, statistical_top_k

INF = math.inf
LENGTHS = (1, 2, 5, 33)  # few, for each length and k compiles


@st.composite
def cases(draw):
    """A row, k, mask, offset and ddof; entries span 12 decades, repeat, and may be -inf."""
    length = draw(st.sampled_from(LENGTHS))
    k = draw(st.sampled_from(sorted({0, 1, length // 4, length - 1, length})))
    scale = 10.0 ** draw(st.integers(-6, 6))
    shift = draw(st.sampled_from([0.0, 0.0, 1.0, -30.0]))
    entry = st.one_of(
        st.floats(-1, 1, width=32),
        st.sampled_from([0.0, -0.0, 1.0, 0.5]),
        st.just(-INF) if draw(st.booleans()) else st.just(0.25),
    )
    values = draw(st.lists(entry, min_size=length, max_size=length))
    row = (np.asarray(values) + shift) * scale
    where = np.asarray(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
    if draw(st.booleans()):
        where[:] = True
    offset = draw(st.sampled_from([0.0, 0.5, -1.0]))
    return row.astype(np.float32), k, where, np.float32(offset), draw(st.sampled_from([0, 1]))


def by_numpy(row, k, where, offset, ddof):
    """theta of one row in float64."""
    valid = row[where & (row > -INF)].astype(np.float64)
    if k == 0:
        return INF
    if len(valid) <= k:
        return -INF
    quantile = NormalDist().inv_cdf(1 - k / len(valid))
    sd = math.sqrt(np.sum((valid - valid.mean()) ** 2) / max(len(valid) - ddof, 1))
    return valid.mean() + sd * (quantile + float(offset))


threshold = jax.jit(statistical_threshold, static_argnames=("k", "ddof"))
top_k = jax.jit(statistical_top_k, static_argnames=("k", "ddof", "fill"))


@settings(max_examples=150)
@given(cases())
def test_against_numpy(case):
    row, k, where, offset, ddof = case
    valid = where & (row > -INF)
    theta = by_numpy(row, k, where, offset, ddof)
    found = float(threshold(row, k=k, where=where, offset=offset, ddof=ddof)[0])
    size = np.max(abs(row[valid]), initial=0.0)
    slack = 2e-6 * size + 1e-30
    if math.isinf(theta):
        assert found == theta
    else:
        assert abs(found - theta) <= slack

    soft = np.asarray(top_k(row, k=k, where=where, offset=offset, ddof=ddof))
    hard = np.asarray(top_k(row, k=k, where=where, offset=offset, ddof=ddof, fill=-INF))
    assert np.all(soft[~valid] == 0)
    assert np.all(hard[~valid] == -INF)
    if not valid.any() or k == 0:
        assert np.all(soft == 0)
        assert np.all(hard == -INF)
    elif theta == -INF:
        np.testing.assert_array_equal(soft[valid], row[valid])
        np.testing.assert_array_equal(hard[valid], row[valid])
    else:
        np.testing.assert_allclose(soft, np.where(valid, np.maximum(row - theta, 0), 0), atol=slack)
        kept = np.isfinite(hard)
        np.testing.assert_array_equal(hard[kept], row[kept])
        assert np.all(kept[valid & (row == row[valid].max())])
        assert np.all(kept[valid & (row > theta + slack)])
        below = valid & (row < theta - slack) & (row < row[valid].max())
        assert not np.any(kept[below])


@settings(max_examples=60)
@given(cases(), st.integers(0, 2**31))
def test_order_does_not_matter(case, seed):
    row, k, where, offset, ddof = case
    order = np.random.default_rng(seed).permutation(len(row))
    found = np.asarray(top_k(row, k=k, where=where, offset=offset, ddof=ddof))[order]
    moved = top_k(row[order], k=k, where=where[order], offset=offset, ddof=ddof)
    size = np.max(abs(row[where & (row > -INF)]), initial=0.0)
    np.testing.assert_allclose(moved, found, atol=2e-6 * size)


@settings(max_examples=60)
@given(cases(), st.sampled_from([2.0**-8, 2.0, 1024.0]))
def test_scales_with_the_row(case, factor):
    """A power of two changes no rounding."""
    row, k, where, offset, ddof = case
    found = top_k(row, k=k, where=where, offset=offset, ddof=ddof)
    scaled = top_k(row * np.float32(factor), k=k, where=where, offset=offset, ddof=ddof)
    np.testing.assert_array_equal(scaled, found * jnp.float32(factor))


@settings(max_examples=60)
@given(cases())
def test_gradient_is_finite_and_blind_to_the_invalid(case):
    row, k, where, offset, ddof = case

    def total(x):
        return jnp.sum(top_k(x, k=k, where=where, offset=offset, ddof=ddof) / 1024)

    slope = np.asarray(jax.grad(total)(row))
    assert np.all(np.isfinite(slope))
    assert np.all(slope[~(where & (row > -INF))] == 0)


@pytest.mark.parametrize("shape", ["sorted", "two values", "heavy tail", "narrow band"])
def test_rows_far_from_gaussian(shape):
    random = np.random.default_rng(0)
    row = {
        "sorted": np.sort(random.normal(size=4096)),
        "two values": np.where(random.random(4096) < 0.1, 5.0, -1.0),
        "heavy tail": random.standard_t(1.5, 4096),
        "narrow band": 7 + 1e-3 * random.random(4096),
    }[shape].astype(np.float32)
    theta = by_numpy(row, 200, np.ones(4096, bool), 0.0, 1)
    found = float(threshold(row, k=200)[0])
    assert abs(found - theta) <= 3e-7 * np.max(abs(row))
    soft = np.asarray(top_k(row, k=200))
    np.testing.assert_array_equal(soft, np.maximum(row - np.float32(found), 0))
