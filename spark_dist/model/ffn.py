"""Feed-forward layers: gated (Gemma 2), Spark, and Gemma 3n's Gaussian top-k."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from spark_dist.kernels import statistical_top_k

from ..config import ModelConfig
from .parameter import weight


def _gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def select(cfg: ModelConfig, score: jax.Array, offset: jax.Array, ddof: int) -> jax.Array:
    """The chosen operator over the last axis: score[..., d_ff] -> the same shape, mostly zero.

    statistical: `max(score - theta, 0)`, arXiv 2506.06644 section 2.1. The peers `top_k` and
    `approx_max_k` take the largest value that is not to survive as theta, so that all three are
    soft thresholds and differ in how theta is found.
    """
    k = cfg.ffn_k
    if cfg.ffn_selection == "statistical":
        return statistical_top_k(score, k, offset=offset, ddof=ddof)
    if k == cfg.d_ff:
        return score
    if cfg.ffn_selection == "top_k":
        theta = jax.lax.top_k(score, k + 1)[0][..., -1:]
    else:
        theta = jax.lax.approx_max_k(score, k + 1, recall_target=0.95)[0][..., -1:]
    return jnp.maximum(score - theta, 0)


def _active(kept: jax.Array) -> jax.Array:
    """float32[...]: entries of kept[..., d_ff] that survived."""
    return jnp.sum(kept != 0, axis=-1, dtype=jnp.float32)


@partial(jax.checkpoint, static_argnums=(0, 1), prevent_cse=False)
def _gated(
    cfg: ModelConfig, ddof: int | None, gate: jax.Array, up: jax.Array, offset: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """gelu(select(gate)) * up, and the active entries; no selection where `ddof` is None.

    The backward pass keeps the two products alone and repeats what is cheap.
    """
    if ddof is None:
        active = jnp.full(gate.shape[:-1], cfg.d_ff, jnp.float32)
    else:
        gate = select(cfg, gate, offset, ddof)
        active = _active(gate)
    return _gelu(gate) * up, active


class GatedFFN(nnx.Module):
    """y = down(gelu(gate x) * up x); with a selection on the gate when `gaussian_topk`.

    The second form is Gemma 3n's: population deviation (ddof 0), no predictor split.
    """

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        d, f = cfg.d_model, cfg.d_ff
        self.cfg = cfg
        self.gate = weight(rngs, (d, f), ("embed", "mlp"), d)
        self.up = weight(rngs, (d, f), ("embed", "mlp"), d)
        self.down = weight(rngs, (f, d), ("mlp", "embed"), f)

    def __call__(self, x: jax.Array, offset: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x[..., d_model], offset float32[] -> (y[..., d_model], active neurons float32[...])."""
        gate = x @ self.gate[...].astype(x.dtype)
        up = x @ self.up[...].astype(x.dtype)
        ddof = 0 if self.cfg.ffn == "gaussian_topk" else None
        hidden, active = _gated(self.cfg, ddof, gate, up, offset)
        return hidden @ self.down[...].astype(x.dtype), active


class SparkFFN(nnx.Module):
    """Spark FFN, arXiv 2506.06644 section 2.2.

    s = K1' q[:r] scores all neurons, h = gelu(StatTopk(s)) keeps about k of them,
    y = V (h * K2' q[r:]). Training computes all products; the zeros are skipped in decoding.
    """

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        d, f, r = cfg.d_model, cfg.d_ff, cfg.ffn_predictor_dim
        self.cfg = cfg
        self.k1 = weight(rngs, (r, f), ("embed", "mlp"), r)
        self.k2 = weight(rngs, (d - r, f), ("embed", "mlp"), d - r)
        self.v = weight(rngs, (f, d), ("mlp", "embed"), f)

    def __call__(self, x: jax.Array, offset: jax.Array) -> tuple[jax.Array, jax.Array]:
        """x[..., d_model], offset float32[] -> (y[..., d_model], active neurons float32[...])."""
        r = self.cfg.ffn_predictor_dim
        score = x[..., :r] @ self.k1[...].astype(x.dtype)
        rest = x[..., r:] @ self.k2[...].astype(x.dtype)
        hidden, active = _gated(self.cfg, 1, score, rest, offset)
        return hidden @ self.v[...].astype(x.dtype), active


def make_ffn(cfg: ModelConfig, rngs: nnx.Rngs) -> Any:
    """The feed-forward layer that `cfg.ffn` names."""
    return SparkFFN(cfg, rngs) if cfg.ffn == "spark" else GatedFFN(cfg, rngs)
