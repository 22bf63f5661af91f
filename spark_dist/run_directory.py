"""The folder of a run: names, what is in it, and whether a run may start or go on there.

No JAX here: the command line and the Ray driver look before anything is started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .config import ModelConfig, RunConfig
from .errors import UserError

FORMAT_VERSION = 1

STARTED = (
    "config.json",
    "events.jsonl",
    "metrics.jsonl",
    "validation.jsonl",
    "attempts",
    "checkpoints",
    "tensorboard",
)
"""What a run writes before its first checkpoint."""

WEIGHTS = (
    "vocab_size",
    "num_layers",
    "d_model",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "d_ff",
)
"""Fields of the model that decide the shapes of its weights, beside those of a Spark FFN."""

RESUMABLE = (
    "run_dir",
    "launcher",
    "hosts",
    "devices_per_host",
    "address",
    "startup_timeout",
    "logging",
    "mesh",
    "trainer.steps",
    "trainer.log_every",
    "trainer.eval_every",
    "trainer.eval_batches",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "trainer.max_consecutive_skips",
    "trainer.remat",
    "data.read_threads",
    "data.prefetch_batches",
    "optimizer.schedule_steps",
    "preset",
    "profile",
)
"""Fields that a resumed run may change: they do not alter what is computed from the saved state."""


class RunDirectory:
    """Paths of one run."""

    def __init__(self, root: str | os.PathLike[str]):
        self.root = Path(root).absolute()
        self.config = self.root / "config.json"
        self.events = self.root / "events.jsonl"
        self.metrics = self.root / "metrics.jsonl"
        self.checkpoints = self.root / "checkpoints"

    def is_used(self) -> bool:
        """Whether there is anything in it."""
        return self.root.is_dir() and any(self.root.iterdir())

    def check_writable(self) -> None:
        """Raises UserError when the folder cannot be made or written. Makes nothing."""
        for parent in (self.root, *self.root.parents):
            if parent.exists() or parent.is_symlink():
                if not parent.is_dir():
                    raise UserError(
                        f"run_dir={self.root}: {parent} is a file, not a folder; "
                        "name another --run-dir"
                    )
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise UserError(
                        f"run_dir={self.root}: {parent} is not writable; name another --run-dir"
                    )
                return

    def next_attempt(self) -> int:
        """Number of the next launch, from 1: one more than the highest that left a folder."""
        folder = self.root / "attempts"
        if not folder.is_dir():
            return 1
        return 1 + max((int(p.name) for p in folder.iterdir() if p.name.isdecimal()), default=0)

    def committed_steps(self) -> list[int]:
        """Steps of complete checkpoints, ascending. Half-written ones bear other names."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(
            int(p.name)
            for p in self.checkpoints.iterdir()
            if p.name.isdecimal() and (p / "_CHECKPOINT_METADATA").is_file()
        )

    def checkpoint_json(self, step: int) -> dict[str, Any]:
        """cursor, config, format_version and evaluation of a committed step.

        Raises UserError when the step is missing or its JSON cannot be read.
        """
        path = self.checkpoints / str(step) / "json" / "metadata"
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            known = self.committed_steps() or "none"
            raise UserError(
                f"step={step}: no readable checkpoint in {self.checkpoints} ({error}); "
                f"committed steps: {known}"
            ) from None
        version = found.get("format_version")
        if version != FORMAT_VERSION:
            raise UserError(
                f"step={step}: checkpoint format_version={version}, this program reads "
                f"{FORMAT_VERSION}; use the version of spark-dist that wrote it"
            )
        return found

    def saved_config(self) -> RunConfig:
        """The configuration that the run was started with."""
        try:
            return RunConfig.model_validate_json(self.config.read_text())
        except (OSError, ValueError, UserError) as error:
            first = str(error).splitlines()[0]
            raise UserError(
                f"run_dir={self.root}: no readable config.json ({first}); "
                "name the folder of a run made by `spark-dist train`"
            ) from None

    def write_config(self, config: RunConfig) -> None:
        """Writes config.json whole or not at all."""
        made = not self.root.exists()
        self.root.mkdir(parents=True, exist_ok=True)
        scratch = self.config.with_suffix(".json.tmp")
        try:
            scratch.write_text(config.model_dump_json(indent=2) + "\n")
            scratch.replace(self.config)
        except OSError:
            scratch.unlink(missing_ok=True)
            if made:
                self.root.rmdir()
            raise

    def forget(self) -> None:
        """Removes what a start that was refused has written. Never call it on a run that trained:
        it raises RuntimeError where there is a checkpoint."""
        if self.committed_steps():
            raise RuntimeError(f"{self.root} holds checkpoints")
        for name in STARTED:
            path = self.root / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder was there before, or holds other files
            self.root.rmdir()


def locate(target: str | os.PathLike[str], step: int | None = None) -> tuple[RunDirectory, int]:
    """The run and step that RUN, RUN/checkpoints or RUN/checkpoints/STEP names.

    Without a step: the newest committed one. Raises UserError when there is none.
    """
    path = Path(target).absolute()
    if not path.exists():
        raise UserError(f"{target}: no such folder; name a run or a checkpoint")
    if path.parent.name == "checkpoints" and path.name.isdecimal():
        if step is not None and step != int(path.name):
            raise UserError(f"step={step} but {target} is step {path.name}; give one of the two")
        step, path = int(path.name), path.parent.parent
    elif path.name == "checkpoints":
        path = path.parent
    run = RunDirectory(path)
    committed = run.committed_steps()
    if not committed:
        raise UserError(f"{target}: holds no committed checkpoint; train first")
    if step is None:
        return run, committed[-1]
    if step not in committed:
        raise UserError(f"step={step}: not among the committed steps {committed} of {target}")
    return run, step


def check_weights(source: str | os.PathLike[str], model: ModelConfig) -> None:
    """Raises UserError unless the newest (or named) checkpoint of `source` fits `model`."""
    run, step = locate(source)
    other = RunConfig.model_validate(run.checkpoint_json(step)["config"]).model
    names: list[str] = list(WEIGHTS)
    if (other.ffn == "spark") != (model.ffn == "spark"):
        names.append("ffn")
    elif model.ffn == "spark":
        names.append("ffn_predictor_dim")
    differing = [
        f"model.{name}={getattr(model, name)!r} (there {getattr(other, name)!r})"
        for name in names
        if getattr(model, name) != getattr(other, name)
    ]
    if differing:
        raise UserError(
            f"init_from={source}: step {step} has other weights than this model: "
            f"{', '.join(differing)}; give the model options of that run"
        )


def best_step(run: RunDirectory) -> int | None:
    """The committed step with the lowest held-out loss, None when none was evaluated."""
    scored = []
    for step in run.committed_steps():
        evaluation = run.checkpoint_json(step).get("evaluation")
        if evaluation is not None:
            scored.append((evaluation["loss"], step))
    return min(scored)[1] if scored else None


def _flat(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _allowed(name: str) -> bool:
    return any(name == field or name.startswith(field + ".") for field in RESUMABLE)


def check_resume(saved: RunConfig, wanted: RunConfig) -> RunConfig:
    """The configuration to go on with. Raises UserError naming every field that must not change.

    The schedule keeps the saved length unless a new one is given.
    """
    old, new = dict(_flat(saved.model_dump())), dict(_flat(wanted.model_dump()))
    changed = [
        f"{name}={new[name]!r} (saved {old[name]!r})"
        for name in new
        if new[name] != old.get(name) and not _allowed(name)
    ]
    if changed:
        raise UserError(
            f"--resume with other settings: {', '.join(changed)}; "
            "leave them as saved, or start a new run with --init-from"
        )
    if wanted.optimizer.schedule_steps is None:
        optimizer = wanted.optimizer.model_copy(
            update={"schedule_steps": saved.optimizer.schedule_steps}
        )
        wanted = wanted.model_copy(update={"optimizer": optimizer})
    return wanted.model_copy(update={"run_dir": saved.run_dir})
