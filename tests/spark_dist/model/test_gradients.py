"""Gradients: finite and alive for every parameter, on degenerate rows too, the same with remat."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.model import forward

DOCUMENTS = [12], [5, 4], []


@functools.cache
def gradient_of(cfg, remat=False):
    """Compiled: summed nats of the next tokens, and their gradient."""

    def nats(params, offset, tokens, positions, segment_ids):
        logits, _ = forward(params, cfg, offset, tokens, positions, segment_ids, remat=remat)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], 2)
        return -jnp.sum(jnp.where(segment_ids[:, 1:, None] > 0, chosen, 0.0))

    quick = {"xla_backend_optimization_level": 0}
    return jax.jit(jax.value_and_grad(nats), compiler_options=quick)


def test_finite_and_alive(decoder, pack):
    rows = pack(*DOCUMENTS, length=12)
    value, gradient = gradient_of(decoder.cfg)(decoder.params, decoder.calibrated, **rows)
    assert np.isfinite(value)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        assert np.isfinite(leaf).all(), path
        assert np.any(leaf != 0), path


def test_finite_on_constant_rows(decoder, pack):
    """All tokens alike, then a zero embedding: equal scores, zero deviations, zero norms."""
    rows = pack(*DOCUMENTS, length=12)
    same = rows | {"tokens": np.full_like(rows["tokens"], 3), "positions": 0 * rows["positions"]}
    silent = jax.tree.map(jnp.zeros_like, decoder.params["embedding"])
    for params, degenerate in (
        (decoder.params, same),
        (decoder.params | {"embedding": silent}, rows),
        (jax.tree.map(jnp.zeros_like, decoder.params), same),
    ):
        value, gradient = gradient_of(decoder.cfg)(params, decoder.calibrated, **degenerate)
        assert np.isfinite(value)
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
            assert np.isfinite(leaf).all(), path


def test_the_same_with_remat(build, pack):
    decoder = build(ffn="spark", attention="spark")
    rows = pack(*DOCUMENTS, length=12)
    plain, again = (
        gradient_of(decoder.cfg, remat)(decoder.params, decoder.calibrated, **rows)
        for remat in (False, True)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), plain, again)


@pytest.mark.parametrize("attention", ["full", "spark"])
def test_against_finite_differences(build, pack, attention):
    """Along the gradient itself; thresholds make kinks and jumps, so the step is small."""
    decoder = build(ffn="spark", attention=attention)
    rows = pack(*DOCUMENTS, length=12)
    run = gradient_of(decoder.cfg)
    _, gradient = run(decoder.params, decoder.calibrated, **rows)
    norm = np.sqrt(sum(float(jnp.sum(g * g)) for g in jax.tree.leaves(gradient)))
    step = 1e-4

    def along(sign):
        factor = sign * step / norm
        moved = jax.tree.map(lambda p, g: p + factor * g, decoder.params, gradient)
        return float(run(moved, decoder.calibrated, **rows)[0])

    assert (along(1) - along(-1)) / (2 * step) == pytest.approx(norm, rel=0.02)
