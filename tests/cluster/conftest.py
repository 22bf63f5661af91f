"""Drivers in processes of their own, and clusters for them to join."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # the payloads; Ray gives its workers the driver's path

from cluster_drivers import Driver, Running, environment  # noqa: E402


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drive.py: drive(payload, hosts, config, variables={...}, **options)."""
    drivers: list[Driver] = []

    def start(
        payload: str,
        hosts: int,
        config: Any = None,
        *,
        run_dir: Path | None = None,
        variables: dict[str, str] | None = None,
        python: str = sys.executable,
        **options: Any,
    ) -> Driver:
        folder = str(run_dir or tmp_path / "run")
        command = [python, str(HERE / "drive.py"), payload, folder, str(hosts)]
        command += [json.dumps(config), json.dumps(options)]
        drivers.append(Driver(command, environment(**(variables or {})), tmp_path))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()


@pytest.fixture
def events(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """Reads the events of the test's run."""
    from spark_dist.cluster import read_events

    return lambda: read_events(tmp_path / "run" / "events.jsonl")


@pytest.fixture
def running_cluster() -> Iterator[Callable[..., Running]]:
    """Starts a Ray cluster of real node processes: running_cluster(nodes, python=...)."""
    with contextlib.ExitStack() as stack:

        def start(nodes: int, *, cpus: int = 1, python: str = sys.executable) -> Running:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp", ignore_cleanup_errors=True)
            )
            token = Path(folder, "token")
            token.write_text(secrets.token_hex(32))
            token.chmod(0o600)
            variables = {
                "RAY_AUTH_MODE": "token",
                "RAY_AUTH_TOKEN_PATH": str(token),
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
                "RAY_TMPDIR": folder,
                "RAY_USAGE_STATS_ENABLED": "0",
            }
            bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
            command = [python, str(HERE / "nodes.py"), str(nodes), str(cpus)]
            driver = Driver(command, {**bare, **variables}, Path(folder))
            stack.callback(driver.close)
            address = driver.wait_for(lambda r: "address" in r)["address"]
            driver.note_family()
            return Running(driver, address, variables)

        yield start
