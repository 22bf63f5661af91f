"""Sizes of the mesh, the order of its devices, refusals in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from jax.sharding import AxisType

from spark_dist.sharding import AXES, make_mesh, mesh_shape


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ((-1, 1, 1), (8, 1, 1)),
        ((2, -1, 2), (2, 2, 2)),
        ((1, 4, -1), (1, 4, 2)),
        ((8, -1, 1), (8, 1, 1)),
        ((2, 2, 2), (2, 2, 2)),
    ],
)
def test_the_open_size_takes_what_is_left(sizes, shape):
    assert mesh_shape(8, **dict(zip(AXES, sizes, strict=True))) == shape


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((-1, 3, 1), ["mesh.fsdp=3", "8 devices", "use sizes"]),
        ((-1, 16, 1), ["mesh.fsdp=16", "8 devices"]),
        ((2, 2, 1), ["mesh.data=2 mesh.fsdp=2 mesh.tensor=1", "needs 4 devices", "8", "to -1"]),
        ((4, 4, 1), ["needs 16 devices", "8", "to -1"]),
        ((-1, 0, 1), ["mesh.fsdp=0", "positive, or -1"]),
        ((-1, 1, -2), ["mesh.tensor=-2", "positive, or -1"]),
        ((-1, -1, 1), ["more than one -1"]),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, words):
    with pytest.raises(ValueError, match="mesh") as caught:
        mesh_shape(8, **dict(zip(AXES, sizes, strict=True)))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_mesh_of_all_devices():
    mesh = make_mesh()
    assert mesh.shape == {"data": 8, "fsdp": 1, "tensor": 1}
    assert mesh.axis_names == AXES
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()


def test_devices_are_sorted_and_tensor_neighbours_are_adjacent():
    devices = jax.devices()
    mesh = make_mesh(data=2, fsdp=2, tensor=2, devices=devices[::-1])
    assert list(mesh.devices.flat) == devices
    assert [d.id for d in mesh.devices[0, 0]] == [0, 1]
    assert make_mesh(devices=devices[3:5]).shape == {"data": 2, "fsdp": 1, "tensor": 1}


def test_tensor_axis_must_lie_within_a_host():
    hosts: list[Any] = [SimpleNamespace(process_index=i // 6, id=i) for i in range(12)]
    with pytest.raises(ValueError, match="mesh") as caught:
        make_mesh(data=3, fsdp=1, tensor=4, devices=hosts)
    assert str(caught.value) == "mesh.tensor=4 does not divide the 6 devices of a host; use 2"
