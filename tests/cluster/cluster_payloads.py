"""Payloads for the launcher tests: importable in the workers, no JAX unless they run it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from spark_dist.cluster import PayloadError, Stopped, WorkerInfo

BOUND_SECONDS = 120.0  # no payload outlives a test that has gone wrong


def facts(config: Any, worker: WorkerInfo) -> dict[str, Any]:
    """What this process is told and finds."""
    import spark_dist

    ray = sys.modules.get("ray")  # a payload never needs it; the test does
    names = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "OMP_NUM_THREADS")
    worker.post({"kind": "progress", "step": 10 + worker.rank, "pid": os.getpid()})
    if worker.coordinator and ray:
        worker.post({"kind": "place", "node": ray.get_runtime_context().get_node_id()})
    worker.post({"kind": "event", "event": "save", "step": 7, "seconds": 0.5, "detail": "seven"})
    print(f"printed by rank {worker.rank}")
    os.write(2, f"native output of rank {worker.rank}\n".encode())
    return {
        "config": config,
        "rank": worker.rank,
        "world_size": worker.world_size,
        "attempt": worker.attempt,
        "run_dir": worker.run_dir,
        "local_devices": worker.local_devices,
        "coordinator": worker.coordinator,
        "main_thread": threading.current_thread() is threading.main_thread(),
        "jax_imported": "jax" in sys.modules,
        "package": spark_dist.__file__,
        "wings": sorted(path.name for path in Path(spark_dist.__file__).parent.iterdir()),
        "python": sys.prefix,
        "environment": {name: os.environ.get(name) for name in names},
    }


def _connect(worker: WorkerInfo) -> Any:
    import jax

    assert worker.coordinator is not None
    loopback = worker.coordinator.startswith("127.")
    jax.distributed.initialize(
        worker.coordinator,
        worker.world_size,
        worker.rank,
        coordinator_bind_address=worker.coordinator if loopback else None,
        initialization_timeout=60,
        heartbeat_timeout_seconds=10,
    )
    return jax


def _sum_over_devices(jax: Any) -> float:
    import numpy as np
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    here = [1 + device.process_index for device in jax.local_devices()]
    sharding = jax.sharding.NamedSharding(mesh, P("data"))
    x_D = jax.make_array_from_process_local_data(
        sharding, np.asarray(here, np.float32), (jax.device_count(),)
    )
    add = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )
    return float(jax.jit(add)(x_D).addressable_shards[0].data[0])


def connected(config: Any, worker: WorkerInfo) -> dict[str, Any]:
    """Connect the processes through JAX and add each device's 1 + process over all devices."""
    jax = _connect(worker)
    result = {
        "process_count": jax.process_count(),
        "process_index": jax.process_index(),
        "devices": jax.device_count(),
        "local_devices": jax.local_device_count(),
        "sum": _sum_over_devices(jax),
        "pid": os.getpid(),
    }
    worker.post({"kind": "facts", **result})
    if config == "wait":
        _wait_for_stop(worker, {"kind": "ready", "pid": os.getpid()})
        raise Stopped(1)
    return result


def _wait_for_stop(worker: WorkerInfo, message: dict[str, Any]) -> None:
    worker.post(message)
    never = threading.Event()
    for _ in range(int(BOUND_SECONDS / 0.02)):
        if worker.should_stop():
            return
        never.wait(0.02)
    raise PayloadError("nobody asked to stop")


def until_stopped(config: Any, worker: WorkerInfo) -> None:
    """Run until asked to stop, then stop at step 40 + rank; `config` "deaf" never stops."""
    message = {"kind": "ready", "step": 3, "pid": os.getpid()}
    _wait_for_stop(worker, message)
    worker.post({"kind": "asked"})
    if config == "deaf":
        threading.Event().wait(BOUND_SECONDS)
    raise Stopped(40 + worker.rank)


def one_fails(config: dict[str, Any], worker: WorkerInfo) -> dict[str, Any]:
    """Rank `config["rank"]` ends as `config["how"]` says; the others wait to be ended."""
    worker.post({"kind": "ready", "step": 5, "pid": os.getpid()})
    if worker.rank == config["rank"]:
        _end(config["how"])
    _wait_for_stop(worker, {"kind": "waiting"})
    return {}


def one_fails_connected(config: dict[str, Any], worker: WorkerInfo) -> dict[str, Any]:
    """The same in the middle of collectives: the others lose a peer."""
    jax = _connect(worker)
    _sum_over_devices(jax)
    worker.post({"kind": "ready", "step": 5, "pid": os.getpid()})
    if worker.rank == config["rank"]:
        _end(config["how"])
    while True:
        _sum_over_devices(jax)


def one_lags(config: Any, worker: WorkerInfo) -> dict[str, Any]:
    """Rank 0 returns, the others do not."""
    if worker.rank:
        threading.Event().wait(BOUND_SECONDS)
    return {}


def returns_nonsense(config: Any, worker: WorkerInfo) -> Any:
    """A result that is no JSON."""
    return {"value": object()}


def parent(config: Any, worker: WorkerInfo) -> None:
    """Start a child process, which must not outlive the run, then wait."""
    import subprocess

    child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({BOUND_SECONDS})"])
    _wait_for_stop(worker, {"kind": "ready", "pid": os.getpid(), "child": child.pid})


def _end(how: str) -> None:
    match how:
        case "raise":
            raise KeyError("a\nb")
        case "payload error":
            raise PayloadError("the corpus is too short", exit_code=2)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(5)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            raise MemoryError("no room")
        case _:
            raise AssertionError(how)
