"""The launcher over Ray: one actor per host, on an embedded cluster or at an address."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .embedded import embedded_cluster
from .environment import (
    cpu_shape,
    host_shape,
    import_path,
    machine_may_have_chips,
    wanted_accelerator,
)
from .events import EventLog
from .gang import Gang
from .launcher import Interrupted, LaunchError, Mailbox, OnMessage, Payload, check_request
from .outcome import Outcome, not_begun, one_line
from .quiet import raylet_notes_to
from .ship import staged
from .signals import StopSignals
from .watch import Watch

_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Request:
    """The hosts that are asked for."""

    run_dir: Path
    hosts: int
    local_devices: int | None
    attempt: int


@dataclass(frozen=True)
class RayLauncher:
    """Runs one process per host under Ray.

    Without `address` a cluster of this machine alone is started and ended with the attempt.
    `ship` names further folders or modules that workers of a cluster at `address` need, beside
    this package. `stop_grace`: seconds from a request to stop until the ranks are killed;
    `end_grace`: seconds for the other ranks to end after the first one did.
    """

    address: str | None = None
    ship: tuple[str, ...] = ()
    stop_grace: float = 300.0
    end_grace: float = 600.0

    def run(
        self,
        payload: Payload,
        config: Any,
        *,
        run_dir: str | Path,
        hosts: int = 1,
        local_devices: int | None = None,
        attempt: int = 1,
        on_message: OnMessage | None = None,
        startup_timeout: float = 300.0,
    ) -> Outcome:
        """See `Launcher.run`. Raises LaunchError if there is no cluster to run on."""
        check_request(hosts, local_devices, attempt)
        wanted_accelerator()
        if self.address is not None:
            _check_reachable(self.address)
        request = Request(
            run_dir=Path(run_dir).absolute(),
            hosts=hosts,
            local_devices=local_devices,
            attempt=attempt,
        )
        events = EventLog(request.run_dir / "events.jsonl")
        mailbox = Mailbox(events, attempt, on_message)
        began = time.monotonic()
        where = "embedded cluster" if self.address is None else f"cluster at {self.address}"
        notes = request.run_dir / "attempts" / str(attempt) / "ray.log"
        try:
            with StopSignals() as signals, raylet_notes_to(notes), self._gang(request) as gang:
                signals.install()
                events.write(
                    "launch",
                    attempt=attempt,
                    seconds=time.monotonic() - began,
                    detail=f"ray, {where}, hosts={hosts}",
                )
                watch = Watch(gang, events, mailbox, signals, began)
                outcome = watch.run(
                    _pickled(payload, config),
                    startup_timeout=startup_timeout,
                    stop_grace=self.stop_grace,
                    end_grace=self.end_grace,
                )
        except Interrupted as error:
            outcome = not_begun(str(error))
        events.write(
            "end",
            attempt=attempt,
            step=outcome.step,
            seconds=time.monotonic() - began,
            cause=outcome.cause,
            detail=outcome.detail or None,
        )
        return outcome

    @contextmanager
    def _gang(self, request: Request) -> Iterator[Gang]:
        """Connect to the cluster and ask it for the actors; everything ends with the context."""
        clusters = self._embedded if self.address is None else self._existing
        with clusters(request) as (gang, strategy, environment):
            try:
                gang.create(strategy=strategy, environment=environment)
                yield gang
            finally:
                gang.end()

    @contextmanager
    def _embedded(self, request: Request) -> Iterator[tuple[Gang, str, dict[str, str]]]:
        hosts, devices = request.hosts, request.local_devices
        chips = machine_may_have_chips()
        shape = cpu_shape(hosts_here=hosts, local_devices=devices, elsewhere=False)
        with embedded_cluster(
            request.run_dir,
            hosts=hosts,
            gpus=None if chips else 0,
            environment={"PYTHONPATH": import_path(), **({} if chips else shape.environment)},
        ):
            if chips:
                nodes = _nodes()
                shape = host_shape(nodes, hosts=hosts, local_devices=devices, embedded=True)
            gang = Gang(request.run_dir, request.attempt, hosts, shape)
            yield gang, "PACK", shape.environment if chips else {}

    @contextmanager
    def _existing(self, request: Request) -> Iterator[tuple[Gang, str, dict[str, str]]]:
        assert self.address is not None
        hosts, devices = request.hosts, request.local_devices
        with _connection(self.address, self.ship):
            nodes = _nodes()
            shape = host_shape(nodes, hosts=hosts, local_devices=devices, embedded=False)
            gang = Gang(request.run_dir, request.attempt, hosts, shape)
            fitting = sum(_offers(node, shape.resources) for node in nodes)
            # Chips belong to one host each; CPU hosts may share a node of a small cluster.
            apart = shape.accelerator is not None or fitting >= hosts
            yield gang, "STRICT_SPREAD" if apart else "SPREAD", shape.environment


def _pickled(payload: Payload, config: Any) -> bytes:
    from ray import cloudpickle

    return cloudpickle.dumps((payload, config))  # pyright: ignore[reportPrivateImportUsage]


def _nodes() -> list[dict[str, Any]]:
    import ray

    return ray.nodes()


def _offers(node: dict[str, Any], resources: dict[str, float]) -> bool:
    has = node.get("Resources", {})
    return bool(node.get("Alive")) and all(has.get(name, 0) >= n for name, n in resources.items())


@contextmanager
def _connection(address: str, ship: tuple[str, ...]) -> Iterator[None]:
    """Connect to a running cluster, and send its workers this package and what `ship` names."""
    import ray

    if ray.is_initialized():
        raise LaunchError(
            f"address={address}: this process is connected to a Ray cluster already; "
            "call ray.shutdown() first"
        )
    try:
        with staged(ship) as modules:  # they are in the cluster when `init` returns
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.WARNING,
                runtime_env={"py_modules": modules},
            )
    except SystemExit as error:  # Ray's own handler of SIGTERM is in place while it connects
        ray.shutdown()
        raise Interrupted("SIGTERM") from error
    except Exception as error:
        ray.shutdown()
        raise LaunchError(f"address={address}: {_reason(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _reason(error: BaseException) -> str:
    """Why a cluster could not be joined. What Ray raises hides the cause behind others."""
    from ray.exceptions import AuthenticationError

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, AuthenticationError) or "InvalidAuthToken" in str(chain):
            return (
                "the cluster refuses this process's token; set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN_PATH to a file with the token it was started with"
            )
        chain = chain.__cause__ or chain.__context__
    return f"cannot join: {one_line(error)}"


def _check_reachable(address: str) -> None:
    """Fail within seconds where nothing listens; Ray itself would try for minutes."""
    if address == "auto":
        return
    if address == "local" or "://" in address:
        raise LaunchError(
            f"address={address} must be HOST:PORT of a Ray head that this machine is a node of, "
            "or auto; leave it out for an embedded cluster"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise LaunchError(f"address={address} must be HOST:PORT, for example 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise LaunchError(
            f"address={address}: nothing answers there ({one_line(error)}); start Ray, "
            "or leave the address out for an embedded cluster"
        ) from error
