"""A decoder of every kind, small enough to compile in a second; each is built once a session."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import ModelConfig
from spark_dist.model import decode, forward, parameter_shapes

QUICK = {"xla_backend_optimization_level": 0}
"""Compiler options for programs that are compiled often and run a few times."""

FFNS = ("gated", "spark", "gaussian_topk")
ATTENTIONS = ("full", "spark")

SMALL = ModelConfig(
    vocab_size=48,
    num_layers=2,
    d_model=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=36,
    ffn_predictor_dim=10,
    ffn_k=5,
    attention_predictor_dim=4,
    attention_k=3,
    local_window=6,
)


class Decoder:
    """A configuration, random parameters with live norms, and its compiled functions."""

    def __init__(self, cfg: ModelConfig):
        self.cfg = cfg
        rng = np.random.default_rng(0)

        def draw(shape: jax.ShapeDtypeStruct) -> jax.Array:
            # Large weights, so that soft caps and thresholds matter; norms other than one.
            scale = 0.3 if len(shape.shape) > 2 else 0.2
            return jnp.asarray(rng.normal(size=shape.shape) * scale, jnp.float32)

        self.params = jax.tree.map(draw, parameter_shapes(cfg))
        # What calibration leaves behind: another offset in each layer.
        self.calibrated = jnp.linspace(-0.4, 0.2, cfg.num_layers, dtype=jnp.float32)
        self.plain = jnp.zeros_like(self.calibrated)
        self.decode = jax.jit(functools.partial(decode, self.params, cfg), compiler_options=QUICK)
        self._forward = jax.jit(functools.partial(forward, cfg=cfg), compiler_options=QUICK)

    def forward(self, offset: jax.Array, rows: dict[str, np.ndarray], params: Any = None) -> Any:
        """Logits and statistics as numpy arrays, of the own parameters unless others are given."""
        params = self.params if params is None else params
        return jax.tree.map(np.asarray, self._forward(params, ffn_offset=offset, **rows))


_built: dict[str, Decoder] = {}


def _build(cfg: ModelConfig) -> Decoder:
    name = cfg.model_dump_json()
    if name not in _built:
        _built[name] = Decoder(cfg)
    return _built[name]


@pytest.fixture(scope="session")
def build() -> Callable[..., Decoder]:
    """build(ffn="spark", ...): the small decoder with these changes."""
    return lambda **changes: _build(ModelConfig(**{**SMALL.model_dump(), **changes}))


@pytest.fixture(scope="session", params=[(f, a) for f in FFNS for a in ATTENTIONS], ids="-".join)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Every `ffn` with every `attention`; grouped queries, a local and a global layer."""
    ffn, attention = request.param
    return _build(ModelConfig(**{**SMALL.model_dump(), "ffn": ffn, "attention": attention}))


@pytest.fixture(scope="session")
def pack() -> Callable[..., dict[str, np.ndarray]]:
    """pack([8, 7], [20], length=20): rows of documents of these lengths, then padding."""

    def make(*rows: list[int], length: int, seed: int = 0) -> dict[str, np.ndarray]:
        shape = (len(rows), length)
        tokens = np.random.default_rng(seed).integers(0, SMALL.vocab_size, shape)
        positions, segments = np.zeros(shape), np.zeros(shape)
        for row, documents in enumerate(rows):
            start = 0
            for number, size in enumerate(documents, 1):
                positions[row, start : start + size] = np.arange(size)
                segments[row, start : start + size] = number
                start += size
            assert start <= length
        out = {"tokens": tokens, "positions": positions, "segment_ids": segments}
        return {name: array.astype(np.int32) for name, array in out.items()}

    return make
