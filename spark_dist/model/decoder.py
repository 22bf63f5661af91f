"""The decoder: embedding, scanned layers, tied logits.

Parameters are a pure dictionary with stable names, the layers stacked along axis 0:

    embedding.table  layers.{attention,ffn,pre_attention_norm,...}.NAME  final_norm.scale

Letters: B rows, T tokens, S keys, M d_model, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..config import ModelConfig
from .attention import Attention, rotations
from .cache import KVCache
from .ffn import make_ffn
from .parameter import RMSNorm, rms_norm

Params = dict[str, Any]


class LayerStatistics(NamedTuple):
    """Sums over the valid tokens of one call, float32[num_layers] each but `tokens` float32[].

    ffn_active: active neurons. attention_keys, attention_rows: attended keys, and the
    (query, head) rows they were counted in: those with more than 2 k valid keys.
    """

    ffn_active: jax.Array
    attention_keys: jax.Array
    attention_rows: jax.Array
    tokens: jax.Array


class Embedding(nnx.Module):
    """Token table, scaled by sqrt(d_model) on the way in and tied on the way out."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        scale = cfg.d_model**-0.5
        table = jax.random.normal(rngs.params(), (cfg.vocab_size, cfg.d_model), jnp.float32)
        self.table = nnx.Param(table * scale, logical_axes=("vocab", "embed"))


class Layer(nnx.Module):
    """One block: norm, attention, norm, add; norm, FFN, norm, add (Gemma 2)."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        self.cfg = cfg
        self.pre_attention_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attention = Attention(cfg, rngs)
        self.post_attention_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.pre_ffn_norm = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.ffn = make_ffn(cfg, rngs)
        self.post_ffn_norm = RMSNorm(cfg.d_model, cfg.norm_eps)


class Body(nnx.Module):
    """Everything outside the scanned layers."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        self.embedding = Embedding(cfg, rngs)
        self.final_norm = RMSNorm(cfg.d_model, cfg.norm_eps)


def _pure(module: nnx.Module) -> Params:
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def _merge(kind: type[nnx.Module], cfg: ModelConfig, params: Params) -> Any:
    """The module with these parameters; its structure is traced once a configuration."""
    graph, state = _structure(kind, cfg)
    state = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)


@functools.lru_cache(maxsize=64)
def _structure(kind: type[nnx.Module], cfg: ModelConfig) -> tuple[Any, Any]:
    return nnx.split(nnx.eval_shape(lambda: kind(cfg, nnx.Rngs(0))), nnx.Param)


def init_params(cfg: ModelConfig, key: jax.Array) -> Params:
    """Fresh float32 parameters. Call it under `jit` with output shardings to make them in place."""
    body_key, layer_key = jax.random.split(key)
    params = _pure(Body(cfg, nnx.Rngs(body_key)))
    keys = jax.random.split(layer_key, cfg.num_layers)
    params["layers"] = jax.vmap(lambda k: _pure(Layer(cfg, nnx.Rngs(k))))(keys)
    return params


def parameter_shapes(cfg: ModelConfig) -> Params:
    """`jax.ShapeDtypeStruct` of every parameter; allocates nothing."""
    return jax.eval_shape(lambda: init_params(cfg, jax.random.key(0)))


def logical_axes(cfg: ModelConfig) -> Params:
    """Names of the axes of every parameter, a tuple for each leaf of `init_params`."""

    def names(kind: type[nnx.Module]) -> Params:
        state = _structure(kind, cfg)[1]
        flat = nnx.to_flat_state(state)
        out: Params = {}
        for path, variable in flat:
            node = out
            for part in path[:-1]:
                node = node.setdefault(part, {})
            node[path[-1]] = variable.get_metadata()["logical_axes"]
        return out

    axes = names(Body)
    layers = names(Layer)
    axes["layers"] = jax.tree.map(
        lambda a: ("layers", *a), layers, is_leaf=lambda a: isinstance(a, tuple)
    )
    return axes


def _windows(cfg: ModelConfig) -> np.ndarray:
    """int32[num_layers]: keys a layer's query may look back over."""
    unlimited = np.iinfo(np.int32).max
    return np.array(
        [
            cfg.local_window if cfg.layer_is_local(layer) else unlimited
            for layer in range(cfg.num_layers)
        ],
        np.int32,
    )


def _reach(q_pos: jax.Array, k_pos: jax.Array, q_seg: jax.Array, k_seg: jax.Array) -> jax.Array:
    """int32[B, T, S]: how far back key s lies from query t, -1 where it must not be seen.

    Seen are keys of the same document at the same or an earlier position. Positions rise along a
    row within a document, so this is the causal mask with borders between documents.
    """
    distance = q_pos[:, :, None] - k_pos[:, None, :]
    return jnp.where(q_seg[:, :, None] == k_seg[:, None, :], distance, -1)


def _embed(params: Params, cfg: ModelConfig, tokens: jax.Array, dtype: Any) -> jax.Array:
    table = params["embedding"]["table"]
    return (table[tokens] * math.sqrt(cfg.d_model)).astype(dtype)


def _logits(params: Params, cfg: ModelConfig, x: jax.Array) -> jax.Array:
    x = rms_norm(x, params["final_norm"]["scale"], cfg.norm_eps)
    table = params["embedding"]["table"].astype(x.dtype)
    logits = jnp.einsum("btm,vm->btv", x, table, preferred_element_type=jnp.float32)
    if cfg.final_soft_cap is not None:
        logits = jnp.tanh(logits / cfg.final_soft_cap) * cfg.final_soft_cap
    return logits


def forward(
    params: Params,
    cfg: ModelConfig,
    ffn_offset: jax.Array,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    *,
    compute_dtype: Any = jnp.float32,
    remat: bool = False,
) -> tuple[jax.Array, LayerStatistics]:
    """Logits of packed training rows.

    tokens, positions, segment_ids: int32[B, T]; segment 0 is padding, other numbers are documents.
    ffn_offset: float32[num_layers], added to each layer's Gaussian quantile.
    Returns logits float32[B, T, vocab_size] and `LayerStatistics`.
    """
    by = rotations(cfg, positions)
    reach = _reach(positions, positions, segment_ids, segment_ids)
    real = segment_ids > 0

    def body(x: jax.Array, layer_in: tuple[Params, jax.Array, jax.Array]):
        layer_params, offset, window = layer_in
        layer: Layer = _merge(Layer, cfg, layer_params)
        mask = (reach >= 0) & (reach < window)
        q, k, v = layer.attention.project(layer.pre_attention_norm(x), by)
        y, survivors = layer.attention.attend(q, k, v, mask)
        x = x + layer.post_attention_norm(y)
        y, active = layer.ffn(layer.pre_ffn_norm(x), offset)
        x = x + layer.post_ffn_norm(y)
        return x, (jnp.sum(jnp.where(real, active, 0.0)), survivors)

    if remat:
        body = jax.checkpoint(body, prevent_cse=False)
    x = _embed(params, cfg, tokens, compute_dtype)
    x, (active, survivors) = jax.lax.scan(
        body, x, (params["layers"], ffn_offset, jnp.asarray(_windows(cfg)))
    )
    tokens_seen = jnp.sum(real, dtype=jnp.float32)
    return _logits(params, cfg, x), LayerStatistics(
        active, survivors.keys, survivors.rows, tokens_seen
    )


def decode(
    params: Params,
    cfg: ModelConfig,
    ffn_offset: jax.Array,
    tokens: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array,
    cache: KVCache,
) -> tuple[jax.Array, KVCache]:
    """Appends tokens to the cache and returns their logits: the dense decode path.

    tokens, positions, segment_ids: int32[B, T]; padding (segment 0) fills slots that nobody sees.
    All rows append at `cache.length`. Returns logits float32[B, T, vocab_size] and the new cache.
    """
    start = cache.length
    positions_new = jax.lax.dynamic_update_slice(cache.positions, positions, (0, start))
    segments_new = jax.lax.dynamic_update_slice(cache.segments, segment_ids, (0, start))
    by = rotations(cfg, positions)
    reach = _reach(positions, positions_new, segment_ids, segments_new)

    def body(x: jax.Array, layer_in: tuple[Params, jax.Array, jax.Array, jax.Array, jax.Array]):
        layer_params, offset, window, k_old, v_old = layer_in
        layer: Layer = _merge(Layer, cfg, layer_params)
        q, k, v = layer.attention.project(layer.pre_attention_norm(x), by)
        k_all = jax.lax.dynamic_update_slice(k_old, k.astype(k_old.dtype), (0, start, 0, 0))
        v_all = jax.lax.dynamic_update_slice(v_old, v.astype(v_old.dtype), (0, start, 0, 0))
        mask = (reach >= 0) & (reach < window)
        y, _ = layer.attention.attend(q, k_all, v_all, mask)
        x = x + layer.post_attention_norm(y)
        y, _ = layer.ffn(layer.pre_ffn_norm(x), offset)
        x = x + layer.post_ffn_norm(y)
        return x, (k_all, v_all)

    x = _embed(params, cfg, tokens, cache.k.dtype)
    x, (k_new, v_new) = jax.lax.scan(
        body,
        x,
        (params["layers"], ffn_offset, jnp.asarray(_windows(cfg)), cache.k, cache.v),
    )
    length = start + tokens.shape[1]
    return _logits(params, cfg, x), KVCache(k_new, v_new, positions_new, segments_new, length)
