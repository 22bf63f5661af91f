"""Counts of parameters and operations: by hand, from the traced program, from the compiler."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from spark_dist.config import ModelConfig
from spark_dist.model import (
    active_parameters,
    count_parameters,
    flops_per_token,
    forward,
    parameter_shapes,
)
from spark_dist.preset_table import presets


def shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def products(jaxpr: core.Jaxpr) -> int:
    """Operations of all matrix products of a traced program, loops unrolled."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            summed = math.prod(shape(eqn.invars[0])[axis] for axis in contracted)
            total += 2 * summed * math.prod(shape(eqn.outvars[0]))
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for value in eqn.params.values():
            if isinstance(value, core.ClosedJaxpr):
                total += times * products(value.jaxpr)
            elif isinstance(value, core.Jaxpr):
                total += times * products(value)
    return total


def traced(cfg, batch, length):
    """Arguments of `forward`, as shapes."""
    row = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    offset = jax.ShapeDtypeStruct((cfg.num_layers,), jnp.float32)
    return parameter_shapes(cfg), offset, row, row, row


def test_step_by_hand():
    """tiny-dense, 128 tokens a row: multiply and add are two, the backward pass is twice more."""
    ffn = 3 * 160 * 432
    projections = 4 * 160 * 160
    scores_and_values = 2 * 4 * 40 * 128
    logits = 160 * 259
    by_hand = 3 * 2 * (4 * (ffn + projections + scores_and_values) + logits)
    dense = flops_per_token(presets()["tiny-dense"].model, 128)
    spark = flops_per_token(presets()["tiny"].model, 128)
    assert dense.dense_equivalent == spark.dense_equivalent == by_hand


def test_active_by_hand():
    cfg = ModelConfig(local_window=4, attention_k=2)
    length = 8
    ffn = 80 * 648 + 52 * (80 + 160)
    projections = 4 * 160 * 160
    # Keys a query sees: 1 2 3 4 4 4 4 4 in a local layer, 1..8 in a global one; it keeps 1 2 2 2...
    local, whole, kept = 26 / 8, 36 / 8, 15 / 8
    scores = 4 * (20 * (2 * local + 2 * whole) + 20 * 4 * kept)
    values = 4 * 40 * 4 * kept
    by_hand = 3 * 2 * (4 * (ffn + projections) + scores + values + 160 * 259)
    assert flops_per_token(cfg, length).active == pytest.approx(by_hand)
    full = cfg.model_copy(update={"attention": "full"})
    both = 4 * 2 * 40 * (2 * local + 2 * whole)
    by_hand = 3 * 2 * (4 * (ffn + projections) + both + 160 * 259)
    assert flops_per_token(full, length).active == pytest.approx(by_hand)


def test_active_parameters_of_each_ffn():
    d, f, k, r = 160, 648, 52, 80
    for ffn, read in (
        ("gated", 3 * d * f),
        ("spark", r * f + k * (d - r) + k * d),
        ("gaussian_topk", d * f + 2 * k * d),
    ):
        cfg = ModelConfig.model_validate({"ffn": ffn})
        matrices = 2 if ffn == "spark" else 3
        assert count_parameters(cfg) - active_parameters(cfg) == 4 * (matrices * d * f - read)


def test_dense_equivalent_equals_the_products_of_the_traced_step(decoder):
    cfg, batch, length = decoder.cfg, 2, 16

    def loss(params, offset, *rows):
        return jnp.sum(forward(params, cfg, offset, *rows)[0])

    arguments = traced(cfg, batch, length)
    per_token = flops_per_token(cfg, length).dense_equivalent
    assert products(jax.make_jaxpr(loss)(*arguments).jaxpr) == batch * length * per_token / 3
    step = jax.make_jaxpr(jax.grad(loss))(*arguments)
    assert products(step.jaxpr) == batch * length * per_token


def test_within_two_per_cent_of_the_compilers_own_count():
    """One layer, so that the compiler's count is not of a loop's body alone; wide, so that what is
    no product stays small."""
    cfg = ModelConfig(
        num_layers=1,
        d_model=256,
        num_heads=2,
        num_kv_heads=1,
        head_dim=128,
        d_ff=1024,
        ffn="gated",
        attention="full",
        vocab_size=512,
    )
    run = jax.jit(lambda *arguments: forward(arguments[0], cfg, *arguments[1:])[0])
    cost: Any = run.lower(*traced(cfg, 2, 64)).compile().cost_analysis()
    expected = 2 * 64 * flops_per_token(cfg, 64).dense_equivalent / 3
    np.testing.assert_allclose(cost["flops"], expected, rtol=0.02)
