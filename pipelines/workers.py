"""The processes of `prepare`: spawned, and gone when their parent is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from .errors import WorkerDied
from .shard import Shard, Task, make_shard
from .tokenizer import Tokenizer, load_tokenizer

_tokenizer: Tokenizer | None = None  # of this worker, set once by _start


def run_tasks(
    tasks: Sequence[Task],
    tokenizer: str,
    jobs: int,
    on_done: Callable[[Shard], None] | None,
) -> list[Shard]:
    """`make_shard` of each task in up to `jobs` processes; results in order of `tasks`.

    `tokenizer` is the name each process loads. `on_done` hears of each shard as it is finished.
    The first error stops everything and is raised. Raises WorkerDied when a process vanishes.
    """
    if not tasks:
        return []
    context = multiprocessing.get_context("spawn")
    # The parent alone holds `alive`: it closes when the parent lets go or dies.
    watched, alive = context.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        min(jobs, len(tasks)), context, initializer=_start, initargs=(watched, tokenizer)
    )
    results: dict[int, Shard] = {}
    waiting: dict[Future[Shard], int] = {}
    try:
        # A few tasks are on their way at a time: each is told of before the next is handed out.
        for number, task in enumerate(tasks):
            if len(waiting) == 2 * jobs:
                _collect(waiting, results, on_done)
            waiting[executor.submit(_work, task)] = number
        while waiting:
            _collect(waiting, results, on_done)
        return [results[number] for number in range(len(tasks))]
    except BrokenProcessPool as error:
        raise WorkerDied(
            "a process of `data prepare` ended abruptly: out of memory, killed, or started by a "
            'script that lacks `if __name__ == "__main__":`; finished shards are kept, run it '
            "again (with fewer jobs if memory is short)"
        ) from error
    except BaseException:
        alive.close()  # no waiting for shards that nobody wants
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
        alive.close()
        watched.close()


def _collect(
    waiting: dict[Future[Shard], int],
    results: dict[int, Shard],
    on_done: Callable[[Shard], None] | None,
) -> None:
    """Move what is finished, at least one task, from `waiting` to `results`."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        shard = results[waiting.pop(future)] = future.result()
        if on_done:
            on_done(shard)


def _start(watched: Connection, tokenizer: str) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()
    _tokenizer = load_tokenizer(tokenizer)


def _end_with_parent(watched: Connection) -> None:
    try:
        watched.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _work(task: Task) -> Shard:
    assert _tokenizer is not None
    return make_shard(task, _tokenizer)
