"""Joining a cluster of real node processes by its address."""

from __future__ import annotations

import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import cluster_payloads as payloads
import psutil
import pytest
from cluster_drivers import HERE, Driver, Running, wait_until

from spark_dist.cluster import LaunchError, RayLauncher

Drive = Callable[..., Driver]
Nodes = Callable[..., Running]
SHIPPED = [str(HERE / "cluster_payloads.py")]


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter with everything that this one has, except this package."""
    folder = tmp_path / "bare"
    command = [sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)]
    subprocess.run(command, check=True, timeout=120)
    site = next(folder.glob("lib/python*/site-packages"))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "spark_dist" not in entry.name:
            (site / entry.name).symlink_to(entry)
    python = str(folder / "bin" / "python")
    probe = "import importlib.util as u; assert not u.find_spec('spark_dist'); import ray, jax"
    subprocess.run([python, "-P", "-c", probe], check=True, timeout=120, cwd=tmp_path, env={})
    return python


@pytest.mark.cluster
def test_workers_that_lack_the_package_are_sent_it(
    running_cluster: Nodes, drive: Drive, bare_python: str
) -> None:
    cluster = running_cluster(2, python=bare_python)
    driver = drive(
        "facts",
        2,
        variables=cluster.variables,
        address=cluster.address,
        ship=SHIPPED,
    )
    last = driver.outcome()
    result = last["outcome"]["result"]
    assert last["outcome"]["cause"] == "finished", last
    assert not last["jax_imported"]
    assert str(Path(bare_python).parents[1]) == result["python"]
    assert "py_modules" in result["package"]
    assert {"kernels", "sharding", "pipelines", "cluster", "config.py"} <= set(result["wings"])
    assert result["environment"]["JAX_NUM_CPU_DEVICES"] == "1"
    nodes = [m["message"]["node"] for m in driver.seen[:-1] if m["message"]["kind"] == "place"]
    assert len(set(nodes)) == 2, "one host a node"


@pytest.mark.cluster
def test_a_run_and_a_failure_and_a_killed_driver(running_cluster: Nodes, drive: Drive) -> None:
    cluster = running_cluster(2)
    options = {"variables": cluster.variables, "address": cluster.address, "ship": SHIPPED}
    driver = drive("connected", 2, **options)
    result = driver.outcome()["outcome"]["result"]
    assert (result["process_count"], result["sum"]) == (2, 3.0)

    driver = drive("one_fails_connected", 2, {"rank": 1, "how": "kill"}, attempt=2, **options)
    outcome = driver.outcome()["outcome"]
    assert (outcome["cause"], outcome["rank"]) == ("died", 1)

    driver = drive("until_stopped", 2, attempt=3, **options)
    ready = driver.wait_ready(2)
    workers = [psutil.Process(message["pid"]) for message in ready.values()]
    driver.process.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, "actors end when their driver is gone"
    assert cluster.driver.process.poll() is None

    driver = drive("facts", 3, attempt=4, startup_timeout=8.0, **options)
    outcome = driver.outcome()["outcome"]
    assert outcome["cause"] == "startup_timeout"
    assert outcome["detail"].startswith("ranks 0, 1, 2 did not start in time; each needs 1 CPU")


@pytest.mark.cluster
def test_a_wrong_token_is_said(running_cluster: Nodes, drive: Drive, tmp_path: Path) -> None:
    cluster = running_cluster(1)
    token = tmp_path / "token"
    token.write_text("0" * 64)
    variables = {**cluster.variables, "RAY_AUTH_TOKEN_PATH": str(token)}
    driver = drive("facts", 1, variables=variables, address=cluster.address)
    assert driver.process.wait(120) == 1
    assert wait_until(lambda: "LaunchError: address=" in driver.errors)
    assert "token" in driver.errors.splitlines()[-1].lower()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("local", "address=local must be HOST:PORT"),
        ("ray://127.0.0.1:10001", "must be HOST:PORT of a Ray head"),
        ("nonsense", "address=nonsense must be HOST:PORT"),
    ],
)
def test_addresses_that_cannot_be(tmp_path: Path, address: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        RayLauncher(address).run(payloads.facts, None, run_dir=tmp_path)


def test_a_dead_address_fails_at_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(LaunchError, match=f"address={address}: nothing answers there"):
            RayLauncher(address).run(payloads.facts, None, run_dir=tmp_path)
