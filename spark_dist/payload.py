"""What the launchers run on every host. No JAX at import: the Ray driver imports this module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_dist.cluster import WorkerInfo

from .config import RunConfig


@dataclass(frozen=True)
class TrainRequest:
    """One training attempt. resume: go on from the newest committed step."""

    config: RunConfig
    resume: bool = False


def train(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """Trains on this host; returns rank 0's result, the same on every rank.

    Raises `cluster.PayloadError` with exit code 2 for a mistake in the configuration that only
    shows beside the devices, with 1 for a run that cannot go on; `cluster.Stopped` after a stop
    request that ended in a committed checkpoint.
    """
    from spark_dist.cluster import BAD_ARGUMENTS, FAILED, PayloadError
    from spark_dist.pipelines import DataError

    from .errors import RunFailed, UserError, disk_failure
    from .training.run import run

    try:
        return run(request, worker)
    except (UserError, DataError) as error:
        raise PayloadError(str(error), BAD_ARGUMENTS) from error
    except RunFailed as error:
        raise PayloadError(str(error), FAILED) from error
    except OSError as error:
        raise PayloadError(disk_failure(worker.run_dir, error), FAILED) from error
