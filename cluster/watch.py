"""One attempt from the first answer of a rank to the verdict on how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence

from .ending import Ending
from .events import EventLog
from .gang import Gang, StartupTimeout
from .launcher import Interrupted, LaunchError, Mailbox
from .outcome import FAILED, Outcome, not_begun
from .signals import StopSignals

# After a failure the driver listens on for a moment, so that the rank that failed first is blamed
# and not one that lost it; longer when the first sign looks like such a loss.
BLAME_SECONDS = 0.3
BLAME_LOSS_SECONDS = 3.0


class Watch:
    """Drives a gang through one attempt. `began`: start of the launch on the monotonic clock."""

    def __init__(
        self, gang: Gang, events: EventLog, mailbox: Mailbox, signals: StopSignals, began: float
    ) -> None:
        self._gang = gang
        self._events = events
        self._mailbox = mailbox
        self._signals = signals
        self._began = began
        self._asked: float | None = None
        self._reason = ""

    def run(
        self, blob: bytes, *, startup_timeout: float, stop_grace: float, end_grace: float
    ) -> Outcome:
        """Wait for the ranks, start the payloads, and return when the attempt is decided.

        The ranks may still run then: the caller ends the gang.
        """
        try:
            deadline = self._began + startup_timeout
            self._gang.connect(deadline, lambda: self._signals.count > 0)
            self._gang.start(blob)
        except StartupTimeout as error:
            detail = f"{error} ({startup_timeout:g} s)"
            for rank in error.missing:
                self._event("exit", rank=rank, cause="startup_timeout")
            return Outcome("startup_timeout", FAILED, detail=detail, rank=error.missing[0])
        except LaunchError as error:
            return Outcome("died", FAILED, detail=str(error))
        except Interrupted:
            return not_begun(self._signals.name)
        for member in self._gang.members:
            self._event("started", rank=member.rank, seconds=time.monotonic() - self._began)
        return self._until_decided(stop_grace, end_grace)

    def _until_decided(self, stop_grace: float, end_grace: float) -> Outcome:
        first_end = first_failure = None
        while True:
            self._pass_on_signals()
            for member, answer in self._gang.news():
                for text in answer["messages"] if answer else ():
                    self._mailbox.deliver(member.rank, text)
                if answer and answer["signalled"]:
                    self._ask(f"{answer['signalled']} to rank {member.rank}")
                if member.ending is not None:
                    self._record(member.ending)
            endings = [member.ending for member in self._gang.members if member.ending]
            now = time.monotonic()
            if endings and first_end is None:
                first_end = now
            failures = [end for end in endings if end.cause not in ("finished", "preempted")]
            if failures and first_failure is None:
                first_failure = now
            if len(endings) == len(self._gang.members):
                return self._verdict(endings)
            if first_failure is not None and now - first_failure > _blame_seconds(failures):
                return self._verdict(failures)
            if self._signals.count > 1:
                return self._unsaved("killed by a second signal")
            if self._asked is not None and now - self._asked > stop_grace:
                return self._unsaved(f"killed after {stop_grace:g} s")
            if first_end is not None and now - first_end > end_grace:
                return self._lagging(endings, end_grace)

    def _pass_on_signals(self) -> None:
        if self._signals.count:
            self._ask(self._signals.name)

    def _ask(self, reason: str) -> None:
        if self._asked is None:
            self._asked = time.monotonic()
            self._reason = reason
            self._event("stop_requested", detail=reason)
            self._gang.ask_to_stop()

    def _verdict(self, endings: Sequence[Ending]) -> Outcome:
        failures = [end for end in endings if end.cause not in ("finished", "preempted")]
        if failures:
            end = min(failures, key=lambda end: (end.consequence, end.time))
            detail = f"rank {end.rank}: {end.detail}"
            return Outcome(end.cause, end.exit_code, self._mailbox.step, None, detail, end.rank)
        stopped = [end for end in endings if end.cause == "preempted"]
        if stopped:
            end = min(stopped, key=lambda end: end.rank)
            detail = end.detail or (f"stopped on {self._reason}" if self._reason else "stopped")
            return Outcome("preempted", end.exit_code, end.step, None, detail, end.rank)
        end = min(endings, key=lambda end: end.rank)
        return Outcome("finished", end.exit_code, self._mailbox.step, end.result, end.detail, 0)

    def _unsaved(self, what: str) -> Outcome:
        detail = f"stopped on {self._reason}, {what} before the state was saved"
        return Outcome("preempted", FAILED, self._mailbox.step, detail=detail)

    def _lagging(self, endings: Sequence[Ending], end_grace: float) -> Outcome:
        ended = {end.rank for end in endings}
        late = [member.rank for member in self._gang.members if member.rank not in ended]
        for rank in late:
            self._event("exit", rank=rank, cause="stalled")
        names = ", ".join(map(str, late))
        detail = f"rank {names} still ran {end_grace:g} s after rank {min(ended)} had ended"
        return Outcome("stalled", FAILED, self._mailbox.step, None, detail, late[0])

    def _record(self, end: Ending) -> None:
        self._event("exit", rank=end.rank, step=end.step, cause=end.cause, detail=end.detail)

    def _event(
        self,
        event: str,
        *,
        rank: int | None = None,
        step: int | None = None,
        seconds: float | None = None,
        cause: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._events.write(
            event,
            attempt=self._gang.attempt,
            rank=rank,
            step=self._mailbox.step if step is None else step,
            seconds=seconds,
            cause=cause,
            detail=detail or None,
        )


def _blame_seconds(failures: Sequence[Ending]) -> float:
    if all(end.consequence for end in failures):
        return BLAME_LOSS_SECONDS
    return BLAME_SECONDS
