"""The Python interface: the same runs, evaluations and texts as the command line."""

from __future__ import annotations

from typing import Any

from .checkpoint_evaluation import CheckpointEvaluation, evaluate
from .config import RunConfig
from .decoding import Generation, Generator
from .launch import RunResult, plan, start

__all__ = ["CheckpointEvaluation", "Generation", "Generator", "RunResult", "evaluate", "train"]


def train(config: RunConfig, *, resume: bool = False) -> RunResult:
    """Trains to the last step and returns how it ended; silent, all measurements in the run folder.

    resume: go on from the newest committed checkpoint of `config.run_dir`.
    Raises UserError or pipelines.DataError for what cannot be started, RunFailed or
    cluster.LaunchError where the folder or the cluster fails.
    """

    def ignore(rank: int, message: dict[str, Any]) -> None:
        del rank, message

    request = plan(config, resume=resume)
    if request is None:
        steps = config.trainer.steps
        return RunResult(str(config.run_dir), steps, None, None, 0, "finished", "already finished")
    return start(request, ignore)
