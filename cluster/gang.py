"""The actors of one attempt: started together, watched together, ended together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .ending import Ending
from .environment import HostShape
from .exits import Watched, lost_a_peer, read_tail, signal_in_log
from .host_actor import CALLS_AT_ONCE, HostActor
from .launcher import Interrupted, LaunchError
from .outcome import FAILED, one_line
from .worker import rank_log

POLL_SECONDS = 1.0  # a poll waits this long in the actor for something to tell
LOOK_SECONDS = 0.1  # the driver looks at its signals and clocks this often
ANSWER_SECONDS = 60.0  # for an answer that takes no work
END_SECONDS = 10.0  # for the processes to be gone after they were killed


class StartupTimeout(RuntimeError):
    """Not all ranks answered in time; `missing` are their numbers."""

    def __init__(self, message: str, missing: list[int]) -> None:
        super().__init__(message)
        self.missing = missing


@dataclass
class Member:
    """One rank as the driver sees it."""

    rank: int
    actor: Any
    poll: Any = None
    place: dict[str, Any] | None = None
    process: Watched | None = None
    ending: Ending | None = None


class Gang:
    """All ranks of one attempt, as actors of the cluster this process is connected to.

    The methods are meant to be called in order: `create`, `connect`, `start`, then `news` again
    and again, and `end` in any case.
    """

    def __init__(self, run_dir: Path, attempt: int, hosts: int, shape: HostShape) -> None:
        self.run_dir = run_dir
        self.attempt = attempt
        self.shape = shape
        self.members = [Member(rank, None) for rank in range(hosts)]
        self._group: Any = None

    def create(self, *, strategy: str, environment: dict[str, str]) -> None:
        """Ask Ray for one fresh process per rank, all at once; waits for nothing.

        `environment` is what the processes lack of what the cluster itself was started with.
        """
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = dict(self.shape.resources)
        self._group = placement_group([resources] * len(self.members), strategy=strategy)
        cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
        remote = ray.remote(HostActor)
        for member in self.members:
            member.actor = remote.options(
                num_cpus=cpus,
                num_gpus=gpus,
                resources=resources,
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=CALLS_AT_ONCE,
                runtime_env={"env_vars": environment} if environment else None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=member.rank
                ),
            ).remote(member.rank, self.attempt, str(self.run_dir))

    def connect(self, deadline: float, interrupted: Callable[[], bool]) -> None:
        """Wait until every rank answers. `deadline` on the monotonic clock.

        Raises StartupTimeout naming the missing ranks, LaunchError if a process dies first,
        Interrupted when `interrupted` turns true.
        """
        import ray
        from ray.exceptions import RayError

        waiting = {member.actor.hello.remote(): member for member in self.members}
        while waiting:
            if interrupted():
                raise Interrupted
            if time.monotonic() > deadline:
                raise self._missing(sorted(member.rank for member in waiting.values()))
            ready, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK_SECONDS)
            for reference in ready:
                member = waiting.pop(reference)
                try:
                    member.place = ray.get(reference)
                except RayError as error:
                    raise LaunchError(
                        f"rank {member.rank} did not start: {_ray_detail(error)}"
                    ) from error
                if self._is_here(member):
                    assert member.place is not None
                    member.process = Watched(member.place["pid"])

    def start(self, blob: bytes) -> None:
        """Start the payload on every rank; `blob` is the pickled (payload, config)."""
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError

        place = {
            "world_size": len(self.members),
            "coordinator": None,
            "local_devices": self.shape.local_devices,
        }
        for member in self.members:
            member.poll = member.actor.poll.remote(POLL_SECONDS)
        try:
            if len(self.members) > 1:
                first = self.members[0]
                assert first.place is not None
                port = ray.get(first.actor.reserve_port.remote(), timeout=ANSWER_SECONDS)
                place["coordinator"] = f"{first.place['address']}:{port}"
            started = [member.actor.start.remote(blob, place) for member in self.members]
            ray.get(started, timeout=ANSWER_SECONDS)
        except RayActorError:
            return  # a process is gone: the polls say which
        except GetTimeoutError as error:
            raise LaunchError(f"a rank did not answer within {ANSWER_SECONDS:g} s") from error

    def news(self) -> list[tuple[Member, dict[str, Any] | None]]:
        """Wait a moment for answers of ranks that run: (rank, what `HostActor.poll` returned).

        None stands for a process that is gone; its `ending` is then set.
        """
        import ray
        from ray.exceptions import RayError

        running = {member.poll: member for member in self.members if member.ending is None}
        if not running:
            return []
        found: list[tuple[Member, dict[str, Any] | None]] = []
        ready, _ = ray.wait(list(running), num_returns=1, timeout=LOOK_SECONDS)
        for reference in ready:
            member = running[reference]
            try:
                answer = ray.get(reference)
            except RayError as error:
                member.ending = self._of_death(member, error)
                found.append((member, None))
                continue
            if answer["ending"] is None:
                member.poll = member.actor.poll.remote(POLL_SECONDS)
            else:
                member.ending = Ending.decoded(answer["ending"])
            found.append((member, answer))
        return found

    def ask_to_stop(self) -> None:
        """Make `should_stop` true on every rank."""
        for member in self.members:
            if member.ending is None:
                member.actor.stop.remote()

    def end(self) -> None:
        """Kill every process and give the resources back. No rank gets a chance to wait for peers.

        Waits at most `END_SECONDS` for the processes to be gone.
        """
        import ray
        from ray.util.placement_group import remove_placement_group

        actors = [member.actor for member in self.members if member.actor is not None]
        for member in self.members:
            if member.process is not None:
                member.process.kill()  # also a stopped process, which answers no call
        for actor in actors:
            ray.kill(actor, no_restart=True)
        if self._group is not None:
            remove_placement_group(self._group)
        deadline = time.monotonic() + END_SECONDS
        # A call to a dead actor fails, so this returns as soon as Ray knows of every death.
        calls = [actor.hello.remote() for actor in actors]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=END_SECONDS)
        for member in self.members:
            if member.process is not None:
                while not member.process.gone() and time.monotonic() < deadline:
                    time.sleep(0.01)
                member.process.close()

    def _is_here(self, member: Member) -> bool:
        import ray

        assert member.place is not None
        return member.place["node"] == ray.get_runtime_context().get_node_id()

    def _missing(self, ranks: list[int]) -> StartupTimeout:
        names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        if len(ranks) == len(self.members):
            needs = ", ".join(f"{amount:g} {name}" for name, amount in self.shape.resources.items())
            return StartupTimeout(
                f"{names} did not start in time; each needs {needs} on a node of the cluster", ranks
            )
        return StartupTimeout(f"{names} did not start in time; the others did", ranks)

    def _of_death(self, member: Member, error: Exception) -> Ending:
        from ray.exceptions import OutOfMemoryError, RayTaskError

        if isinstance(error, RayTaskError):  # a call failed, the process may live
            detail = one_line(f"{type(error).__name__}: {error.cause}")
            return Ending(member.rank, "raised", FAILED, time.time(), detail=detail)
        text = str(error)
        tail = read_tail(rank_log(self.run_dir, self.attempt, member.rank))
        how = member.process.ending() if member.process is not None else None
        memory = isinstance(error, OutOfMemoryError) or "memory pressure" in text
        detail = how or signal_in_log(tail) or _ray_detail(error)
        return Ending(
            member.rank,
            "out_of_memory" if memory else "died",
            FAILED,
            time.time(),
            detail=f"ended by Ray: {one_line(text)}" if memory else detail,
            consequence=lost_a_peer(tail),
        )


def _ray_detail(error: Exception) -> str:
    """Ray's own account of a death, without the list of possible causes."""
    text = str(error)
    if "creation task" in text:  # a traceback follows; its last line is the error
        return one_line(text.strip().splitlines()[-1], 300)
    for opening in ("Worker exit detail:", "The actor died because", "The actor is dead because"):
        if opening in text:
            text = text[text.index(opening) :].removeprefix("Worker exit detail:")
            break
    return one_line(text.split("Some common causes")[0], 300)
