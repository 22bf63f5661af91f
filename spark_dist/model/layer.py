"""One block of the decoder: norm, attention, norm, add; norm, FFN, norm, add (Gemma 2)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ..config import ModelConfig
from .attention import Attention, Rotations, Survivors
from .ffn import make_ffn
from .parameter import RMSNorm


class View(NamedTuple):
    """What all layers share about the tokens of a call.

    by: their rotations. reach int32[B, T, S]: how far back key s lies from query t, -1 where it
    must not be seen. real bool[B, T]: tokens that are no padding.
    """

    by: Rotations
    reach: jax.Array
    real: jax.Array


class Past(NamedTuple):
    """A layer's cached k, v [B, S, kv heads, head_dim], and the slot where new tokens go."""

    k: jax.Array
    v: jax.Array
    start: jax.Array


class Layer(nnx.Module):
    """One block, for packed rows and, with a `Past`, for cached decoding."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        self.pre_attention_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attention = Attention(cfg, rngs)
        self.post_attention_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.pre_ffn_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.ffn = make_ffn(cfg, rngs)
        self.post_ffn_norm = RMSNorm(cfg.d_model, cfg.norm_eps)

    def __call__(
        self,
        x: jax.Array,
        offset: jax.Array,
        window: jax.Array,
        view: View,
        past: Past | None = None,
    ) -> tuple[jax.Array, jax.Array, Survivors, tuple[jax.Array, jax.Array]]:
        """x[B, T, d_model], offset float32[], window int32[]: keys a query may look back over.

        Returns x after the block, active neurons summed over the real tokens float32[], survivors
        of attention, and the keys and values attended over: [B, S, kv heads, head_dim] each.
        """
        q, k, v = self.attention.project(self.pre_attention_norm(x), view.by)
        if past is not None:
            at = (0, past.start, 0, 0)
            k = jax.lax.dynamic_update_slice(past.k, k.astype(past.k.dtype), at)
            v = jax.lax.dynamic_update_slice(past.v, v.astype(past.v.dtype), at)
        mask = (view.reach >= 0) & (view.reach < window)
        y, survivors = self.attention.attend(q, k, v, mask, view.real)
        x = x + self.post_attention_norm(y)
        y, active = self.ffn(self.pre_ffn_norm(x), offset)
        x = x + self.post_ffn_norm(y)
        return x, jnp.sum(jnp.where(view.real, active, 0.0)), survivors, (k, v)
