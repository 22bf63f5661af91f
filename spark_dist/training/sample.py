"""A taste of what a run has learned, for the screen and the report."""

from __future__ import annotations

import jax
from jax.sharding import Mesh

from spark_dist.pipelines import Tokenizer
from spark_dist.sharding import replicated

from ..config import RunConfig
from ..decoding import continue_text
from ..model import count_parameters
from .state import State

LARGEST = 500_000_000
"""Parameters above which no sample is made: they need not fit on one device."""


def sample_text(config: RunConfig, mesh: Mesh, state: State, tokenizer: Tokenizer) -> str:
    """A document's beginning at temperature 0.8, the same on every host; empty for large models.

    The weights are gathered by all hosts together; each then decodes on its own first device.
    """
    if count_parameters(config.model) > LARGEST:
        return ""
    everywhere = replicated(mesh)
    weights = {"params": state["params"], "ffn_offset": state["ffn_offset"]}
    whole = jax.jit(lambda w: w, out_shardings=everywhere)(weights)
    local = jax.tree.map(lambda x: x.addressable_data(0), whole)
    (found,) = continue_text(
        config.model,
        local["params"],
        local["ffn_offset"],
        tokenizer,
        ["The "],
        max_tokens=200,
        temperature=0.8,
        seed=config.trainer.seed,
    )
    return found.prompt + found.text
