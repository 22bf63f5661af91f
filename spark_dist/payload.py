"""What the launchers run on every host. No JAX at import: the Ray driver imports this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_dist.cluster import WorkerInfo

from .config import RunConfig


@dataclass(frozen=True)
class TrainRequest:
    """One training attempt. resume: go on from the newest committed step. init_from: a run whose
    weights to start from."""

    config: RunConfig
    resume: bool = False
    init_from: str | None = None


def train(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """Trains on this host; returns rank 0's result, the same on every rank.

    A mistake in the configuration that only shows beside the devices is returned, not raised, as
    {"exit": 2, "error": one line}.
    """
    from spark_dist.pipelines import DataError

    from .errors import UserError
    from .training.run import run

    try:
        return run(request, worker)
    except (UserError, DataError) as error:
        return {"exit": 2, "error": str(error)}
