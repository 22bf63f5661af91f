"""Held-out loss of `tiny` against its dense twin, and the fraction of neurons really active.

    make venv && .venv/bin/python benchmarks/study_quality.py  # 20 minutes
    .venv/bin/python benchmarks/study_quality.py --seeds 0 --steps 60    # a taste

Trains dense and Spark with the calibrated threshold for each seed, Spark with the Gaussian one for
some, at equal steps, data order and parameter count. Writes docs/quality.md and, beside it,
quality.json: trials found there are not run again, so the study can be ended and taken up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LAST = 20  # logged steps over which the realised fraction is averaged

GAUSSIAN = "spark, gaussian"

ARMS = {
    "dense": ["tiny-dense"],
    "spark, calibrated": ["tiny"],
    GAUSSIAN: ["tiny", "--model.ffn-threshold", "gaussian"],
}


@dataclass(frozen=True)
class Trial:
    """One finished run: held-out loss, bits per byte, realised fraction and attended keys."""

    loss: float
    bits_per_byte: float
    fraction: list[float | None]
    attended: list[float | None]


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


def layer_means(rows: list[list[float | None]]) -> list[float | None]:
    """The mean of each column; None where a layer has no reading."""
    columns = [[v for v in column if v is not None] for column in zip(*rows, strict=True)]
    return [statistics.fmean(c) if c else None for c in columns]


def page(known: dict[str, dict[str, Any]], command: str) -> str:
    """docs/quality.md from the record: {"ARM, seed N": trial and commit}."""
    found: dict[str, dict[int, Trial]] = {arm: {} for arm in ARMS}
    for key, entry in known.items():
        arm, seed = key.rsplit(", seed ", 1)
        found[arm][int(seed)] = Trial(**{k: v for k, v in entry.items() if k != "commit"})
    base = found["dense"]
    commits = ", ".join(f"`{c}`" for c in sorted({entry["commit"] for entry in known.values()}))
    lines = [
        "# Quality: Spark against dense at equal parameters",
        "",
        "Held-out plays: Hamlet and The Tempest. Preset `tiny` and its dense twin `tiny-dense`:",
        "1.28 million parameters each, the same steps, batches, data order and initial seed.",
        "",
        f"Command: `{command}`  ",
        f"Commit: {commits}  ",
        f"Seeds: {', '.join(map(str, sorted(base)))} (initial weights and data order)",
        "",
        "| arm | seeds | held-out loss (nats a token) by seed | mean | to dense | bits per byte |",
        "|---|---|---|---|---|---|",
    ]
    for arm, trials in found.items():
        if not trials:
            continue
        losses = [t.loss for t in trials.values()]
        mean = statistics.fmean(losses)
        twin = statistics.fmean(base[seed].loss for seed in trials)  # the same seeds, dense
        bits = statistics.fmean(t.bits_per_byte for t in trials.values())
        listed = ", ".join(f"{loss:.4f}" for loss in losses)
        seeds = ", ".join(map(str, trials))
        change = 100 * (mean / twin - 1)
        lines.append(f"| {arm} | {seeds} | {listed} | {mean:.4f} | {change:+.2f} % | {bits:.4f} |")
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
            fraction = " ".join("-" if f is None else f"{100 * f:.2f}" for f in trial.fraction)
            attended = " ".join("-" if k is None else f"{k:.1f}" for k in trial.attended)
            lines.append(f"| {arm} | {seed} | {fraction} | {attended} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what is missing in the record beside the page, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--gaussian-seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--steps", type=int, default=None, help="the preset's when not given")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "quality.md")
    options = parser.parse_args()
    record = options.output.with_suffix(".json")
    known = json.loads(record.read_text()) if record.is_file() else {}
    for seed in sorted({*options.seeds, *options.gaussian_seeds}):
        for arm, arguments in ARMS.items():
            wanted = options.gaussian_seeds if arm == GAUSSIAN else options.seeds
            key = f"{arm}, seed {seed}"
            if seed not in wanted or key in known:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                trial = train(arguments, seed, options.steps, Path(scratch) / "run")
            known[key] = {"commit": commit(), **asdict(trial)}
            print(f"{key}: {trial}", flush=True)
            record.write_text(json.dumps(known, indent=1) + "\n")
    command = " ".join(["python", "benchmarks/study_quality.py", *sys.argv[1:]])
    options.output.write_text(page(known, command))
    print(f"wrote {options.output}")


def commit() -> str:
    """The commit of the checkout that is measured."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
