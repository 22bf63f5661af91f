"""Gradients of statistical top-k: closed form, finite differences, rows where it is delicate."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.kernels import statistical_threshold, statistical_top_k
from spark_dist.kernels.topk.statistical import reference
from spark_dist.kernels.topk.statistical.quantiles import gaussian_quantiles

INF = math.inf


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def rows(seed, *shape, mean=0.6, sd=2.7):
    return np.random.default_rng(seed).normal(mean, sd, shape)


def pulled_back(function, x, g, *args, **kwargs):
    def pull(x, g):
        return jax.vjp(lambda x: function(x, *args, **kwargs), x)[1](g)[0]

    return np.asarray(jax.jit(pull)(x, g))


def closed_form(x, g, k, *, valid=None, offset=0.0, ddof=1, huber=0.0):
    """g m - S (1/n + Q (x - mean) / ((n - ddof) sd)) for one row, in numpy."""
    valid = np.ones(x.shape, bool) if valid is None else valid
    n, mean, sd = valid.sum(), x[valid].mean(), x[valid].std(ddof=ddof)
    reach = gaussian_quantiles(k, len(x))[n] + offset
    theta = mean + sd * reach
    passed = np.where(valid & (x > theta), g, 0)
    if huber:
        passed = passed * np.clip((x - theta) / huber, 0, 1)
    return passed - valid * passed.sum() * (1 / n + reach * (x - mean) / ((n - ddof) * sd))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("length", [20, 512])
@pytest.mark.parametrize(
    "kwargs", [{}, {"ddof": 0}, {"offset": -0.4}, {"huber": 0.5}, {"offset": 0.2, "huber": 2.0}]
)
def test_equals_the_closed_form(length, kwargs):
    x, g, k = rows(0, 4, length), rows(1, 4, length), length // 8
    where = np.random.default_rng(2).random(x.shape) < 0.7
    for valid in (None, where):
        options = {("huber_delta" if name == "huber" else name): v for name, v in kwargs.items()}
        found = pulled_back(statistical_top_k, x, g, k, where=valid, **options)
        assert found.dtype == np.float64
        for row in range(4):
            mask = None if valid is None else valid[row]
            expected = closed_form(x[row], g[row], k, valid=mask, **kwargs)
            np.testing.assert_allclose(found[row], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kwargs", [{}, {"offset": 0.3}, {"huber_delta": 0.8}])
def test_equals_finite_differences(kwargs):
    x, g = rows(3, 24), rows(4, 24)

    def inner(x):
        return jnp.vdot(statistical_top_k(x, 5, **kwargs), g)

    found = jax.grad(inner)(x)
    step = 1e-6
    shifted = jax.jit(jax.vmap(inner))
    steps = step * np.eye(24)
    numeric = (shifted(x + steps) - shifted(x - steps)) / (2 * step)
    np.testing.assert_allclose(found, numeric, atol=1e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kwargs", [{}, {"ddof": 0, "offset": 0.2}, {"huber_delta": 0.3}])
def test_equals_the_reference_differentiated(kwargs):
    x, g = rows(5, 3, 60), rows(6, 3, 60)
    where = np.random.default_rng(7).random(x.shape) < [[0.05], [0.5], [0.9]]
    x[:, 3] = -INF
    for fill in (0.0, -INF):
        options = kwargs if fill == 0 else {n: v for n, v in kwargs.items() if n != "huber_delta"}
        found, expected = (
            pulled_back(f, x, g, 8, where=where, fill=fill, **options)
            for f in (statistical_top_k, reference.statistical_top_k)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        assert np.all(found[~where] == 0)


@pytest.mark.usefixtures("float64")
def test_threshold_is_differentiable():
    x, g = rows(8, 3, 40), rows(9, 3, 1)
    x[0, :4] = -INF
    found, expected = (
        pulled_back(f, x, g, 5, offset=0.1)
        for f in (statistical_threshold, reference.statistical_threshold)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert np.all(pulled_back(statistical_threshold, x, g, 40) == 0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kwargs", [{}, {"huber_delta": 0.4}, {"where": np.arange(18) % 5 > 0}])
def test_second_order(kwargs):
    x, g = rows(10, 18), rows(11, 18)
    x[7] = -INF

    def inner(x, function):
        return jnp.vdot(jnp.sin(function(x, 4, **kwargs)), g)

    found = jax.hessian(inner)(x, statistical_top_k)
    expected = jax.hessian(inner)(x, reference.statistical_top_k)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
    twice = jax.jacrev(jax.jacrev(inner))(x, statistical_top_k)
    np.testing.assert_allclose(twice, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.usefixtures("float64")
def test_huber_gradient_tends_to_the_plain_one():
    x, g = rows(12, 300), rows(13, 300)
    plain = pulled_back(statistical_top_k, x, g, 40)
    far, near = (
        np.max(abs(pulled_back(statistical_top_k, x, g, 40, huber_delta=delta) - plain))
        for delta in (2.0, 1e-9)
    )
    assert near < 1e-9
    assert far > 1e-3


def test_minus_infinity_form_passes_no_gradient_through_theta():
    x = jnp.asarray(rows(14, 2, 30), jnp.float32)
    g = jnp.asarray(rows(15, 2, 30), jnp.float32)
    kept = np.isfinite(statistical_top_k(x, 6, fill=-INF))
    found = pulled_back(statistical_top_k, x, g, 6, fill=-INF)
    np.testing.assert_array_equal(found, np.where(kept, g, 0))


@pytest.mark.usefixtures("float64")
def test_softmax_needs_no_gradient_through_theta():
    x, g = rows(16, 40), rows(17, 40)

    def through_theta(x):
        y = statistical_top_k(x, 9)
        return jnp.vdot(jax.nn.softmax(jnp.where(y > 0, y, -jnp.inf)), g)

    def without(x):
        return jnp.vdot(jax.nn.softmax(statistical_top_k(x, 9, fill=-INF)), g)

    np.testing.assert_allclose(jax.grad(through_theta)(x), jax.grad(without)(x), atol=1e-15)


def test_offset_gets_none():
    x = jnp.asarray(rows(18, 30), jnp.float32)
    for function in (statistical_top_k, statistical_threshold):
        slope = jax.grad(lambda z, f=function: jnp.sum(f(x, 5, offset=z)))(jnp.float32(0.2))
        assert slope == 0


@pytest.mark.parametrize("huber", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("constant", np.full(257, 0.1)),
        ("constant and large", np.full(257, 1000.3)),
        ("zero", np.zeros(257)),
        ("outlier", np.eye(257)[0] * 1e4),
        ("padded", np.where(np.arange(257) < 100, rows(19, 257), -INF)),
        ("padded constant", np.where(np.arange(257) < 100, 0.1, -INF)),
        ("few", np.where(np.arange(257) < 5, rows(20, 257), -INF)),
        ("empty", np.full(257, -INF)),
        ("all but equal", 1 + 1e-7 * (np.arange(257) % 2)),
    ],
)
def test_gradients_are_finite(name, row, huber):
    x = jnp.asarray(row, jnp.float32)
    g = jnp.asarray(rows(21, 257), jnp.float32)
    found = pulled_back(statistical_top_k, x, g, 20, huber_delta=huber)
    assert np.all(np.isfinite(found))
    if name in ("constant", "constant and large", "zero", "padded constant", "empty"):
        assert np.all(found == 0)
    if name == "few":
        np.testing.assert_array_equal(found, np.where(np.isfinite(row), g, 0))
    if name == "outlier":
        expected = closed_form(row, np.asarray(g, np.float64), 20, huber=huber)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    threshold = pulled_back(statistical_threshold, x, jnp.ones(1), 20)
    assert np.all(np.isfinite(threshold))


def test_a_nan_shows_in_the_gradient_of_its_row():
    x = jnp.asarray(rows(22, 2, 50), jnp.float32).at[0, 3].set(jnp.nan)
    found = pulled_back(statistical_top_k, x, jnp.ones_like(x), 5)
    assert np.all(np.isnan(found[0]))
    assert np.all(np.isfinite(found[1]))


def test_a_bad_cotangent_of_an_inactive_entry_is_dropped():
    """As with `jax.nn.relu`: sum(where(y > 0, log(y), 0)) has the gradient of its active part."""
    x = jnp.asarray(rows(23, 50), jnp.float32)

    def inner(x):
        y = statistical_top_k(x, 9)
        return jnp.sum(jnp.where(y > 0, jnp.log(y), 0))

    assert np.all(np.isfinite(jax.grad(inner)(x)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_types(dtype):
    """The gradient has the dtype of x and the sums behind it are float32."""
    x = jnp.asarray(rows(24, 2, 13824), dtype)
    g = jnp.asarray(rows(25, 2, 13824, mean=0.0), dtype)
    found = pulled_back(statistical_top_k, x, g, 1106, offset=-0.3)
    assert found.dtype == dtype
    wide = [np.asarray(a, np.float64) for a in (x, g)]
    for row in range(2):
        expected = closed_form(wide[0][row], wide[1][row], 1106, offset=-0.3)
        np.testing.assert_allclose(
            found[row].astype(np.float64), expected, rtol=2 * float(jnp.finfo(dtype).eps), atol=1e-3
        )


def test_keeps_x_and_rows_for_the_backward_pass():
    x = jnp.asarray(rows(26, 64, 1024), jnp.bfloat16)
    _, pullback = jax.vjp(lambda x: statistical_top_k(x, 82), x)
    kept = sum(a.nbytes for a in jax.tree.leaves(pullback))
    assert kept <= x.nbytes + 64 * 4 * 8
    again = jax.checkpoint(lambda x: statistical_top_k(x, 82))
    ones = jnp.ones_like(x)
    np.testing.assert_array_equal(
        pulled_back(again, x, ones), pulled_back(statistical_top_k, x, ones, 82)
    )
