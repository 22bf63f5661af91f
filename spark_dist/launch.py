"""Starts a training run: every check that needs no device, then the launcher.

No JAX here; with the `ray` launcher this process never imports it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from spark_dist.cluster import (
    BAD_ARGUMENTS,
    Launcher,
    LaunchError,
    LocalLauncher,
    Outcome,
    RayLauncher,
)
from spark_dist.pipelines import check_cursor

from .config import RunConfig
from .corpus import corpus_of
from .errors import RunFailed, UserError, disk_failure
from .mesh_fit import check_mesh
from .payload import TrainRequest, train
from .run_directory import RunDirectory, check_resume, check_weights
from .trackers import check_trackers

Messages = Callable[[int, dict[str, Any]], None]


@dataclass(frozen=True)
class RunResult:
    """How a run ended. exit: 0 done, 1 failed, 2 bad configuration, 4 stopped early but saved.

    loss: held-out nats a target, bits_per_byte: held-out; None unless the run finished.
    """

    run_dir: str
    step: int | None
    loss: float | None
    bits_per_byte: float | None
    exit: int
    cause: str
    detail: str
    ffn_active_fraction: tuple[float, ...] | None = None
    sample: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The keys of `spark-dist train --json`."""
        found = asdict(self)
        return {
            key: found[key]
            for key in ("run_dir", "step", "loss", "bits_per_byte", "exit", "detail")
        }


def plan(config: RunConfig, *, resume: bool) -> TrainRequest | None:
    """What to start after every check; None when a resumed run is already finished.

    Raises UserError or pipelines.DataError. Writes nothing.
    """
    config = _absolute(config if resume else config.resolved())
    run_dir = config.run_dir or f"runs/{config.preset}"
    directory = RunDirectory(run_dir)
    directory.check_writable()
    committed: list[int] = []
    if resume:
        config = check_resume(_absolute(directory.saved_config()), config)
        committed = directory.committed_steps()
        if committed and committed[-1] >= config.trainer.steps:
            return None
    elif directory.is_used():
        raise UserError(
            f"run_dir={run_dir} is not empty; add --resume to go on with it, "
            "or name another --run-dir"
        )
    config = config.model_copy(update={"run_dir": str(directory.root)})
    check_mesh(config)
    check_trackers(config.logging.trackers)
    corpus = corpus_of(config)
    if committed:
        check_cursor(directory.checkpoint_json(committed[-1])["cursor"], corpus)
    elif config.init_from is not None:
        check_weights(config.init_from, config.model)
    return TrainRequest(config, resume=bool(committed))


def start(request: TrainRequest, on_message: Messages) -> RunResult:
    """Runs the request to its end. Messages of rank r go to on_message(r, message).

    A fresh run that turns out to be refused leaves nothing in its folder. Raises RunFailed when
    the folder cannot be written, LaunchError when there is no cluster to run on.
    """
    config = request.config
    assert config.run_dir is not None
    directory = RunDirectory(config.run_dir)
    fresh = not directory.is_used()
    launcher: Launcher = LocalLauncher()
    if config.launcher == "ray":
        launcher = RayLauncher(address=config.address)
    try:
        directory.write_config(config)
        outcome = launcher.run(
            train,
            request,
            run_dir=str(directory.root),
            hosts=config.hosts,
            local_devices=config.devices_per_host or 1,
            attempt=directory.next_attempt(),
            on_message=on_message,
            startup_timeout=config.startup_timeout,
        )
    except LaunchError:
        if fresh:
            directory.forget()
        raise
    except OSError as error:
        raise RunFailed(disk_failure(directory.root, error)) from error
    if fresh and outcome.exit_code == BAD_ARGUMENTS:
        directory.forget()
    return _result(directory, outcome)


def write_page(run_dir: str) -> str:
    """Makes or renews report.html; returns its path."""
    return str(importlib.import_module("spark_dist.report").write_report(run_dir))


def _result(directory: RunDirectory, outcome: Outcome) -> RunResult:
    found: dict[str, Any] = outcome.result if isinstance(outcome.result, dict) else {}
    return RunResult(
        run_dir=str(directory.root),
        step=found.get("step", outcome.step),
        loss=found.get("loss"),
        bits_per_byte=found.get("bits_per_byte"),
        exit=outcome.exit_code,
        cause=outcome.cause,
        detail=outcome.detail,
        ffn_active_fraction=tuple(found["ffn_active_fraction"])
        if "ffn_active_fraction" in found
        else None,
        sample=found.get("sample"),
    )


def _absolute(config: RunConfig) -> RunConfig:
    """The same files by names that hold in any folder."""

    def full(name: str) -> str:
        return name if "://" in name else os.path.abspath(name)

    data = config.data.model_copy(
        update={
            "corpus": tuple(map(full, config.data.corpus)),
            "validation": tuple(map(full, config.data.validation)),
            "tokenizer": "byte" if config.data.tokenizer == "byte" else full(config.data.tokenizer),
        }
    )
    source = None if config.init_from is None else full(config.init_from)
    return config.model_copy(update={"data": data, "init_from": source})
