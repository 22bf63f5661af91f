"""The embedded cluster: seen by nobody else, and gone afterwards, however the driver ends."""

from __future__ import annotations

import ipaddress
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from cluster_drivers import Driver, wait_until

pytestmark = pytest.mark.cluster
Drive = Callable[..., Driver]


def _ray_folder(pid: int) -> Path:
    """The temporary folder of the cluster that a worker belongs to."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return Path(next(e for e in entries if e.startswith("SPARK_DIST_CLUSTER=")).partition("=")[2])


def _is_loopback(address: str) -> bool:
    host = ipaddress.ip_address(address)
    if isinstance(host, ipaddress.IPv6Address) and host.ipv4_mapped:
        host = host.ipv4_mapped
    return host.is_loopback


def test_every_listener_is_on_the_loopback_interface(drive: Drive) -> None:
    driver = drive("connected", 2, "wait")
    driver.wait_ready(2)
    listeners = {}
    for process in [psutil.Process(driver.process.pid), *driver.family]:
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                listeners[connection.laddr.ip, connection.laddr.port] = process.name()
    assert len(listeners) > 5, "Ray's daemons and JAX's coordinator listen"
    outside = {place: name for place, name in listeners.items() if not _is_loopback(place[0])}
    assert not outside
    driver.process.send_signal(signal.SIGTERM)
    assert driver.outcome()["outcome"]["exit_code"] == 4


def test_nothing_is_left_when_the_driver_is_killed(drive: Drive, tmp_path: Path) -> None:
    driver = drive("parent", 2)
    ready = driver.wait_ready(2)
    folder = _ray_folder(ready[0]["pid"])
    assert folder.is_dir()
    assert folder.parent == Path(tempfile.gettempdir())
    assert folder.stat().st_mode & 0o077 == 0, "other users cannot reach its sockets"
    children = {message["child"] for message in ready.values()}
    assert children <= {process.pid for process in driver.family}
    driver.process.kill()
    assert not driver.left_over()
    assert wait_until(lambda: not folder.exists())
    assert not (tmp_path / "run" / ".ray-token").exists()


def test_children_of_the_payload_end_with_the_run(drive: Drive) -> None:
    driver = drive("parent", 1)
    ready = driver.wait_ready(1)
    folder = _ray_folder(ready[0]["pid"])
    driver.process.send_signal(signal.SIGTERM)
    driver.outcome()
    assert not driver.left_over(seconds=1.0), "they are gone when the driver is"
    assert not folder.exists()


def test_two_clusters_at_once(drive: Drive, tmp_path: Path) -> None:
    drivers = [drive("until_stopped", 2, run_dir=tmp_path / name) for name in ("a", "b")]
    folders = [_ray_folder(driver.wait_ready(2)[0]["pid"]) for driver in drivers]
    assert folders[0] != folders[1]
    drivers[0].process.send_signal(signal.SIGTERM)
    assert drivers[0].outcome()["outcome"]["exit_code"] == 4
    assert not folders[0].exists()
    assert drivers[1].process.poll() is None, "the other one lives on"
    drivers[1].process.send_signal(signal.SIGTERM)
    assert drivers[1].outcome()["outcome"]["exit_code"] == 4


def test_a_long_temporary_folder_does_no_harm(drive: Drive, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    driver = drive("facts", 1, variables={"TMPDIR": str(long)})
    assert driver.outcome()["outcome"]["cause"] == "finished"
    assert os.listdir(long) == []
