"""From a fresh process to a mesh on which every host is known to run the same thing."""

from __future__ import annotations

import hashlib
from collections import Counter

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from spark_dist.cluster import WorkerInfo
from spark_dist.kernels import backend
from spark_dist.sharding import make_mesh

from ..config import RunConfig
from ..digests import code_digest, config_digest
from ..errors import RunFailed, UserError
from ..mesh_fit import check_batch

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEARTBEAT_SECONDS = 30
SHUTDOWN_SECONDS = 30


def connect(config: RunConfig, worker: WorkerInfo) -> None:
    """Joins this process to the others. One process needs no coordinator."""
    if worker.world_size == 1:
        return
    assert worker.coordinator is not None
    host = worker.coordinator.rpartition(":")[0]
    jax.distributed.initialize(
        worker.coordinator,
        worker.world_size,
        worker.rank,
        initialization_timeout=int(config.startup_timeout),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        # On one machine nobody else needs to reach the coordinator.
        coordinator_bind_address=worker.coordinator if host in LOOPBACK else None,
    )


def build_mesh(config: RunConfig, worker: WorkerInfo) -> Mesh:
    """The mesh that the configuration names, checked against the devices and the batch.

    On CPU a lone process takes as many of its devices as it was told to own.
    Raises UserError naming the field that does not fit.
    """
    devices = jax.devices()
    if worker.world_size == 1 and devices[0].platform == "cpu":
        devices = devices[: worker.local_devices]
    sizes = config.mesh
    try:
        mesh = make_mesh(data=sizes.data, fsdp=sizes.fsdp, tensor=sizes.tensor, devices=devices)
    except ValueError as error:
        raise UserError(str(error)) from None
    check_batch(config, mesh.shape["data"] * mesh.shape["fsdp"])
    return mesh


def check_world(config: RunConfig, worker: WorkerInfo) -> None:
    """Asserts on every rank: process count, device counts, equal digests.

    Compared are the configuration, the code and the kernel backend of all ranks.
    Raises RunFailed naming the ranks that differ.
    """
    if jax.process_count() != worker.world_size:
        raise RunFailed(
            f"rank {worker.rank} sees {jax.process_count()} processes, the launcher started "
            f"{worker.world_size}; the hosts are not connected"
        )
    if jax.process_index() != worker.rank:
        raise RunFailed(f"rank {worker.rank} is process {jax.process_index()} to JAX")
    if worker.world_size == 1:
        return
    _check_device_counts(worker)
    facts = {
        "configuration": config_digest(config),
        "code": code_digest(),
        "kernel backend": hashlib.sha256(backend().encode()).hexdigest(),
    }
    mine = np.stack([np.frombuffer(bytes.fromhex(v), np.uint8) for v in facts.values()])
    world = np.asarray(multihost_utils.process_allgather(mine))
    for row, name in enumerate(facts):
        differing = [r for r in range(worker.world_size) if (world[r, row] != world[0, row]).any()]
        if differing:
            raise RunFailed(
                f"{name} of ranks {differing} differs from rank 0's; "
                "start all hosts from the same installation and configuration"
            )


def _check_device_counts(worker: WorkerInfo) -> None:
    """All processes must own equally many devices: on CPU, as many as the launcher said."""
    devices = jax.devices()
    counts = Counter(device.process_index for device in devices)
    wanted = worker.local_devices if devices[0].platform == "cpu" else counts[0]
    differing = {rank: counts[rank] for rank in range(worker.world_size) if counts[rank] != wanted}
    if differing:
        named = ", ".join(f"rank {rank} has {count}" for rank, count in differing.items())
        raise RunFailed(f"each host should own {wanted} devices: {named}; give all hosts the same")
