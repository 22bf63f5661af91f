"""Statistical top-k: values against known numbers, rows that are not Gaussian, refusals."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.kernels import backend, statistical_threshold, statistical_top_k
from spark_dist.kernels.topk.statistical import reference

INF = math.inf
WAVE = np.sin(1.7 * np.arange(64)) + 0.01 * np.arange(64)


def normal(seed, *shape, mean=0.0, sd=1.0, dtype=jnp.float32):
    x = np.random.default_rng(seed).normal(mean, sd, shape)
    return jnp.asarray(x, dtype)


def test_ten_numbers_by_hand():
    x = jnp.arange(10.0)
    np.testing.assert_allclose(statistical_threshold(x, 2), [7.0481348258], rtol=1e-6)
    np.testing.assert_allclose(
        statistical_top_k(x, 2), [0] * 8 + [0.95186517, 1.95186517], atol=1e-6
    )
    np.testing.assert_allclose(statistical_threshold(x, 2, ddof=0), [6.9173729505], rtol=1e-6)
    np.testing.assert_allclose(
        statistical_top_k(x, 2, ddof=0),
        [0] * 7 + [0.08262705, 1.08262705, 2.08262705],
        atol=1e-6,
    )


def test_the_wave():
    x = jnp.asarray(WAVE, jnp.float32)
    y = statistical_top_k(x, 8)
    np.testing.assert_allclose(statistical_threshold(x, 8), [1.15369391], rtol=1e-6)
    assert jnp.count_nonzero(y) == 10
    np.testing.assert_allclose(jnp.sum(y), 1.88992302, rtol=1e-5)
    kept = statistical_top_k(x, 8, fill=-INF)
    np.testing.assert_array_equal(kept, jnp.where(y > 0, x, -INF))


def test_scores_of_the_spark_attention_example():
    scores = jnp.asarray([0.15, 0.9, -0.95, 0.7, 0.45, 0.1])
    np.testing.assert_allclose(statistical_threshold(scores, 2), [0.50637737], rtol=1e-6)
    weights = jax.nn.softmax(statistical_top_k(scores, 2, fill=-INF))
    np.testing.assert_allclose(weights, [0, 0.549834, 0, 0.450166, 0, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("share", "quantile"),
    [(0.02, 2.053749), (0.05, 1.644854), (0.08, 1.405072), (0.1, 1.281552), (0.25, 0.674490)],
)
def test_the_quantile(share, quantile):
    x = normal(0, 1000)
    theta = statistical_threshold(x, round(1000 * share))
    np.testing.assert_allclose(theta, np.mean(x) + np.std(x, ddof=1) * quantile, rtol=2e-5)


@pytest.mark.parametrize(("length", "k"), [(128, 16), (512, 41), (2048, 103), (13824, 1106)])
def test_cardinality_on_gaussian_rows(length, k):
    """Mean and spread of the count: d (p (1-p) - phi(z)^2 (1 + z^2/2)), no count 5 sd away."""
    rows = 400
    count = np.count_nonzero(
        statistical_top_k(normal(1, rows, length, mean=0.6, sd=2.7), k), axis=-1
    )
    p = k / length
    z = NormalDist().inv_cdf(1 - p)
    sd = math.sqrt(length * (p * (1 - p) - NormalDist().pdf(z) ** 2 * (1 + z * z / 2)))
    assert abs(count.mean() - k) < 1 + 4 * sd / math.sqrt(rows)
    assert np.all(abs(count - k) < 5 * sd + 1)
    assert 0.8 * sd < count.std() < 1.2 * sd


def test_axes_and_shapes():
    x = normal(2, 3, 40, 5)
    for axis in (1, -2):
        theta = statistical_threshold(x, 6, axis=axis)
        assert theta.shape == (3, 1, 5)
        for fill in (0.0, -INF):
            y = statistical_top_k(x, 6, axis=axis, fill=fill)
            moved = statistical_top_k(jnp.moveaxis(x, 1, -1), 6, fill=fill)
            np.testing.assert_allclose(y, jnp.moveaxis(moved, -1, 1), rtol=1e-5, atol=1e-6)
    assert statistical_top_k(jnp.zeros((2, 0)), 0).shape == (2, 0)
    assert statistical_threshold(jnp.zeros((0, 7)), 3).shape == (0, 1)


@pytest.mark.parametrize("fill", [0.0, -INF])
def test_valid_entries_decide_alone(fill):
    """Rows with 0 to 30 valid entries equal the same rows cut down to them."""
    x = normal(3, 31, 30, mean=5.0)
    where = np.arange(30)[None, :] < np.arange(31)[:, None]
    y = statistical_top_k(jnp.where(where, x, jnp.nan), 4, where=where, fill=fill)
    inline = statistical_top_k(jnp.where(where, x, -INF), 4, fill=fill)
    lowest = statistical_top_k(jnp.where(where, x, jnp.finfo(x.dtype).min), 4, fill=fill)
    for n in (0, 1, 4, 5, 17, 30):
        expected = np.full(30, fill, np.float32)
        if n:
            expected[:n] = statistical_top_k(x[n, :n], min(4, n), fill=fill)
        np.testing.assert_allclose(y[n], expected, rtol=1e-5, atol=1e-5, err_msg=str(n))
    np.testing.assert_array_equal(inline, y)
    np.testing.assert_array_equal(lowest[4:], y[4:])  # a short row keeps what it has


def test_where_broadcasts():
    x = normal(4, 3, 2, 16)
    causal = jnp.arange(16) < 12
    full = jnp.broadcast_to(causal, x.shape)
    np.testing.assert_array_equal(
        statistical_top_k(x, 3, where=causal), statistical_top_k(x, 3, where=full)
    )


def test_few_valid_entries_are_all_kept():
    x = jnp.asarray([[3.0, -2.0, 7.0, -1.0]])
    where = jnp.asarray([[True, True, False, False]])
    np.testing.assert_array_equal(statistical_top_k(x, 2, where=where), [[3, -2, 0, 0]])
    np.testing.assert_array_equal(
        statistical_top_k(x, 2, where=where, fill=-INF), [[3, -2, -INF, -INF]]
    )
    np.testing.assert_array_equal(statistical_threshold(x, 2, where=where), [[-INF]])
    np.testing.assert_array_equal(statistical_top_k(x, 4, huber_delta=0.5), x)


@pytest.mark.parametrize("fill", [0.0, -INF])
def test_nothing_asked_or_nothing_valid_is_all_fill(fill):
    x = normal(5, 2, 9)
    expected = np.full((2, 9), fill)
    np.testing.assert_array_equal(statistical_top_k(x, 0, fill=fill), expected)
    none = jnp.zeros((2, 9), bool)
    np.testing.assert_array_equal(statistical_top_k(x, 3, where=none, fill=fill), expected)
    np.testing.assert_array_equal(statistical_top_k(jnp.full((2, 9), -INF), 3, fill=fill), expected)
    np.testing.assert_array_equal(statistical_threshold(x, 0), [[INF], [INF]])


@pytest.mark.parametrize("value", [0.0, 0.1, -1000.3, 3e-5, 7e8])
@pytest.mark.parametrize("length", [1, 7, 777, 13824])
def test_constant_rows(value, length):
    x = jnp.full((2, length), value, jnp.float32)
    k = max(1, length // 12)
    if length > 1:
        np.testing.assert_array_equal(statistical_threshold(x, k), x[:, :1])
        np.testing.assert_array_equal(statistical_top_k(x, k), jnp.zeros_like(x))
        np.testing.assert_array_equal(statistical_top_k(x, k, offset=-9.0), jnp.zeros_like(x))
    np.testing.assert_array_equal(statistical_top_k(x, k, fill=-INF), x)  # all are the maximum
    padded = jnp.concatenate([jnp.full((2, 5), -INF), x, jnp.full((2, 3), -INF)], axis=1)
    if length > k:
        np.testing.assert_array_equal(statistical_top_k(padded, k), jnp.zeros_like(padded))
    np.testing.assert_array_equal(statistical_top_k(padded, k, fill=-INF), padded)


def test_one_outlier():
    """30 sd away it leaves most of the others, 300 sd away almost none: 1,010 and 2 of 1,106."""
    x = np.array(normal(6, 3, 13824))
    x[:, 100] = [30, 100, 300]
    count = np.count_nonzero(statistical_top_k(jnp.asarray(x), 1106), axis=-1)
    assert np.all(abs(count - [1010, 444, 2]) < [100, 70, 4])
    assert np.all(
        np.asarray(statistical_top_k(jnp.asarray(x), 1106, fill=-INF))[:, 100] == x[:, 100]
    )


def test_the_maximum_survives_any_threshold():
    x = normal(7, 5, 33)
    y = statistical_top_k(x, 2, fill=-INF, offset=100.0)
    np.testing.assert_array_equal(jnp.max(y, axis=-1), jnp.max(x, axis=-1))
    assert np.all(np.isfinite(y).sum(axis=-1) == 1)


@pytest.mark.parametrize("fill", [0.0, -INF])
@pytest.mark.parametrize("k", [3, 40])
@pytest.mark.parametrize("bad", [np.nan, INF])
def test_a_bad_entry_shows_and_stays_in_its_row(fill, k, bad):
    x = normal(8, 3, 40).at[1, 7].set(bad)
    y = np.asarray(statistical_top_k(x, k, fill=fill))
    assert np.all(np.isnan(y[1]))
    assert not np.any(np.isnan(y[[0, 2]]))
    theta = statistical_threshold(x, k)
    assert np.isnan(theta[1, 0])
    assert not np.any(x[1] > theta[1]), "masks and selections are empty"
    where = jnp.arange(40) != 7
    hidden = np.asarray(statistical_top_k(x, k, where=where, fill=fill))
    assert not np.any(np.isnan(hidden))
    with_padding = statistical_top_k(x.at[:, 0].set(-INF), k, fill=fill)
    np.testing.assert_array_equal(with_padding[:, 0], [fill] * 3)


@pytest.mark.parametrize("fill", [0.0, -INF])
@pytest.mark.parametrize("masked", [False, True])
def test_a_nan_survives_compiled_reductions(fill, masked):
    """Compiled for CPU, `jnp.max` and sums of maxima drop a NaN; nothing here may rest on them."""

    @jax.jit
    def total(x, where):
        y = statistical_top_k(x, 9, where=where if masked else None, fill=fill)
        return jnp.sum(jnp.where(where, y, 0.0) if fill == 0 else jax.nn.softmax(y), axis=-1)

    x = normal(8, 4, 1024).at[1, 7].set(jnp.nan).at[2, 8].set(INF).at[3].set(jnp.nan)
    where = jnp.arange(1024) != 3
    np.testing.assert_array_equal(
        np.isnan(total(x, jnp.broadcast_to(where, x.shape))), [False, True, True, True]
    )


def test_squares_that_overflow_show():
    x = normal(9, 1, 64) * 1e25
    assert np.all(np.isnan(statistical_top_k(x, 5)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types_keep_wide_statistics(dtype):
    """bfloat16 statistics would keep 1,097 of 1,106 (and none at mean 300): here they are wide."""
    x = normal(10, 8, 13824, mean=3.0, dtype=dtype)
    wide = x.astype(jnp.float32)
    theta = statistical_threshold(x, 1106)
    assert theta.dtype == jnp.float32
    np.testing.assert_array_equal(theta, statistical_threshold(wide, 1106))
    offset = 0.37  # not a bfloat16 number
    y = statistical_top_k(x, 1106, offset=offset)
    assert y.dtype == dtype
    expected = statistical_top_k(wide, 1106, offset=offset)
    np.testing.assert_array_equal(y, expected.astype(dtype))
    np.testing.assert_array_equal(
        statistical_top_k(x, 1106, fill=-INF, offset=jnp.asarray(offset, jnp.float32)),
        jnp.where(expected > 0, x, jnp.asarray(-INF, dtype)),
    )


def test_offset_moves_the_threshold_by_deviations():
    x = normal(11, 4, 100, mean=2.0, sd=3.0)
    base, sd = statistical_threshold(x, 10), jnp.std(x, axis=-1, ddof=1, keepdims=True)
    moved = jax.jit(lambda x, z: statistical_threshold(x, 10, offset=z))(x, jnp.float32(0.25))
    np.testing.assert_allclose(moved, base + 0.25 * sd, rtol=1e-5)
    each = jnp.arange(4.0)[:, None]
    np.testing.assert_allclose(
        statistical_threshold(x, 10, offset=each), base + each * sd, rtol=1e-5
    )


def test_a_large_mean_costs_nothing():
    x = normal(12, 4, 13824, mean=1000.0)
    exact = np.asarray(x, np.float64)
    theta = exact.mean(-1) + exact.std(-1, ddof=1) * NormalDist().inv_cdf(1 - 1106 / 13824)
    np.testing.assert_allclose(statistical_threshold(x, 1106)[:, 0], theta, atol=1.3e-4)
    holes = x.at[:, ::3].set(-INF)
    np.testing.assert_array_equal(
        statistical_top_k(holes, 700)[:, 1::3], statistical_top_k(x, 700, where=holes > 0)[:, 1::3]
    )
    exact = exact[:, np.arange(13824) % 3 > 0]
    theta = exact.mean(-1) + exact.std(-1, ddof=1) * NormalDist().inv_cdf(1 - 700 / 9216)
    np.testing.assert_allclose(statistical_threshold(holes, 700)[:, 0], theta, atol=1.3e-4)


def test_huber_smoothing():
    x = normal(13, 6, 200)
    plain = np.asarray(statistical_top_k(x, 30))
    delta = 0.3
    smooth = statistical_top_k(x, 30, huber_delta=delta)
    expected = np.where(plain < delta, plain**2 / (2 * delta), plain - delta / 2)
    np.testing.assert_allclose(smooth, expected, rtol=1e-5, atol=1e-7)
    gaps = [
        np.max(abs(np.asarray(statistical_top_k(x, 30, huber_delta=d)) - plain))
        for d in (0.1, 0.01, 1e-4)
    ]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4


@pytest.mark.parametrize("huber", [0.0, 0.2])
def test_batched_and_compiled_forms_agree(huber):
    x = normal(14, 3, 5, 64)
    whole = statistical_top_k(x, 9, huber_delta=huber)

    def operator(row):
        return statistical_top_k(row, 9, huber_delta=huber)

    np.testing.assert_allclose(jax.jit(operator)(x), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(jax.vmap(operator))(x), whole, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        jax.vmap(operator, in_axes=2, out_axes=2)(jnp.moveaxis(x, 1, 2)),
        jnp.moveaxis(whole, 1, 2),
        rtol=1e-5,
        atol=1e-6,
    )
    kept = jax.vmap(lambda row: statistical_top_k(row, 9, fill=-INF))(x)
    np.testing.assert_array_equal(kept, statistical_top_k(x, 9, fill=-INF))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": -1}, "k=-1 must lie between 0 and the row length 8"),
        ({"k": 9}, "k=9 must lie between 0 and the row length 8"),
        ({"k": 2, "axis": 0}, None),
        ({"k": 4, "axis": 0}, "k=4 must lie between 0 and the row length 3"),
        ({"k": 2, "axis": 2}, r"axis=2 is outside an array of shape \(3, 8\)"),
        ({"k": 2, "fill": 1.0}, "fill=1.0"),
        ({"k": 2, "fill": math.nan}, "fill=nan"),
        ({"k": 2, "ddof": -1}, "ddof=-1"),
        ({"k": 2, "huber_delta": -0.5}, "huber_delta=-0.5"),
        ({"k": 2, "huber_delta": 0.5, "fill": -INF}, "huber_delta=0.5 smooths fill=0.0 only"),
        ({"k": 2, "where": np.ones((2, 8), bool)}, r"where of shape \(2, 8\)"),
        ({"k": 2, "where": np.ones((3, 8))}, "where has dtype"),
        ({"k": 2, "offset": np.ones(8)}, r"offset of shape \(8,\)"),
    ],
)
def test_refusals_name_the_value(arguments, message):
    x = normal(15, 3, 8)
    if message is None:
        statistical_top_k(x, **arguments)
        return
    with pytest.raises(ValueError, match=message):
        statistical_top_k(x, **arguments)
    if not {"fill", "huber_delta"} & set(arguments):
        with pytest.raises(ValueError, match=message):
            statistical_threshold(x, **arguments)


def test_integers_are_refused():
    with pytest.raises(ValueError, match="int32"):
        statistical_top_k(jnp.arange(8), 2)
    with pytest.raises(TypeError):
        statistical_top_k(jnp.arange(8.0), 2.5)  # pyright: ignore[reportArgumentType]


def test_the_serving_backend_has_a_name():
    assert backend() == "xla"


def test_reference_agrees():
    x = normal(16, 5, 120, mean=1.0)
    where = jnp.asarray(np.random.default_rng(1).random((5, 120)) < 0.6)
    for kwargs in ({}, {"ddof": 0}, {"offset": 0.3}, {"huber_delta": 0.2}, {"fill": -INF}):
        np.testing.assert_allclose(
            statistical_top_k(x, 20, where=where, **kwargs),
            reference.statistical_top_k(x, 20, where=where, **kwargs),
            rtol=1e-5,
            atol=1e-5,
        )


def test_one_program_without_host_and_without_copies_of_the_row():
    rows = normal(17, 256, 1024)
    compiled: Any = jax.jit(lambda x: statistical_top_k(x, 82)).lower(rows).compile()
    assert "custom_call_target" not in compiled.as_text()
    stored = compiled.memory_analysis().temp_size_in_bytes
    assert stored < 256 * 1024, f"{stored} bytes beside the result of {4 * 256 * 1024}"
