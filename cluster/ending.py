"""How one rank's payload ended; used in the process that ran it, and sent to the driver."""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from .launcher import Payload, encode
from .outcome import DONE, FAILED, STOPPED_SAVED, PayloadError, Stopped, one_line
from .worker import WorkerInfo

# What a rank's own error looks like when the real cause is another rank's end.
_PEER_LOST = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|socket closed|coordination service"
    r"|heartbeat|UNAVAILABLE|distributed service|another task",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class Ending:
    """One rank's ending. `time` in seconds since 1970; `consequence`: another rank's end did it."""

    rank: int
    cause: str
    exit_code: int
    time: float
    detail: str = ""
    step: int | None = None
    result: Any = None
    consequence: bool = False

    def encoded(self) -> str:
        """As JSON, for the way to the driver."""
        return encode(asdict(self))

    @staticmethod
    def decoded(text: str) -> Ending:
        """The inverse of `encoded`."""
        return Ending(**json.loads(text))


def run_payload(load: Callable[[], tuple[Payload, Any]], worker: WorkerInfo, log: TextIO) -> Ending:
    """Call the payload that `load` gives and describe its ending, whatever it is.

    The traceback of an error goes to `log`.
    """

    def ending(cause: str, exit_code: int, **more: Any) -> Ending:
        return Ending(worker.rank, cause, exit_code, time.time(), **more)

    try:
        payload, config = load()
        result = payload(config, worker)
        encode(result)
        return ending("finished", DONE, result=result)
    except Stopped as stop:
        return ending("preempted", STOPPED_SAVED, step=int(stop.step), detail=one_line(stop.detail))
    except PayloadError as error:
        traceback.print_exc(file=log)
        return ending("raised", error.exit_code, detail=one_line(error))
    except KeyboardInterrupt:
        detail = "ended by a second signal before the state was saved"
        return ending("preempted", FAILED, detail=detail)
    except SystemExit as error:
        return ending("raised", FAILED, detail=one_line(f"the payload called sys.exit({error})"))
    except MemoryError as error:
        traceback.print_exc(file=log)
        return ending("out_of_memory", FAILED, detail=one_line(f"MemoryError: {error}"))
    except BaseException as error:
        traceback.print_exc(file=log)
        return _of_error(error, ending)


def _of_error(error: BaseException, ending: Callable[..., Ending]) -> Ending:
    name, text = type(error).__name__, str(error)
    from_runtime = name in ("JaxRuntimeError", "XlaRuntimeError")
    memory = from_runtime and _OUT_OF_MEMORY.search(text) is not None
    return ending(
        "out_of_memory" if memory else "raised",
        FAILED,
        detail=f"{name}: {one_line(text)}" if text.strip() else name,
        consequence=from_runtime and not memory and _PEER_LOST.search(text) is not None,
    )
