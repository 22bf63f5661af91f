"""Random weights of a small byte-level Spark model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import ModelConfig
from spark_dist.model import parameter_shapes

MODEL = ModelConfig(
    num_layers=2,
    d_model=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=48,
    ffn_predictor_dim=16,
    ffn_k=8,
    attention_predictor_dim=4,
    attention_k=6,
    local_window=10,
)


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return MODEL


@pytest.fixture(scope="session")
def weights() -> dict[str, Any]:
    """`params` and `ffn_offset`: large layers, so that a token does not merely repeat itself."""
    rng = np.random.default_rng(0)

    def draw(shape: jax.ShapeDtypeStruct) -> jax.Array:
        scale = 0.4 if len(shape.shape) > 2 else 0.1
        return jnp.asarray(scale * rng.normal(size=shape.shape), jnp.float32)

    params = jax.tree.map(draw, parameter_shapes(MODEL))
    return {"params": params, "ffn_offset": jnp.asarray([-0.3, 0.1], jnp.float32)}
