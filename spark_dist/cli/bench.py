"""`spark-dist bench train [PRESET]`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tyro

from ..console import Console
from ..errors import UserError
from .parse import parse

BENCHES = ("train",)


@dataclass(frozen=True)
class BenchTrainOptions:
    """Options of `bench train`."""

    preset: tyro.conf.Positional[str] = "small"
    """A Spark preset with a dense twin."""
    rounds: int = 10
    """Timed steps of each variant."""
    json: bool = False
    """Print nothing but one JSON line."""


def main(args: Sequence[str]) -> int:
    """Times what the first argument names."""
    if not args or args[0] in ("-h", "--help"):
        print("usage: spark-dist bench {train} [OPTIONS]\n\n  train  time of a training step")
        return 0 if args else 2
    if args[0] not in BENCHES:
        raise UserError(f"unknown bench {args[0]!r}; choose from {', '.join(BENCHES)}")
    options = parse(
        BenchTrainOptions,
        args[1:],
        prog="spark-dist bench train",
        description="Step time of dense and Spark training and of JAX's own top-k, interleaved.",
    )
    from ..bench import bench_train

    console = Console(json=options.json)
    found = bench_train(options.preset, rounds=options.rounds, note=console.note)
    if options.json:
        console.print_json(
            {
                "preset": options.preset,
                "rounds": options.rounds,
                "steps": [asdict(f) for f in found],
            }
        )
        return 0
    console.table(
        f"training step, preset {options.preset}, {options.rounds} rounds",
        {
            f.variant: f"{f.seconds:8.3f} s  {f.ratio:5.2f} x dense  "
            f"(compiled in {f.compile_seconds:.1f} s)"
            for f in found
        },
    )
    return 0
