"""`spark-dist generate RUN_OR_CHECKPOINT --prompt TEXT`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from ..console import Console
from .parse import parse


@dataclass(frozen=True)
class GenerateOptions:
    """Options of `generate`."""

    target: tyro.conf.Positional[str]
    """A run, or RUN/checkpoints/STEP."""
    prompt: str = ""
    """The beginning of a document."""
    max_tokens: int = 128
    """At most this many tokens are added."""
    decode: Literal["dense"] = "dense"
    """dense: every neuron and key is read."""
    temperature: float = 0.0
    """0: the likeliest token; above: draws."""
    seed: int = 0
    """Of the draws."""
    step: int | None = None
    """A committed step; the newest when not given."""
    json: bool = False
    """Print nothing but one JSON line."""


def main(args: Sequence[str]) -> int:
    """Continues the prompt."""
    options = parse(
        GenerateOptions,
        args,
        prog="spark-dist generate",
        description="Continues a prompt with the weights of a checkpoint.",
    )
    from ..decoding import Generator

    generator = Generator(options.target, step=options.step)
    (found,) = generator.generate(
        options.prompt,
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        seed=options.seed,
    )
    if options.json:
        Console(json=True).print_json(
            {
                "prompt": found.prompt,
                "text": found.text,
                "tokens": list(found.tokens),
                "decode": options.decode,
            }
        )
    else:
        print(found.prompt + found.text)
    return 0
