"""The decoder: embedding, scanned layers, tied logits.

Parameters are a pure dictionary with stable names, the layers stacked along axis 0:

    embedding.table  layers.{attention,ffn,pre_attention_norm,...}.NAME  final_norm.scale

Letters: B rows, T tokens, S keys, M d_model, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ..config import ModelConfig
from .attention import rotations
from .cache import KVCache
from .layer import Layer, Past, View
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


class Body(nnx.Module):
    """Everything outside the scanned layers."""

    def __init__(self, cfg: ModelConfig, rngs: nnx.Rngs):
        self.embedding = Embedding(cfg, rngs)
        self.final_norm = RMSNorm(cfg.d_model, cfg.norm_eps)


def _pure(module: nnx.Module) -> Params:
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def _layer(cfg: ModelConfig, params: Params) -> Layer:
    """A layer with these parameters."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Layer(cfg, nnx.Rngs(0))), nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    return nnx.merge(graph, state)


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

    def names(kind: type[Body | Layer]) -> Params:
        state = nnx.state(nnx.eval_shape(lambda: kind(cfg, nnx.Rngs(0))), nnx.Param)
        return nnx.to_pure_dict(state, lambda variable: variable.get_metadata()["logical_axes"])

    stacked = jax.tree.map(
        lambda axes: ("layers", *axes), names(Layer), is_leaf=lambda node: isinstance(node, tuple)
    )
    return names(Body) | {"layers": stacked}


def _windows(cfg: ModelConfig) -> jax.Array:
    """int32[num_layers]: keys a layer's query may look back over."""
    unlimited = np.iinfo(np.int32).max
    local = [cfg.layer_is_local(layer) for layer in range(cfg.num_layers)]
    return jnp.asarray(np.where(local, cfg.local_window, unlimited).astype(np.int32))


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
    reach = _reach(positions, positions, segment_ids, segment_ids)
    view = View(rotations(cfg, positions), reach, segment_ids > 0)

    def body(x: jax.Array, layer_in: tuple[Params, jax.Array, jax.Array]):
        layer_params, offset, window = layer_in
        x, active, survivors, _ = _layer(cfg, layer_params)(x, offset, window, view)
        return x, (active, survivors)

    if remat:
        body = jax.checkpoint(body, prevent_cse=False)
    x = _embed(params, cfg, tokens, compute_dtype)
    x, (active, survivors) = jax.lax.scan(body, x, (params["layers"], ffn_offset, _windows(cfg)))
    seen = jnp.sum(view.real, dtype=jnp.float32)
    return _logits(params, cfg, x), LayerStatistics(active, survivors.keys, survivors.rows, seen)


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
    start, length = cache.length, cache.length + tokens.shape[1]
    all_positions = jax.lax.dynamic_update_slice(cache.positions, positions, (0, start))
    all_segments = jax.lax.dynamic_update_slice(cache.segments, segment_ids, (0, start))
    reach = _reach(positions, all_positions, segment_ids, all_segments)
    view = View(rotations(cfg, positions), reach, segment_ids > 0)

    def body(x: jax.Array, layer_in: tuple[Params, jax.Array, jax.Array, jax.Array, jax.Array]):
        layer_params, offset, window, k, v = layer_in
        x, _, _, kv = _layer(cfg, layer_params)(x, offset, window, view, Past(k, v, start))
        return x, kv

    x = _embed(params, cfg, tokens, cache.k.dtype)
    x, (k, v) = jax.lax.scan(
        body, x, (params["layers"], ffn_offset, _windows(cfg), cache.k, cache.v)
    )
    return _logits(params, cfg, x), KVCache(k, v, all_positions, all_segments, length)
