"""The Python interface: the same runs, evaluations and texts as the command line."""

from __future__ import annotations

from typing import Any

from .config import RunConfig
from .decoding import Generation, Generator
from .checkpoint_evaluation import CheckpointEvaluation, evaluate
from .launch import RunResult, plan, start

__all__ = ["CheckpointEvaluation", "Generation", "Generator", "RunResult", "evaluate", "train"]


def train(config: RunConfig, *, resume: bool = False, init_from: str | None = None) -> RunResult:
    """Trains to the last step and returns how it ended; silent, all measurements in the run folder.

    resume: go on from the newest committed checkpoint of `config.run_dir`. init_from: start from
    the weights of another run. Raises UserError or pipelines.DataError for what cannot be started.
    """

    def ignore(rank: int, message: dict[str, Any]) -> None:
        del rank, message

    request = plan(config, resume=resume, init_from=init_from)
    if request is None:
        steps = config.trainer.steps
        return RunResult(str(config.run_dir), steps, None, None, 0, "finished", "already finished")
    return start(request, ignore)
