"""`Generator(checkpoint).generate(prompt)`: weights, tokenizer and decoding in one object."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spark_dist.pipelines import Tokenizer, load_tokenizer

from ..checkpoints import restore_weights
from ..config import ModelConfig, RunConfig
from ..errors import UserError
from ..model import parameter_shapes
from ..run_directory import locate
from .dense import generate_tokens

PROMPT_MULTIPLE = 32
"""Prompt lengths are padded to a multiple of this, so that few programs are compiled."""


@dataclass(frozen=True)
class Generation:
    """A prompt and its continuation; tokens are those of the text, without the end of text."""

    prompt: str
    text: str
    tokens: tuple[int, ...]


def continue_text(
    model: ModelConfig,
    params: Any,
    ffn_offset: jax.Array,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[Generation]:
    """Continues every prompt as the beginning of a document.

    max_tokens: at most this many tokens a prompt. temperature: 0 for greedy. The draws of a prompt
    depend on the seed and on its place in `prompts`.
    """
    encoded = [[tokenizer.eos_id, *tokenizer.encode(p).tolist()] for p in prompts]
    longest = max(map(len, encoded))
    width = -(-longest // PROMPT_MULTIPLE) * PROMPT_MULTIPLE
    tokens = np.full((len(encoded), width), tokenizer.pad_id, np.int32)
    real = np.zeros(tokens.shape, bool)
    for row, ids in enumerate(encoded):
        tokens[row, width - len(ids) :] = ids
        real[row, width - len(ids) :] = True
    rows = jnp.arange(len(encoded))
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(seed), row))(rows)
    out = generate_tokens(
        params,
        ffn_offset,
        jnp.asarray(tokens),
        jnp.asarray(real),
        keys,
        jnp.float32(temperature),
        cfg=model,
        max_tokens=max_tokens,
        eos_id=tokenizer.eos_id,
    )
    generations = []
    for prompt, ids in zip(prompts, np.asarray(out).tolist(), strict=True):
        if tokenizer.eos_id in ids:
            ids = ids[: ids.index(tokenizer.eos_id)]
        generations.append(Generation(prompt, tokenizer.decode(ids), tuple(ids)))
    return generations


class Generator:
    """Generates text from the weights of a run or checkpoint.

        Generator("runs/tiny").generate("To be, or", max_tokens=100)

    checkpoint: RUN or RUN/checkpoints/STEP. step: which committed step, the newest if not given.
    Raises UserError when there is no such checkpoint.
    """

    def __init__(self, checkpoint: str | os.PathLike[str], *, step: int | None = None):
        run, self.step = locate(checkpoint, step)
        self.config = RunConfig.model_validate(run.checkpoint_json(self.step)["config"])
        self.tokenizer = load_tokenizer(self.config.data.tokenizer)
        model = self.config.model
        offset = jax.ShapeDtypeStruct((model.num_layers,), jnp.float32)
        target = {"params": parameter_shapes(model), "ffn_offset": offset}
        self._weights = restore_weights(run, self.step, target)

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[Generation]:
        """Continues one prompt or several; a list either way.

        temperature 0 is greedy. Raises UserError for max_tokens < 1, a temperature that is negative
        or not finite, a seed that is not in 0 .. 2^32 - 1, a prompt that is not valid Unicode.
        """
        if max_tokens < 1:
            raise UserError(f"max_tokens={max_tokens} must be at least 1")
        if not 0 <= temperature < math.inf:
            raise UserError(f"temperature={temperature} must be 0 (greedy) or positive and finite")
        if not 0 <= seed < 2**32:
            raise UserError(f"seed={seed} must be at least 0 and below {2**32}")
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        for place, prompt in enumerate(prompts):
            try:
                prompt.encode("utf-8")
            except UnicodeEncodeError as error:  # bytes of a terminal that were not UTF-8
                raise UserError(
                    f"prompts[{place}]: a lone surrogate {prompt[error.start]!a} at character "
                    f"{error.start}; give the prompt as UTF-8 text"
                ) from None
        if not prompts:
            return []
        return continue_text(
            self.config.model,
            self._weights["params"],
            self._weights["ffn_offset"],
            self.tokenizer,
            prompts,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
