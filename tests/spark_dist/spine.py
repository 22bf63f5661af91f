"""Whole runs for tests: a model that compiles in seconds, a corpus, the command, and what it left.

The command is `spark-dist` as a process of its own, or `main` called here (fixture `call`).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

PROGRAM = [str(Path(sys.executable).with_name("spark-dist"))]
PATIENCE = 300.0
"""Seconds that anything may take: machines that run tests are busy."""

MODEL = shlex.split(
    "--model.num-layers 2 --model.d-model 32 --model.num-heads 2 --model.num-kv-heads 2 "
    "--model.head-dim 16 --model.d-ff 96 --model.ffn-predictor-dim 16 --model.ffn-k 12 "
    "--model.attention-predictor-dim 8 --model.attention-k 4"
)
RUN = shlex.split(
    "--trainer.global-batch-size 8 --data.sequence-length 32 --trainer.log-every 1 "
    "--optimizer.warmup-steps 2 --optimizer.learning-rate 1e-2"
)
SMALL = [*MODEL, *RUN]
"""Options of `train` for steps of a few milliseconds."""

WORDS = shlex.split(
    "king queen crown sword night day moon star rain wind sea storm ghost grave love"
)


def write_corpus(path: Path, *, lines: int = 800, seed: int = 0) -> Path:
    """A text of about 45 bytes a line."""
    draw = random.Random(seed)
    rows = (" ".join(draw.choice(WORDS) for _ in range(9)) for _ in range(lines))
    path.write_text("\n\n".join(rows) + "\n")
    return path


def environment(**more: str) -> dict[str, str]:
    """For a process that owns one CPU device, or as many as `more` says."""
    here = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    return {**here, **more}


def command(
    *args: str | Path, env: dict[str, str] | None = None, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """`BEFORE... spark-dist ARGS` in a process of its own, to its end."""
    return subprocess.run(
        [*before, *PROGRAM, *map(str, args)],
        env=env or environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON-lines file; none where it does not exist."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def steps(run: Path) -> list[int]:
    """Committed steps, found without this package."""
    folder = run / "checkpoints"
    names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isdecimal())


def facts(run: Path, step: int) -> dict[str, Any]:
    """The JSON of a checkpoint."""
    return json.loads((run / "checkpoints" / str(step) / "json" / "metadata").read_text())


def saved_arrays(run: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of a checkpoint by its name, read by orbax without a model."""
    import jax
    import orbax.checkpoint as ocp

    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        path = run / "checkpoints" / str(step) / "state"
        tree = reader.metadata(path).item_metadata.tree
        args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        tree = reader.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves}


def assert_same_arrays(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].tobytes() == other[name].tobytes(), name


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with the bytes of files."""
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Returns when `condition` holds. Raises when the process ends or patience does."""
    deadline, never = time.monotonic() + PATIENCE, threading.Event()
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode}: {process.communicate()}")
        if time.monotonic() > deadline:
            raise AssertionError("nothing happened")
        never.wait(0.002)


@contextlib.contextmanager
def started(*args: str | Path, env: dict[str, str] | None = None) -> Iterator[Any]:
    """`spark-dist ARGS` in a process and session of its own, ended with the context."""
    process = subprocess.Popen(
        [*PROGRAM, *map(str, args)],
        env=env or environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_all(process)
        process.communicate()


def kill_all(process: subprocess.Popen[str]) -> int:
    """SIGKILL to the process and all that descend from it; how many there were."""
    try:
        top = psutil.Process(process.pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in family:  # nobody may notice the end of another one and act on it
        with contextlib.suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGSTOP)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs([m for m in family if m.pid != process.pid], timeout=30)
    process.wait(30)
    return len(family)
