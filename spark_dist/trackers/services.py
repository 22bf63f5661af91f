"""W&B, mlflow and trackio. Each is imported when it is chosen and not before.

A resumed run goes on under the same identity: it is kept as `trackers.json` in the run directory.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .interface import TrackerError, scalars


class WandbTracker:
    """Weights & Biases; files under RUN/wandb. WANDB_MODE=offline needs no account."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], project: str):
        wandb = load("wandb")
        identity = _identity(run_dir, "wandb") or _keep(run_dir, "wandb", secrets.token_hex(4))
        self._run: Any = wandb.init(
            project=project,
            name=run_dir.name,
            id=identity,
            resume="allow",
            dir=str(run_dir),
            config=dict(config),
        )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


class MlflowTracker:
    """mlflow; goes to MLFLOW_TRACKING_URI, or to RUN/mlflow.db when that is not set."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any], project: str):
        mlflow = load("mlflow")
        self._metric = mlflow.entities.Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run_dir / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._run: Any = _identity(run_dir, "mlflow")
        if self._run is None:
            found = self._client.get_experiment_by_name(project)
            experiment = found.experiment_id if found else self._client.create_experiment(project)
            started = self._client.create_run(experiment, run_name=run_dir.name)
            self._run = _keep(run_dir, "mlflow", started.info.run_id)
            for name, value in _flat(config).items():
                self._client.log_param(self._run, name, value)
        else:
            self._client.update_run(self._run, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        now = int(time.time() * 1000)  # mlflow counts in milliseconds
        points = [self._metric(name, value, now, step) for name, value in scalars(metrics).items()]
        self._client.log_batch(self._run, metrics=points)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._client.set_terminated(run)


class TrackioTracker:
    """trackio; goes where TRACKIO_DIR, TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say.

    It prints; standard output belongs to the run, so that is sent to standard error.
    """

    def __init__(self, run_dir: Path, config: Mapping[str, Any], project: str):
        self._trackio = load("trackio")
        name = _identity(run_dir, "trackio")
        if name is None:
            name = _keep(run_dir, "trackio", f"{run_dir.name}-{secrets.token_hex(4)}")
        with contextlib.redirect_stdout(sys.stderr):
            self._run: Any = self._trackio.init(
                project,
                name=name,
                config=dict(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._run.log(scalars(metrics), step=step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            with contextlib.redirect_stdout(sys.stderr):
                self._trackio.finish()  # of the module: else it ends the run again at exit


def load(package: str) -> Any:
    """Imports `package`. Raises TrackerError naming it and the command that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise missing(package, error) from None


def missing(package: str, error: ImportError | None = None) -> TrackerError:
    """The error for a tracker whose package is not there, or is there and broken."""
    if isinstance(error, ModuleNotFoundError) and error.name == package:
        error = None
    reason = f"cannot be imported ({error})" if error else "is not installed"
    return TrackerError(
        f"logging.trackers={package}: the package {package} {reason}; "
        f"run: pip install 'spark-dist[{package}]'"
    )


def _identity(run_dir: Path, tracker: str) -> str | None:
    try:
        return json.loads((run_dir / "trackers.json").read_text()).get(tracker)
    except FileNotFoundError:
        return None


def _keep(run_dir: Path, tracker: str, identity: str) -> str:
    path = run_dir / "trackers.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(json.dumps({**known, tracker: identity}, indent=2) + "\n")
    scratch.replace(path)
    return identity


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = str(value)
    return flat
