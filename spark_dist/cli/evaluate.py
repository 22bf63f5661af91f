"""`spark-dist evaluate RUN_OR_CHECKPOINT`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from ..console import Console
from .parse import parse


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `evaluate`."""

    target: tyro.conf.Positional[str]
    """A run, or RUN/checkpoints/STEP."""
    step: int | None = None
    """A committed step; the newest when not given."""
    validation: tuple[str, ...] = ()
    """Held-out files to read instead of the run's own."""
    json: bool = False
    """Print nothing but one JSON line."""


def main(args: Sequence[str]) -> int:
    """Evaluates one checkpoint on all local devices."""
    options = parse(
        EvaluateOptions,
        args,
        prog="spark-dist evaluate",
        description="Held-out loss, bits per byte and realised sparsity of a checkpoint.",
    )
    from ..checkpoint_evaluation import evaluate

    found = evaluate(options.target, step=options.step, validation=options.validation)
    console = Console(json=options.json)
    if options.json:
        console.print_json(found.as_json())
        return 0
    values = found.values
    attended = values.attention_active_mean
    console.table(
        f"{options.target} at step {found.step}",
        {
            "held-out loss": f"{values.loss:.4f} nats a token",
            "bits per byte": f"{values.bits_per_byte:.4f}",
            "tokens": f"{values.tokens:,}",
            "FFN active, by layer": " ".join(f"{100 * f:.1f}%" for f in values.ffn_active_fraction),
            "attended keys, by layer": " ".join(
                "-" if math.isnan(k) else f"{k:.1f}" for k in attended
            ),
        },
    )
    return 0
