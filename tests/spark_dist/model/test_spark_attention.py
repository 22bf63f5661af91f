"""Spark attention's weights against a plain float64 version and the top-k kernel."""

from __future__ import annotations

import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import ModelConfig
from spark_dist.kernels import statistical_top_k
from spark_dist.model.attention import quantile_table, spark_weights

R, DIM = 4, 8


def config(k: int, r: int = R, dim: int = DIM) -> ModelConfig:
    return ModelConfig(head_dim=dim, attention_predictor_dim=r, attention_k=k)


def weights_of(k, q, keys, mask, real=None, cfg=None):
    """q[B,T,K,G,D], keys[B,S,K,D], mask[B,T,S] -> weights[B,K,G,T,S], survivors."""
    real = np.ones(mask.shape[:2], bool) if real is None else real
    weights, survivors = jax.jit(spark_weights, static_argnums=0)(
        cfg or config(k), q, keys, mask[:, None, None], real[:, None, None, :, None]
    )
    return np.asarray(weights), survivors


def random_inputs(seed, t, s, *, batch=2, kv=2, groups=2, shift=0.0):
    """Queries and keys whose predictor scores lie around `shift`."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(batch, t, kv, groups, DIM)).astype(np.float32)
    keys = rng.normal(size=(batch, s, kv, DIM)).astype(np.float32)
    q[..., 0] = 1.0
    keys[..., 0] = shift
    return q, keys


def plain(k, q, keys, mask):
    """Equation 7 row by row in float64: weights[B,K,G,T,S], kept bool, and distance to theta."""
    b, t, kv, groups, _ = q.shape
    out = np.zeros((b, kv, groups, t, keys.shape[1]))
    kept, margin = np.zeros(out.shape, bool), np.full(out.shape, np.inf)
    for i, h, g, j in np.ndindex(b, kv, groups, t):
        at = np.flatnonzero(mask[i, j])
        score = keys[i, at, h, :R].astype(float) @ q[i, j, h, g, :R].astype(float)
        rest = keys[i, at, h, R:].astype(float) @ q[i, j, h, g, R:].astype(float)
        n = len(at)
        keep = np.ones(n, bool)
        if n > k:
            theta = score.mean() + score.std(ddof=1) * NormalDist().inv_cdf(1 - k / n)
            keep = (score > theta) | (score == score.max())
            margin[i, h, g, j, at] = np.abs(score - theta)
        a = np.where(keep, np.exp(score - score.max()), 0.0)
        out[i, h, g, j, at] = a / a.sum() * np.log1p(np.exp(rest))
        kept[i, h, g, j, at] = keep
    return out, kept, margin


def test_worked_example():
    """r 2 of 4, n 6, k 2: threshold, probabilities and output known to eight digits."""
    q = np.array([1, -0.5, 0.3, 0.8], np.float32).reshape(1, 1, 1, 1, 4)
    keys = np.array(
        [
            [0.2, 0.1, -0.3, 0.5],
            [1, 0.2, 0.4, -0.1],
            [-0.6, 0.7, 0.2, 0.9],
            [0.3, -0.8, 0.5, 0.1],
            [0.9, 0.9, -0.2, 0.4],
            [0.1, 0, 0.6, -0.7],
        ],
        np.float32,
    ).reshape(1, 6, 1, 4)
    mask = np.ones((1, 1, 6), bool)
    weights, survivors = weights_of(2, q, keys, mask, cfg=config(2, r=2, dim=4))
    weights = weights.ravel()
    rest = keys[0, :, 0, 2:] @ q.ravel()[2:]
    probabilities = weights / np.log1p(np.exp(rest))
    np.testing.assert_allclose(probabilities, [0, 0.549834, 0, 0.450166, 0, 0], atol=1e-6)
    values = np.array([np.arange(6) / 10, np.arange(6, 12) / 10])
    np.testing.assert_allclose(values @ weights, [0.14925342, 0.60464928], atol=1e-7)
    assert (survivors.keys, survivors.rows) == (2, 1)


@pytest.mark.parametrize("shift", [0.0, 30.0, -1000.0])
@pytest.mark.parametrize("window", [100, 9])
def test_equals_the_plain_version_and_the_kernel(shift, window):
    """Causal rows of 1..40 keys: fewer than k, k, k + 1 and more; and a window's edge."""
    k, length = 6, 40
    q, keys = random_inputs(0, length, length, shift=shift)
    distance = np.arange(length)[:, None] - np.arange(length)
    mask = np.broadcast_to((distance >= 0) & (distance < window), (2, length, length))
    weights, survivors = weights_of(k, q, keys, mask)
    expected, kept, margin = plain(k, q, keys, mask)
    # float32 rounds a score near `shift`; one that close to its threshold may fall either way.
    clear = margin > 4 * np.finfo(np.float32).eps * max(abs(shift), 1)
    assert clear.mean() > 0.999
    np.testing.assert_array_equal((weights > 0)[clear], kept[clear])
    sure = clear.all(axis=-1)
    np.testing.assert_allclose(weights[sure], expected[sure], rtol=2e-3 if shift else 1e-4)

    long = np.broadcast_to((mask.sum(-1) > 2 * k)[:, None, None], weights.shape[:-1])
    assert survivors.rows == long.sum()
    assert survivors.keys == (weights > 0)[long].sum()

    score = np.einsum("btkgd,bskd->bkgts", q[..., :R], keys[..., :R])
    wide = np.broadcast_to(mask[:, None, None], score.shape)
    chosen = statistical_top_k(jnp.asarray(score), k, where=jnp.asarray(wide), fill=-jnp.inf)
    np.testing.assert_array_equal(np.isfinite(chosen)[clear], kept[clear])


def test_how_many_survive_on_average():
    """About k of n Gaussian scores, for every n; all while n <= k."""
    k, length = 8, 200
    q, keys = random_inputs(1, length, length, batch=8)
    mask = np.broadcast_to(np.tril(np.ones((length, length), bool)), (8, length, length))
    weights, _ = weights_of(k, q, keys, mask)
    counts = (weights > 0).sum(-1).reshape(-1, length)
    np.testing.assert_array_equal(counts[:, :k], np.broadcast_to(np.arange(1, k + 1), (32, k)))
    assert (counts >= 1).all()
    assert counts[:, 50:].mean() == pytest.approx(k, rel=0.1)


def test_equal_scores_keep_every_key():
    q, keys = random_inputs(2, 1, 30)
    keys[..., :R] = 0.5
    weights, _ = weights_of(4, q, keys, np.ones((2, 1, 30), bool))
    rest = np.einsum("btkgd,bskd->bkgts", q[..., R:], keys[..., R:])
    np.testing.assert_allclose(weights, np.log1p(np.exp(rest)) / 30, rtol=1e-5)


def test_queries_that_are_not_real_do_not_count():
    q, keys = random_inputs(3, 5, 20)
    mask = np.ones((2, 5, 20), bool)
    real = np.zeros((2, 5), bool)
    real[0, :3] = True
    assert weights_of(4, q, keys, mask, real)[1].rows == 3 * 4
    assert weights_of(4, q, keys, mask)[1].rows == 10 * 4


def test_a_nan_shows():
    q, keys = random_inputs(4, 2, 20, batch=1)
    keys[0, 7, 0, 0] = np.nan
    weights, survivors = weights_of(4, q, keys, np.ones((1, 2, 20), bool))
    assert np.isnan(weights[:, 0]).all()
    assert np.isfinite(weights[:, 1]).all()
    assert np.isfinite(survivors.keys)


def test_gradient_is_that_of_the_softmax_over_the_survivors():
    """The shift of all survivors by theta cancels, so freezing the threshold is exact."""
    q, keys = (jnp.asarray(x) for x in random_inputs(5, 4, 20))
    mask = jnp.ones((2, 1, 1, 4, 20), bool)
    up = np.random.default_rng(6).normal(size=(2, 2, 2, 4, 20)).astype(np.float32)

    def ours(q, keys):
        return jnp.sum(up * spark_weights(config(4), q, keys, mask, mask[..., :1])[0])

    def unfrozen(q, keys):
        score = jnp.einsum("btkgd,bskd->bkgts", q[..., :R], keys[..., :R])
        rest = jnp.einsum("btkgd,bskd->bkgts", q[..., R:], keys[..., R:])
        theta = jnp.mean(score, -1, keepdims=True) + jnp.std(
            score, -1, ddof=1, keepdims=True
        ) * NormalDist().inv_cdf(1 - 4 / 20)
        kept = jnp.where(score > theta, score - theta, -jnp.inf)
        return jnp.sum(up * jax.nn.softmax(kept, -1) * jax.nn.softplus(rest))

    for got, expected in zip(
        jax.jit(jax.grad(ours, (0, 1)))(q, keys),
        jax.jit(jax.grad(unfrozen, (0, 1)))(q, keys),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)


def test_quantile_table():
    table = quantile_table(2, 10)
    assert table.shape == (11,)
    assert (table[:3] == -math.inf).all()
    assert table[10] == pytest.approx(0.8416212336)
    assert table[4] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("k", [2, 16])
@pytest.mark.parametrize("where", ["query", "key"])
def test_nan_shows_in_short_and_long_rows(k, where):
    q, keys = random_inputs(0, 6, 6)
    if where == "query":
        q[0, 5, 0, 0, 1] = np.nan
    else:
        keys[0, 0, 0, 1] = np.nan
    mask = np.broadcast_to(np.tril(np.ones((6, 6), bool)), (2, 6, 6))
    weights, _ = weights_of(k, q, keys, mask)
    assert np.isnan(weights[0, 0, 0, 5]).all()
    assert np.isfinite(weights[1]).all()
