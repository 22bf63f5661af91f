"""What a host's process finds in its environment before it imports JAX."""

from __future__ import annotations

import glob
import os
import sys
import sysconfig
from dataclasses import dataclass
from typing import Any

from .launcher import LaunchError

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# SIGTERM to a host means `should_stop`; JAX's service would take the signal for itself.
_ALWAYS = {"JAX_ENABLE_PREEMPTION_SERVICE": "false"}
_PASSED_ON = ("JAX_", "XLA_", "NCCL_", "LIBTPU_INIT_ARGS", "TF_CPP_")
_DEVICE_FILES = ("/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/[0-9]*", "/dev/kfd")
_RESOURCES = {"cpu": None, "tpu": "TPU", "gpu": "GPU", "cuda": "GPU", "rocm": "GPU"}


@dataclass(frozen=True)
class HostShape:
    """What one host's actor owns: Ray resources, devices for JAX, environment variables."""

    resources: dict[str, float]
    local_devices: int
    environment: dict[str, str]
    accelerator: str | None


def wanted_accelerator() -> str | None:
    """The Ray resource that JAX_PLATFORMS asks for; "" for the CPU, None where it is not set."""
    platform = os.environ.get("JAX_PLATFORMS", "").split(",")[0].strip().lower()
    if not platform:
        return None
    if platform not in _RESOURCES:
        raise LaunchError(f"JAX_PLATFORMS={platform} is none of {', '.join(sorted(_RESOURCES))}")
    return _RESOURCES[platform] or ""


def cpu_environment(local_devices: int, hosts_here: int) -> dict[str, str]:
    """For a CPU host that shares its machine with `hosts_here` - 1 others.

    XLA's own thread pool keeps the size of the machine: a collective may hold a thread of it.
    """
    share = max(1, len(os.sched_getaffinity(0)) // hosts_here)
    threads = {name: os.environ.get(name, str(share)) for name in _THREADS}
    devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(local_devices)}
    return {**_ALWAYS, **devices, **threads}


def import_path() -> str:
    """This process's import path for workers of the same interpreter, as PYTHONPATH.

    What the interpreter finds by itself is left out.
    """
    own = {os.path.realpath(place) for place in sysconfig.get_paths().values()}
    own |= {os.path.join(place, "lib-dynload") for place in own}
    places = [os.path.abspath(place) for place in sys.path if not place.endswith(".zip")]
    return os.pathsep.join(
        place for place in dict.fromkeys(places) if os.path.realpath(place) not in own
    )


def passed_on() -> dict[str, str]:
    """Settings of JAX and its libraries in this process, for hosts elsewhere."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}


def chips(nodes: list[dict[str, Any]], accelerator: str | None) -> tuple[str | None, int]:
    """The accelerator of a cluster and how many each of its nodes has (the fewest of them).

    `nodes` as `ray.nodes()` gives them; `accelerator` what was asked for: None for any, "" for
    none. Raises LaunchError if the cluster lacks it.
    """
    alive = [node.get("Resources", {}) for node in nodes if node.get("Alive")]
    for name in ("TPU", "GPU") if accelerator is None else (accelerator,) if accelerator else ():
        counts = [int(resources[name]) for resources in alive if resources.get(name, 0) >= 1]
        if counts:
            return name, min(counts)
    if accelerator:
        raise LaunchError(
            f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']} but no node of the cluster offers "
            f"{accelerator}; set JAX_PLATFORMS=cpu, or start Ray where the chips are"
        )
    return None, 0


def machine_may_have_chips() -> bool:
    """Whether this machine shows an accelerator's device file, and its use is not ruled out."""
    wanted = wanted_accelerator()
    if wanted is not None:
        return bool(wanted)
    return any(glob.glob(pattern) for pattern in _DEVICE_FILES)


def cpu_shape(*, hosts_here: int, local_devices: int | None, elsewhere: bool) -> HostShape:
    """A host without accelerators, `elsewhere` or on this machine."""
    devices = local_devices or 1
    environment = cpu_environment(devices, hosts_here)
    if elsewhere:
        environment = {**passed_on(), **environment}
    return HostShape({"CPU": 1.0}, devices, environment, None)


def host_shape(
    nodes: list[dict[str, Any]], *, hosts: int, local_devices: int | None, embedded: bool
) -> HostShape:
    """What each of `hosts` actors gets: all chips of its node, or CPU devices where there are none.

    On an embedded cluster the hosts share one machine, and its chips evenly.
    """
    accelerator, count = chips(nodes, wanted_accelerator())
    if accelerator is None:
        hosts_here = hosts if embedded else 1
        return cpu_shape(hosts_here=hosts_here, local_devices=local_devices, elsewhere=not embedded)
    if embedded:
        if count < hosts:
            raise LaunchError(
                f"hosts={hosts} but this machine has {count} {accelerator}; "
                f"use hosts={count} or fewer, or JAX_PLATFORMS=cpu"
            )
        count //= hosts
    environment = {**({} if embedded else passed_on()), **_ALWAYS}
    resources = {"CPU": 1.0, accelerator: float(count)}
    return HostShape(resources, count, environment, accelerator)
