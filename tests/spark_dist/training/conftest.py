"""A configuration small enough to compile in a second, and batches for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from spark_dist.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
)
from spark_dist.sharding import make_mesh

SMALL = ModelConfig(
    vocab_size=64,
    num_layers=2,
    d_model=32,
    num_heads=2,
    num_kv_heads=2,
    head_dim=16,
    d_ff=96,
    ffn_predictor_dim=16,
    ffn_k=12,
    attention_predictor_dim=8,
    attention_k=4,
)


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return RunConfig(
        model=SMALL,
        data=DataConfig(sequence_length=16),
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
        trainer=TrainerConfig(steps=40, global_batch_size=8),
    ).resolved()


@pytest.fixture(scope="session")
def one_device() -> jax.sharding.Mesh:
    return make_mesh(devices=jax.devices()[:1])


@pytest.fixture(scope="session")
def rows() -> Callable[..., dict[str, np.ndarray]]:
    """rows(seed, batch, length): learnable rows, each token the one before plus a constant."""

    def make(seed: int, batch: int = 8, length: int = 16) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        start, stride = rng.integers(0, 64, (2, batch, 1))
        text = (start + (1 + stride % 3) * np.arange(length + 1)) % 64
        ones = np.ones((batch, length), np.int32)
        out = {
            "tokens": text[:, :-1],
            "targets": text[:, 1:],
            "segment_ids": ones,
            "positions": ones * np.arange(length),
            "target_bytes": ones,
        }
        return {k: v.astype(np.int32) for k, v in out.items()}

    return make
