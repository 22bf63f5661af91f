"""Whether mesh, hosts and batch go together, as far as can be known without devices. No JAX."""

from __future__ import annotations

import glob
import os

from .config import RunConfig
from .errors import UserError

DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")


def check_mesh(config: RunConfig) -> None:
    """Raises UserError when the mesh does not fit the CPU devices that the run will have.

    Nothing is checked where the devices may be others: the hosts do it when they see them.
    """
    if not _surely_cpu(config):
        return
    own = config.devices_per_host or 1
    devices = config.hosts * own
    sizes = {name: getattr(config.mesh, name) for name in ("data", "fsdp", "tensor")}
    fixed = 1
    for size in sizes.values():
        fixed *= max(size, 1)
    left = -1 in sizes.values()
    if devices % fixed or (not left and fixed != devices):
        named = " ".join(f"mesh.{name}={size}" for name, size in sizes.items())
        raise UserError(
            f"{named} does not fit {config.hosts} hosts x {own} devices; "
            "set --devices-per-host, or one mesh size to -1"
        )
    sizes = {name: devices // fixed if size == -1 else size for name, size in sizes.items()}
    if own % sizes["tensor"]:
        raise UserError(
            f"mesh.tensor={sizes['tensor']} does not divide the {own} devices of a host; "
            "use a divisor, or set --devices-per-host"
        )
    check_batch(config, sizes["data"] * sizes["fsdp"])


def check_batch(config: RunConfig, devices: int) -> None:
    """Raises UserError unless the batch divides over `devices` that share it and micro-batches."""
    batch, parts = config.trainer.global_batch_size, config.trainer.grad_accumulation
    unit = devices * parts
    if batch % unit:
        lower = batch - batch % unit
        choice = f"{lower} or {lower + unit}" if lower else str(unit)
        raise UserError(
            f"trainer.global_batch_size={batch} is not divisible by the {devices} devices that "
            f"share a batch x trainer.grad_accumulation={parts}; use {choice}"
        )


def _surely_cpu(config: RunConfig) -> bool:
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted or config.address is not None:
        return wanted == "cpu"
    return not any(glob.glob(pattern) for pattern in DEVICE_FILES)
