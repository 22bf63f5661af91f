"""Grouped-query attention, full (Gemma 2) or Spark, for training rows and for cached decoding.

Letters: B rows, T queries, S keys, K key/value heads, G query heads of one of them, D features.
"""

from __future__ import annotations

from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..config import ModelConfig
from .parameter import weight
from .rope import Rotation, rotate, rotation


class Rotations(NamedTuple):
    """Rotary angles of the predictor's half and of the rest; `head` alone under full attention."""

    head: Rotation
    rest: Rotation | None


class Survivors(NamedTuple):
    """Attended keys in the rows with more than 2 k valid keys: their sum and the rows counted."""

    keys: jax.Array
    rows: jax.Array


def rotations(cfg: ModelConfig, positions_BT: jax.Array) -> Rotations:
    """Angles at positions[B, T]; each half of a Spark head is a rotary block of its own."""
    if cfg.attention == "full":
        return Rotations(rotation(positions_BT, cfg.head_dim, cfg.rope_base), None)
    r = cfg.attention_predictor_dim
    return Rotations(
        rotation(positions_BT, r, cfg.rope_base),
        rotation(positions_BT, cfg.head_dim - r, cfg.rope_base),
    )


def rotate_head(x_BTHD: jax.Array, by: Rotations) -> jax.Array:
    """Applies the head's rotation, half by half when there are two."""
    if by.rest is None:
        return rotate(x_BTHD, by.head)
    r = by.head.cos.shape[-1] * 2
    return jnp.concatenate(
        [rotate(x_BTHD[..., :r], by.head), rotate(x_BTHD[..., r:], by.rest)], axis=-1
    )


def quantile_table(k: int, longest: int) -> np.ndarray:
    """float32[longest + 1]: entry n is Q(1 - k / n) for n > k, else -inf (every key is kept)."""
    quantile = NormalDist().inv_cdf
    return np.array(
        [quantile(1 - k / n) if n > k else -np.inf for n in range(longest + 1)], np.float32
    )


def full_weights(cfg: ModelConfig, q: jax.Array, k: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax of soft-capped scores: q[B,T,K,G,D], k[B,S,K,D], mask[B,1,1,T,S] -> [B,K,G,T,S]."""
    score = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=jnp.float32)
    return _soft_capped_softmax(cfg, score, mask)


@partial(jax.checkpoint, static_argnums=0, prevent_cse=False)
def _soft_capped_softmax(cfg: ModelConfig, score: jax.Array, mask: jax.Array) -> jax.Array:
    """`full_weights` from the product, which alone the backward pass keeps."""
    if cfg.attention_soft_cap is not None:
        score = jnp.tanh(score / cfg.attention_soft_cap) * cfg.attention_soft_cap
    score = jnp.where(mask, score, -jnp.inf)
    return jax.nn.softmax(score, axis=-1)


def _threshold(score: jax.Array, mask: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Where to cut score[...,S] so that about k of the n keys in mask[...,S] lie above.

    theta = mean + deviation * Q(1 - k / n) over those keys, -inf where n <= k, NaN where one of
    them is NaN. Returns theta float32[...,1] and n int32[...,1].
    """
    valid = jnp.sum(mask, axis=-1, keepdims=True, dtype=jnp.int32)
    n = jnp.maximum(valid, 1).astype(jnp.float32)
    inside = jnp.where(mask, score, 0.0)
    mean = jnp.sum(inside, axis=-1, keepdims=True) / n
    square = jnp.sum(inside * inside, axis=-1, keepdims=True)
    variance = jnp.maximum(square - n * mean * mean, 0.0) / jnp.maximum(n - 1.0, 1.0)
    short = valid <= k
    quantile = jnp.where(short, 0.0, jnp.asarray(quantile_table(k, score.shape[-1]))[valid])
    theta = jnp.where(short, -jnp.inf, mean + jnp.sqrt(variance) * quantile)
    return jnp.where(jnp.isnan(mean), jnp.nan, theta), valid


def spark_weights(
    cfg: ModelConfig, q: jax.Array, k: jax.Array, mask: jax.Array, real: jax.Array
) -> tuple[jax.Array, Survivors]:
    """Spark attention, arXiv 2506.06644 equation 7: softmax(Top_k(K1' q1)) * softplus(K2' q2).

    q[B,T,K,G,D] (scaled), k[B,S,K,D], mask bool[B,1,1,T,S], at least one key a query; real
    bool[B,1,1,T,1]: queries to count.
    Returns weights float32[B,K,G,T,S], which do not sum to one, and survivor counts.
    The threshold is taken over the valid keys; its gradient vanishes identically under the softmax
    (a shift of all survivors), so the statistics carry none.
    """
    r = cfg.attention_predictor_dim
    score = jnp.einsum(
        "btkgd,bskd->bkgts", q[..., :r], k[..., :r], preferred_element_type=jnp.float32
    )
    rest = jnp.einsum(
        "btkgd,bskd->bkgts", q[..., r:], k[..., r:], preferred_element_type=jnp.float32
    )
    return _spark_softmax(cfg, score, rest, mask, real)


@partial(jax.checkpoint, static_argnums=0, prevent_cse=False)
def _spark_softmax(
    cfg: ModelConfig, score: jax.Array, rest: jax.Array, mask: jax.Array, real: jax.Array
) -> tuple[jax.Array, Survivors]:
    """`spark_weights` from the two products, which alone the backward pass keeps."""
    frozen = jax.lax.stop_gradient(jnp.where(mask, score, -jnp.inf))
    top = jnp.max(frozen, axis=-1, keepdims=True)
    below = frozen - top  # a few deviations below 0, whatever the mean: one-pass sums stay exact
    theta, valid = _threshold(below, mask, cfg.attention_k)
    keep = (below > theta) | (below == 0)
    attended = jnp.exp(jnp.where(keep, score - top, -jnp.inf))
    total = jnp.sum(attended, axis=-1, keepdims=True)
    # XLA for CPU drops NaN in maxima and comparisons, not in sums: divergence has to show.
    attended = attended / jnp.where(jnp.isnan(theta), jnp.nan, total)
    long = (valid > 2 * cfg.attention_k) & real & jnp.ones((*keep.shape[:-1], 1), bool)
    survivors = Survivors(jnp.sum(keep & long, dtype=jnp.float32), jnp.sum(long, dtype=jnp.float32))
    return attended * jax.nn.softplus(rest), survivors


class Attention(nnx.Module):
    """Projections around `full_weights` or `spark_weights`."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        d, h, kv, dim = cfg.d_model, cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.cfg = cfg
        self.q = weight(rngs, (d, h, dim), ("embed", "heads", "head_dim"), d)
        self.k = weight(rngs, (d, kv, dim), ("embed", "kv_heads", "head_dim"), d)
        self.v = weight(rngs, (d, kv, dim), ("embed", "kv_heads", "head_dim"), d)
        self.o = weight(rngs, (h, dim, d), ("heads", "head_dim", "embed"), h * dim)

    def project(self, x_BTM: jax.Array, by: Rotations) -> tuple[jax.Array, jax.Array, jax.Array]:
        """x[B,T,d_model] -> scaled and rotated q[B,T,K,G,D], rotated k[B,T,K,D], v[B,T,K,D]."""
        cfg, dtype = self.cfg, x_BTM.dtype
        q = jnp.einsum("btm,mhd->bthd", x_BTM, self.q[...].astype(dtype))
        k = jnp.einsum("btm,mkd->btkd", x_BTM, self.k[...].astype(dtype))
        v = jnp.einsum("btm,mkd->btkd", x_BTM, self.v[...].astype(dtype))
        q = rotate_head(q, by) * jnp.asarray(cfg.scale, dtype)
        k = rotate_head(k, by)
        b, t = x_BTM.shape[:2]
        groups = cfg.num_heads // cfg.num_kv_heads
        return q.reshape(b, t, cfg.num_kv_heads, groups, cfg.head_dim), k, v

    def attend(
        self, q: jax.Array, k: jax.Array, v: jax.Array, mask_BTS: jax.Array, real_BT: jax.Array
    ) -> tuple[jax.Array, Survivors]:
        """q[B,T,K,G,D] over k, v[B,S,K,D] where mask[B,T,S] -> y[B,T,d_model], survivors.

        real bool[B,T]: queries that count among the survivors' rows.
        """
        cfg = self.cfg
        mask = mask_BTS[:, None, None]
        if cfg.attention == "full":
            weights = full_weights(cfg, q, k, mask)
            survivors = Survivors(jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))
        else:
            weights, survivors = spark_weights(cfg, q, k, mask, real_BT[:, None, None, :, None])
        out = jnp.einsum("bkgts,bskd->btkgd", weights.astype(v.dtype), v)
        b, t = out.shape[:2]
        out = out.reshape(b, t, cfg.num_heads, cfg.head_dim)
        return jnp.einsum("bthd,hdm->btm", out, self.o[...].astype(out.dtype)), survivors
