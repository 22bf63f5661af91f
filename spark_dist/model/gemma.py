"""Weights of the released Gemma 2 models, under the names `transformers` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..config import ModelConfig
from ..errors import UserError
from .decoder import parameter_shapes

_NORMS = {
    "pre_attention_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "pre_ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}


def from_gemma2(state_dict: Mapping[str, Any], cfg: ModelConfig) -> dict[str, Any]:
    """The parameters of a `Gemma2ForCausalLM`, for `forward` and `decode`.

    state_dict: what `model.state_dict()` or a safetensors file gives, arrays that numpy can read.
    cfg: the same geometry, with ffn="gated" and attention="full". Returns float32 arrays.
    Raises UserError for another ffn or attention, a missing name or another shape.
    """
    if (cfg.ffn, cfg.attention) != ("gated", "full"):
        raise UserError(
            f"model.ffn={cfg.ffn} model.attention={cfg.attention} cannot take Gemma 2 weights; "
            "use gated and full"
        )
    heads, kv_heads, dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim

    def read(name: str) -> np.ndarray:
        if name not in state_dict:
            raise UserError(f"{name} is missing from the Gemma 2 weights")
        return np.asarray(state_dict[name], np.float32)

    def into_heads(name: str, count: int) -> np.ndarray:
        # [count * dim, d_model] -> [d_model, count, dim]
        matrix = read(name).T
        if matrix.shape[-1] != count * dim:
            raise UserError(
                f"{name} has {matrix.shape[-1]} outputs, the configuration {count} heads x {dim}"
            )
        return matrix.reshape(-1, count, dim)

    def layer(index: int) -> dict[str, Any]:
        at = f"model.layers.{index}"
        out = read(f"{at}.self_attn.o_proj.weight").T
        return {
            "attention": {
                "q": into_heads(f"{at}.self_attn.q_proj.weight", heads),
                "k": into_heads(f"{at}.self_attn.k_proj.weight", kv_heads),
                "v": into_heads(f"{at}.self_attn.v_proj.weight", kv_heads),
                "o": out.reshape(heads, -1, out.shape[-1]),
            },
            "ffn": {
                name: read(f"{at}.mlp.{name}_proj.weight").T for name in ("gate", "up", "down")
            },
            **{ours: {"scale": read(f"{at}.{theirs}.weight")} for ours, theirs in _NORMS.items()},
        }

    layers = [layer(index) for index in range(cfg.num_layers)]
    params = {
        "embedding": {"table": read("model.embed_tokens.weight")},
        "final_norm": {"scale": read("model.norm.weight")},
        "layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers),
    }

    def checked(path: Any, array: np.ndarray, expected: jax.ShapeDtypeStruct) -> jax.Array:
        if array.shape != expected.shape:
            raise UserError(
                f"{jax.tree_util.keystr(path, simple=True, separator='.')} of the Gemma 2 weights "
                f"is {array.shape}, of the configuration {expected.shape}"
            )
        return jnp.asarray(array)

    return jax.tree_util.tree_map_with_path(checked, params, parameter_shapes(cfg))
