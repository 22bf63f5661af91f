"""The parameter tree, initial weights, positions, lower precision."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import ModelConfig
from spark_dist.model import forward, init_params, logical_axes, parameter_shapes
from spark_dist.model.rope import rotate, rotation

NORMS = ("post_attention_norm", "post_ffn_norm", "pre_attention_norm", "pre_ffn_norm")


def names(tree) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]


@pytest.mark.parametrize(
    ("ffn", "matrices"),
    [("gated", "down gate up"), ("spark", "k1 k2 v"), ("gaussian_topk", "down gate up")],
)
def test_stable_names_and_axes_for_every_parameter(ffn, matrices):
    cfg = ModelConfig.model_validate({"ffn": ffn})
    expected = [
        "embedding.table",
        "final_norm.scale",
        *(f"layers.attention.{name}" for name in "koqv"),
        *(f"layers.ffn.{name}" for name in matrices.split()),
        *(f"layers.{name}.scale" for name in NORMS),
    ]
    shapes, axes = parameter_shapes(cfg), logical_axes(cfg)
    assert names(shapes) == names(axes) == expected
    jax.tree.map(
        lambda s, a: np.testing.assert_equal(len(a), len(s.shape)),
        shapes,
        axes,
        is_leaf=lambda x: isinstance(x, jax.ShapeDtypeStruct),
    )
    assert all(axes["layers"][n]["scale"] == ("layers", "embed") for n in NORMS)


def test_initial_weights():
    """Variance 1 / fan-in, norms one, layers different; the same from the same seed."""
    cfg = ModelConfig(num_layers=2)
    quick = {"xla_backend_optimization_level": 0}
    init = jax.jit(init_params, static_argnums=0, compiler_options=quick)
    params = init(cfg, jax.random.key(3))
    jax.tree.map(np.testing.assert_array_equal, params, init(cfg, jax.random.key(3)))
    assert np.any(
        params["embedding"]["table"] != init(cfg, jax.random.key(4))["embedding"]["table"]
    )
    d, r = cfg.d_model, cfg.ffn_predictor_dim
    layers = params["layers"]
    for weight, fan_in in (
        *((layers["attention"][name], d) for name in "qkvo"),
        (layers["ffn"]["k1"], r),
        (layers["ffn"]["k2"], d - r),
        (layers["ffn"]["v"], cfg.d_ff),
        (params["embedding"]["table"], d),
    ):
        assert float(jnp.std(weight)) == pytest.approx(fan_in**-0.5, rel=0.03)
        assert float(jnp.mean(weight)) == pytest.approx(0, abs=0.02 * fan_in**-0.5)
    assert np.any(layers["ffn"]["v"][0] != layers["ffn"]["v"][1])
    for name in NORMS:
        assert not np.any(layers[name]["scale"])


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=(1, 1, 1, 12)), jnp.float32) for _ in range(2))

    def at(position, vector):
        return rotate(vector, rotation(jnp.full((1, 1), position), 12, 100.0))

    np.testing.assert_allclose(at(0, x), x)
    assert float(jnp.linalg.norm(at(77, x))) == pytest.approx(float(jnp.linalg.norm(x)), rel=1e-5)
    near, far = jnp.vdot(at(3, x), at(1, y)), jnp.vdot(at(53, x), at(51, y))
    assert float(near) == pytest.approx(float(far), rel=1e-3)
    assert abs(float(near) - float(jnp.vdot(at(4, x), at(1, y)))) > 1e-2


def test_a_documents_logits_do_not_depend_on_its_place(decoder, pack):
    """Packed behind another document or alone: the same, since positions restart."""
    packed = pack([5, 9], length=16)
    alone = pack([9], length=16)
    alone["tokens"][0, :9] = packed["tokens"][0, 5:14]
    got = decoder.forward(decoder.calibrated, packed)[0][0, 5:14]
    expected = decoder.forward(decoder.calibrated, alone)[0][0, :9]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_compute(decoder, pack):
    rows = pack([10, 6], length=16)
    run = functools.partial(forward, cfg=decoder.cfg, compute_dtype=jnp.bfloat16)
    logits, statistics = jax.jit(run)(decoder.params, ffn_offset=decoder.plain, **rows)
    expected, exact = decoder.forward(decoder.plain, rows)
    assert {x.dtype for x in jax.tree.leaves((logits, statistics))} == {jnp.dtype("float32")}
    assert np.isfinite(logits).all()
    # Thresholds amplify rounding: some survivors differ, the dense model rounds alone.
    dense = (decoder.cfg.ffn, decoder.cfg.attention) == ("gated", "full")
    error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert error < (0.03 if dense else 0.3)
    np.testing.assert_allclose(statistics.ffn_active, exact.ffn_active, rtol=0.1)
    np.testing.assert_array_equal(statistics.attention_rows, exact.attention_rows)
