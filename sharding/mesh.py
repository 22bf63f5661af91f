"""The device mesh of a run: axes `data`, `fsdp`, `tensor`, slowest first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor")


def mesh_shape(devices: int, *, data: int, fsdp: int, tensor: int) -> tuple[int, int, int]:
    """Sizes of the axes over `devices` devices; the one given as -1 takes what is left.

    Raises ValueError, naming the sizes, when they do not multiply to the device count.
    """
    sizes = [data, fsdp, tensor]
    for axis, size in zip(AXES, sizes, strict=True):
        if size != -1 and size < 1:
            raise ValueError(f"mesh.{axis}={size} must be positive, or -1 for what is left")
    if sizes.count(-1) > 1:
        raise ValueError(f"mesh {sizes} has more than one -1; fix all sizes but one")
    fixed = math.prod(s for s in sizes if s != -1)
    named = f"mesh.data={data} mesh.fsdp={fsdp} mesh.tensor={tensor}"
    if -1 in sizes:
        if devices % fixed:
            raise ValueError(
                f"{named} does not divide {devices} devices; use sizes whose product divides them"
            )
        sizes[sizes.index(-1)] = devices // fixed
    elif fixed != devices:
        raise ValueError(
            f"{named} needs {fixed} devices and there are {devices}; set one size to -1"
        )
    return sizes[0], sizes[1], sizes[2]


def make_mesh(
    *, data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Sequence[Any] | None = None
) -> Mesh:
    """A mesh of Auto axes over all devices, those of one process next to each other.

    The tensor axis must lie within a process, so that each process feeds whole rows.
    Raises ValueError when the sizes do not fit the devices.
    """
    found = sorted(devices or jax.devices(), key=lambda d: (d.process_index, d.id))
    shape = mesh_shape(len(found), data=data, fsdp=fsdp, tensor=tensor)
    local = sum(d.process_index == found[0].process_index for d in found)
    if local % shape[2]:
        raise ValueError(
            f"mesh.tensor={shape[2]} does not divide the {local} devices of a host; "
            f"use {math.gcd(shape[2], local)}"
        )
    return Mesh(np.asarray(found).reshape(shape), AXES, axis_types=(AxisType.Auto,) * 3)
