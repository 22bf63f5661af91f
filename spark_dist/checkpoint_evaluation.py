"""Held-out loss, bits per byte and realised sparsity of a checkpoint, on whatever devices exist."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from spark_dist.pipelines import validation_batches
from spark_dist.sharding import batch_sharding, make_mesh

from .checkpoints import restore_weights
from .config import RunConfig
from .corpus import corpus_of
from .run_directory import locate
from .training.evaluation import Evaluation, run_evaluation
from .training.state import abstract_state
from .training.step import jit_eval_step


@dataclass(frozen=True)
class CheckpointEvaluation:
    """The evaluation of one committed step over all held-out rows."""

    step: int
    values: Evaluation

    def as_json(self) -> dict[str, Any]:
        """The keys of `spark-dist evaluate --json`."""
        return {
            "loss": self.values.loss,
            "bits_per_byte": self.values.bits_per_byte,
            "ffn_active_fraction": self.values.ffn_active_fraction,
            "attention_active_mean": [
                None if x != x else x for x in self.values.attention_active_mean
            ],
            "tokens": self.values.tokens,
            "step": self.step,
        }


def evaluate(
    target: str | os.PathLike[str], *, step: int | None = None, validation: tuple[str, ...] = ()
) -> CheckpointEvaluation:
    """Evaluates RUN or RUN/checkpoints/STEP on its own held-out data, or on `validation` files.

    The rows lie over all devices of this process, whatever the run was trained on.
    Raises UserError or pipelines.DataError for a missing checkpoint or unreadable data.
    """
    run, step = locate(target, step)
    config = RunConfig.model_validate(run.checkpoint_json(step)["config"])
    corpus = corpus_of(config, validation=validation)
    mesh = make_mesh(devices=jax.local_devices())
    devices = mesh.devices.size
    rows = -(-config.trainer.global_batch_size // devices) * devices
    placed = abstract_state(config, mesh)
    weights = restore_weights(run, step, {name: placed[name] for name in ("params", "ffn_offset")})
    values = run_evaluation(
        config.model,
        jit_eval_step(config, mesh),
        weights["params"],
        jnp.asarray(weights["ffn_offset"]),
        validation_batches(corpus, global_batch_size=rows, host=0, num_hosts=1),
        batch_sharding(mesh),
    )
    return CheckpointEvaluation(step, values)
