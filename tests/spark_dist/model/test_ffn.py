"""Feed-forward layers against plain float64 formulas, and the peers of the selection."""

from __future__ import annotations

import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spark_dist.config import ModelConfig
from spark_dist.model.ffn import make_ffn

D, F, R, K = 16, 60, 6, 9


def layer(**changes):
    settings = {"d_model": D, "d_ff": F, "ffn_predictor_dim": R, "ffn_k": K} | changes
    return make_ffn(ModelConfig.model_validate(settings), nnx.Rngs(0))


def inputs(dtype: str = "float32"):
    return jnp.asarray(np.random.default_rng(0).normal(size=(50, D)), dtype)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def soft(score, k, offset, ddof):
    quantile = NormalDist().inv_cdf(1 - k / score.shape[-1]) + offset
    theta = score.mean(-1, keepdims=True) + score.std(-1, ddof=ddof, keepdims=True) * quantile
    return np.maximum(score - theta, 0)


def plain(ffn, kind, x, offset):
    """y and active neurons in float64."""
    x = np.asarray(x, float)
    w = {name: np.asarray(value, float) for name, value in nnx.to_pure_dict(nnx.state(ffn)).items()}
    if kind == "spark":
        kept = soft(x[:, :R] @ w["k1"], K, offset, ddof=1)
        return (gelu(kept) * (x[:, R:] @ w["k2"])) @ w["v"], (kept > 0).sum(-1)
    gate = x @ w["gate"]
    if kind == "gaussian_topk":
        gate = soft(gate, K, offset, ddof=0)
    active = (gate > 0).sum(-1) if kind == "gaussian_topk" else np.full(len(x), F)
    return (gelu(gate) * (x @ w["up"])) @ w["down"], active


@pytest.mark.parametrize("offset", [0.0, -0.5])
@pytest.mark.parametrize("kind", ["gated", "spark", "gaussian_topk"])
def test_equals_the_formula(kind, offset):
    ffn = layer(ffn=kind)
    y, active = ffn(inputs(), jnp.float32(offset))
    expected, count = plain(ffn, kind, inputs(), offset)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(active, count)


@pytest.mark.parametrize("kind", ["gated", "spark", "gaussian_topk"])
def test_bfloat16_stays_bfloat16_and_close(kind):
    ffn = layer(ffn=kind)
    y, active = ffn(inputs("bfloat16"), jnp.float32(0))
    assert (y.dtype, active.dtype) == ("bfloat16", "float32")
    expected, _ = plain(ffn, kind, inputs("bfloat16").astype("float32"), 0.0)
    error = np.linalg.norm(np.asarray(y, float) - expected) / np.linalg.norm(expected)
    assert error < 0.03


@pytest.mark.parametrize("selection", ["top_k", "approx_max_k"])
@pytest.mark.parametrize("kind", ["spark", "gaussian_topk"])
def test_peers_keep_exactly_k(kind, selection):
    """On CPU `approx_max_k` sorts too, so both equal the reference."""
    ffn = layer(ffn=kind, ffn_selection=selection)
    y, active = ffn(inputs(), jnp.float32(0.7))  # the offset is not theirs
    np.testing.assert_array_equal(active, K)
    x, w = np.asarray(inputs(), float), nnx.to_pure_dict(nnx.state(ffn))
    w = {name: np.asarray(value, float) for name, value in w.items()}
    score = x[:, :R] @ w["k1"] if kind == "spark" else x @ w["gate"]
    kept = np.maximum(score - np.sort(score, -1)[:, [-K - 1]], 0)
    rest = x[:, R:] @ w["k2"] if kind == "spark" else x @ w["up"]
    expected = (gelu(kept) * rest) @ w["v" if kind == "spark" else "down"]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda x: jnp.sum(ffn(x, jnp.float32(0))[0] ** 2))(inputs())
    assert np.isfinite(gradient).all()
    assert np.any(gradient != 0)


@pytest.mark.parametrize("selection", ["statistical", "top_k", "approx_max_k"])
def test_no_neuron_and_every_neuron(selection):
    y, active = layer(ffn_k=0, ffn_selection=selection)(inputs(), jnp.float32(0))
    assert not np.any(active)
    assert not np.any(y)
    ffn = layer(ffn_k=F, ffn_selection=selection)
    y, active = ffn(inputs(), jnp.float32(0))
    np.testing.assert_array_equal(active, F)
    x, w = inputs(), nnx.to_pure_dict(nnx.state(ffn))
    dense = (jax.nn.gelu(x[:, :R] @ w["k1"]) * (x[:, R:] @ w["k2"])) @ w["v"]
    np.testing.assert_allclose(y, dense, rtol=1e-4, atol=1e-5)
