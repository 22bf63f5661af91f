"""Dense decoding: prefill the prompts, then one token a step through the key/value cache."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..config import ModelConfig
from ..model import KVCache, decode, empty_cache


class _Progress(NamedTuple):
    cache: KVCache
    logits: jax.Array
    tokens: jax.Array
    done: jax.Array
    count: jax.Array


@functools.partial(jax.jit, static_argnames=("cfg", "max_tokens", "eos_id"))
def generate_tokens(
    params: Any,
    ffn_offset: jax.Array,
    prompt: jax.Array,
    real: jax.Array,
    keys: jax.Array,
    temperature: jax.Array,
    *,
    cfg: ModelConfig,
    max_tokens: int,
    eos_id: int,
) -> jax.Array:
    """Continues each prompt by up to `max_tokens` tokens.

    prompt int32[B, P], real bool[B, P]: prompts padded on the left, so that all end together.
    keys: one PRNG key a row, [B]. temperature float32[]: 0 takes the likeliest token.
    Returns int32[B, max_tokens]; once a row has given `eos_id`, it repeats it.
    """
    batch, length = prompt.shape
    size = length + max_tokens
    positions = jnp.maximum(jnp.cumsum(real, axis=1, dtype=jnp.int32) - 1, 0)
    cache = empty_cache(cfg, batch, size)
    logits, cache = decode(
        params, cfg, ffn_offset, prompt, positions, real.astype(jnp.int32), cache
    )
    begin = _Progress(
        cache,
        logits[:, -1],
        jnp.full((batch, max_tokens), eos_id, jnp.int32),
        jnp.zeros((batch,), bool),
        jnp.zeros((), jnp.int32),
    )
    prompt_lengths = jnp.sum(real, axis=1, dtype=jnp.int32)
    ones = jnp.ones((batch, 1), jnp.int32)

    def more(p: _Progress) -> jax.Array:
        return (p.count < max_tokens) & ~jnp.all(p.done)

    def step(p: _Progress) -> _Progress:
        chosen = _choose(p.logits, keys, p.count, temperature)
        chosen = jnp.where(p.done, eos_id, chosen)
        tokens = jax.lax.dynamic_update_slice(p.tokens, chosen[:, None], (0, p.count))
        position = (prompt_lengths + p.count)[:, None]
        logits, cache = decode(params, cfg, ffn_offset, chosen[:, None], position, ones, p.cache)
        return _Progress(cache, logits[:, -1], tokens, p.done | (chosen == eos_id), p.count + 1)

    return jax.lax.while_loop(more, step, begin).tokens


def _choose(
    logits: jax.Array, keys: jax.Array, count: jax.Array, temperature: jax.Array
) -> jax.Array:
    """int32[B]: the likeliest token at temperature 0, else a draw of this row's own stream."""
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    warm = logits / jnp.maximum(temperature, 1e-6)
    drawn = jax.vmap(lambda key, row: jax.random.categorical(jax.random.fold_in(key, count), row))(
        keys, warm
    )
    return jnp.where(temperature > 0, drawn.astype(jnp.int32), greedy)
