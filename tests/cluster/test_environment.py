"""What hosts are given: chips, CPU devices, variables."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from spark_dist.cluster import LaunchError
from spark_dist.cluster.environment import host_shape, import_path, machine_may_have_chips


def _node(alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": 8.0, **resources}}


@pytest.fixture
def platforms(monkeypatch: pytest.MonkeyPatch) -> Any:
    def setting(value: str | None) -> None:
        if value is None:
            monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        else:
            monkeypatch.setenv("JAX_PLATFORMS", value)

    return setting


def test_cpu_hosts_share_the_threads_of_a_machine(
    platforms: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    platforms("cpu")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    shape = host_shape([_node(GPU=4.0)], hosts=4, local_devices=2, embedded=True)
    assert shape.resources == {"CPU": 1.0}
    assert shape.local_devices == 2
    assert shape.environment["JAX_PLATFORMS"] == "cpu"
    assert shape.environment["JAX_NUM_CPU_DEVICES"] == "2"
    assert shape.environment["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    shape = host_shape([_node()], hosts=4, local_devices=None, embedded=True)
    assert shape.environment["OMP_NUM_THREADS"] == "5", "what the user sets stays"
    assert shape.local_devices == 1


def test_a_host_owns_all_chips_of_its_node(platforms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    platforms(None)
    monkeypatch.setenv("XLA_FLAGS", "--of-mine")
    nodes = [_node(), _node(GPU=8.0), _node(GPU=8.0), _node(alive=False, GPU=2.0)]
    shape = host_shape(nodes, hosts=2, local_devices=1, embedded=False)
    assert shape.resources == {"CPU": 1.0, "GPU": 8.0}
    assert shape.local_devices == 8, "devices to pretend are for the CPU"
    assert shape.environment["XLA_FLAGS"] == "--of-mine"
    assert "JAX_NUM_CPU_DEVICES" not in shape.environment
    tpus = host_shape([_node(TPU=4.0)] * 2, hosts=2, local_devices=None, embedded=False)
    assert tpus.resources == {"CPU": 1.0, "TPU": 4.0}


def test_embedded_hosts_share_the_chips(platforms: Any) -> None:
    platforms("cuda,cpu")
    shape = host_shape([_node(GPU=4.0)], hosts=2, local_devices=None, embedded=True)
    assert shape.resources["GPU"] == 2.0
    with pytest.raises(LaunchError, match="hosts=8 but this machine has 4 GPU"):
        host_shape([_node(GPU=4.0)], hosts=8, local_devices=None, embedded=True)


def test_chips_that_are_asked_for_must_be_there(platforms: Any) -> None:
    platforms("tpu")
    with pytest.raises(LaunchError, match="no node of the cluster offers TPU"):
        host_shape([_node()], hosts=1, local_devices=None, embedded=False)
    platforms("abacus")
    with pytest.raises(LaunchError, match="JAX_PLATFORMS=abacus is none of cpu"):
        machine_may_have_chips()


def test_the_cpu_is_not_searched_for_chips(platforms: Any) -> None:
    platforms("cpu")
    assert not machine_may_have_chips()
    platforms("tpu")
    assert machine_may_have_chips()


def test_the_import_path_for_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", ["/mine", *sys.path, "/also/mine"])
    places = import_path().split(os.pathsep)
    assert (places[0], places[-1]) == ("/mine", "/also/mine")
    assert not any("site-packages" in place or "lib-dynload" in place for place in places)
    assert os.path.dirname(os.__file__) not in places
