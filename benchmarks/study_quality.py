"""Held-out loss of `tiny` against its dense twin, and the fraction of neurons really active.

    make venv && .venv/bin/python benchmarks/study_quality.py  # half an hour
    .venv/bin/python benchmarks/study_quality.py --seeds 0 --steps 60    # a taste

Trains dense, Spark with the calibrated threshold and Spark with the Gaussian one, for each seed, at
equal steps, data order and parameter count, and writes docs/quality.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAST = 20  # logged steps over which the realised fraction is averaged

ARMS = {
    "dense": ["tiny-dense"],
    "spark, calibrated": ["tiny"],
    "spark, gaussian": ["tiny", "--model.ffn-threshold", "gaussian"],
}


@dataclass(frozen=True)
class Trial:
    """One finished run: held-out loss, bits per byte, realised fraction and attended keys."""

    loss: float
    bits_per_byte: float
    fraction: list[float]
    attended: list[float]


def train(arm: list[str], seed: int, steps: int | None, folder: Path) -> Trial:
    """Trains in a process of its own and reads back what it measured."""
    command = [
        str(Path(sys.executable).with_name("spark-dist")),
        "train",
        *arm,
        "--trainer.seed",
        str(seed),
        "--data.seed",
        str(seed),
        "--trainer.eval-every",
        "0",
        "--trainer.checkpoint-every",
        "0",
        "--run-dir",
        str(folder),
        "--json",
    ]
    if steps is not None:
        command += ["--trainer.steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nfailed: {done.stderr}")
    result = json.loads(done.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Trial(
        result["loss"],
        result["bits_per_byte"],
        layer_means([line["ffn_active_fraction"] for line in lines[-LAST:]]),
        layer_means([line["attention_active_mean"] for line in lines[-LAST:]]),
    )


def layer_means(rows: list[list[float | None]]) -> list[float]:
    """The mean of each column; NaN where a layer has no reading."""
    columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
    return [statistics.fmean(c) if c else math.nan for c in columns]


def page(found: dict[str, dict[int, Trial]], commit: str, command: str) -> str:
    """docs/quality.md."""
    seeds = list(next(iter(found.values())))
    base = statistics.fmean(t.loss for t in found["dense"].values())
    lines = [
        "# Quality: Spark against dense at equal parameters",
        "",
        "Held-out plays: Hamlet and The Tempest. Preset `tiny` and its dense twin `tiny-dense`:",
        "1.28 million parameters each, the same steps, batches, data order and initial seed.",
        "",
        f"Command: `{command}`  ",
        f"Commit: `{commit}`  ",
        f"Seeds: {', '.join(map(str, seeds))} (initial weights and data order)",
        "",
        "| arm | held-out loss, nats a token, by seed | mean | against dense | bits per byte |",
        "|---|---|---|---|---|",
    ]
    for arm, trials in found.items():
        losses = [t.loss for t in trials.values()]
        mean = statistics.fmean(losses)
        bits = statistics.fmean(t.bits_per_byte for t in trials.values())
        listed = ", ".join(f"{loss:.4f}" for loss in losses)
        lines.append(
            f"| {arm} | {listed} | {mean:.4f} | {100 * (mean / base - 1):+.2f} % | {bits:.4f} |"
        )
    lines += [
        "",
        f"Realised sparsity, mean of the last {LAST} logged steps, by layer (targets: 52 of 648",
        "neurons = 8.02 %, 32 keys in rows with more than 64).",
        "",
        "| arm | seed | FFN neurons active, % | attended keys |",
        "|---|---|---|---|",
    ]
    for arm, trials in found.items():
        if arm == "dense":
            continue
        for seed, trial in trials.items():
            fraction = " ".join(f"{100 * f:.2f}" for f in trial.fraction)
            attended = " ".join(f"{k:.1f}" for k in trial.attended)
            lines.append(f"| {arm} | {seed} | {fraction} | {attended} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs all arms and writes the page, and the raw numbers beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=None, help="the preset's when not given")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "quality.md")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    found: dict[str, dict[int, Trial]] = {arm: {} for arm in ARMS}
    for seed in options.seeds:
        for arm, arguments in ARMS.items():
            with tempfile.TemporaryDirectory() as scratch:
                trial = train(arguments, seed, options.steps, Path(scratch) / "run")
            found[arm][seed] = trial
            print(f"{arm}, seed {seed}: {trial}", flush=True)
    command = " ".join(["python", "benchmarks/study_quality.py", *sys.argv[1:]])
    options.output.write_text(page(found, commit, command))
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
