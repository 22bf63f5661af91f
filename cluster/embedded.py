"""A Ray cluster of this machine alone, started for one run and ended with it.

Every listener is on the loopback interface, every connection needs a generated token, there is no
dashboard and no usage report, and no process or file is left, however the driver ends.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from . import janitor
from .launcher import Interrupted, LaunchError
from .outcome import one_line

_MARK = "SPARK_DIST_CLUSTER"
# Ray reads a token once in a process: all embedded clusters of one process share it.
_TOKEN = secrets.token_hex(32)
_OBJECT_STORE_BYTES = 80 << 20  # near Ray's minimum; only short messages travel
# Unix socket paths are limited to 107 bytes, and Ray adds about 65 to its folder's path.
_LONGEST_FOLDER = 36
_JANITOR_SECONDS = janitor.PATIENCE_SECONDS + 10.0


@contextmanager
def embedded_cluster(
    run_dir: Path, *, hosts: int, gpus: int | None, environment: Mapping[str, str]
) -> Iterator[None]:
    """Start a cluster with room for `hosts` actors of one CPU each, and connect to it.

    `gpus` is the number of GPUs to offer, None for all that Ray finds. `environment` holds for
    every worker. Raises LaunchError if Ray does not start, or not on the loopback interface only.
    """
    folder = _short_folder()
    token = run_dir / ".ray-token"
    mark = f"{_MARK}={folder}"
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", janitor.__file__, mark, folder, str(token)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _write_token(token)
        variables = {
            **environment,
            _MARK: folder,
            # Read when ray is imported, and by every process of the cluster: listen on 127.0.0.1.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_AUTH_TOKEN": None,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            # Else ray.init would wait, without bound, for worker processes started ahead.
            "RAY_prestart_worker_first_driver": "0",
            # Ray's workers yield to everything else on the machine; here they are the work.
            "RAY_worker_niceness": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        try:
            with _variables(variables):
                _start(folder, hosts, gpus)
            yield
        finally:
            _end()
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(_JANITOR_SECONDS)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()


def _start(folder: str, hosts: int, gpus: int | None) -> None:
    import ray

    if ray.is_initialized():
        raise LaunchError(
            "this process is connected to a Ray cluster already; call ray.shutdown() first, "
            "or name that cluster with --address"
        )
    try:
        ray.init(
            address="local",  # never a cluster that happens to be running here
            num_cpus=hosts,
            num_gpus=gpus,
            object_store_memory=_OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _temp_dir=folder + "/ray",
        )
    except SystemExit as error:  # Ray's own handler of SIGTERM is in place while it starts
        raise Interrupted("SIGTERM") from error
    except Exception as error:
        raise LaunchError(f"the embedded Ray cluster did not start: {one_line(error)}") from error
    listens = ray.get_runtime_context().gcs_address
    if not listens.startswith("127."):
        raise LaunchError(
            f"the embedded Ray cluster listens on {listens}: ray was imported before it could be "
            "told to stay on 127.0.0.1; set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before importing it"
        )


def _end() -> None:
    ray = sys.modules.get("ray")
    if ray is not None:
        ray.shutdown()


def _short_folder() -> str:
    base = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="sd-", dir=base)
    if len(folder) > _LONGEST_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="sd-", dir="/tmp")
    return folder


def _write_token(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an earlier run that was killed together with its janitor
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(_TOKEN)


@contextmanager
def _variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set (or with None remove) variables of this process's environment for a while."""
    former = {name: os.environ.get(name) for name in values}
    _set_all(values)
    try:
        yield
    finally:
        _set_all(former)


def _set_all(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
