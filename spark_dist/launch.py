"""Starts a training run: every check that needs no device, then the launcher.

No JAX here; with the `ray` launcher this process never imports it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from spark_dist.cluster import Launcher, LocalLauncher, Outcome, RayLauncher

from .config import RunConfig
from .corpus import corpus_of
from .errors import UserError
from .payload import TrainRequest, train
from .run_directory import RunDirectory, check_resume, locate

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


def plan(config: RunConfig, *, resume: bool, init_from: str | None) -> TrainRequest | None:
    """What to start after every check; None when a resumed run is already finished.

    Raises UserError or pipelines.DataError. Writes nothing.
    """
    config = config.resolved() if not resume else config
    run_dir = config.run_dir or f"runs/{config.preset}"
    directory = RunDirectory(run_dir)
    directory.check_writable()
    if resume:
        if init_from is not None:
            raise UserError("--resume and --init-from exclude each other; give one of the two")
        config = check_resume(directory.saved_config(), config)
        committed = directory.committed_steps()
        if committed and committed[-1] >= config.trainer.steps:
            return None
        resume = bool(committed)
    elif directory.is_used():
        raise UserError(
            f"run_dir={run_dir} is not empty; add --resume to go on with it, "
            "or name another --run-dir"
        )
    config = config.model_copy(update={"run_dir": str(directory.root)})
    _check_devices(config)
    corpus_of(config)
    if init_from is not None:
        locate(init_from)
        init_from = os.path.abspath(init_from)
    return TrainRequest(config, resume, init_from)


def start(request: TrainRequest, on_message: Messages) -> RunResult:
    """Runs the request to its end. Messages of rank r go to on_message(r, message)."""
    config = request.config
    assert config.run_dir is not None
    directory = RunDirectory(config.run_dir)
    directory.write_config(config)
    launcher: Launcher = LocalLauncher()
    if config.launcher == "ray":
        launcher = RayLauncher(address=config.address)
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


def _check_devices(config: RunConfig) -> None:
    """What can be known of the mesh before the devices are seen: on CPU, their number."""
    if os.environ.get("JAX_PLATFORMS", "cpu") != "cpu":
        return
    devices = config.hosts * (config.devices_per_host or 1)
    sizes = {name: getattr(config.mesh, name) for name in ("data", "fsdp", "tensor")}
    fixed = 1
    for size in sizes.values():
        fixed *= max(size, 1)
    named = " ".join(f"mesh.{name}={size}" for name, size in sizes.items())
    if devices % fixed or (-1 not in sizes.values() and fixed != devices):
        raise UserError(
            f"{named} does not fit {config.hosts} hosts x {devices // config.hosts} devices; "
            "set --devices-per-host, or one mesh size to -1"
        )
