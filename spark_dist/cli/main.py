"""Dispatch of the commands and of what they raise: one line, one exit code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import RunFailed, UserError

COMMANDS = {
    "train": "train a model",
    "evaluate": "held-out loss and realised sparsity of a checkpoint",
    "generate": "continue a prompt",
    "data": "prepare a corpus: tokenise it once, in parallel",
    "report": "one HTML page about a run",
    "bench": "measure against peers, interleaved",
}

DONE, FAILED, BAD_ARGUMENTS = 0, 1, 2


def usage() -> str:
    """What `spark-dist --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: spark-dist COMMAND [OPTIONS]",
            "",
            "Pre-training, evaluation and decoding of Spark Transformers.",
            "",
            *lines,
            "",
            "spark-dist COMMAND --help lists the options of a command.",
        ]
    )


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit code: 0 done, 1 failed, 2 bad arguments, 4 saved early."""
    given = list(sys.argv[1:] if args is None else args)
    if not given or given[0] in ("-h", "--help"):
        print(usage())
        return DONE if given else BAD_ARGUMENTS
    name = given[0]
    try:
        if name not in COMMANDS:
            raise UserError(f"unknown command {name!r}; choose from {', '.join(COMMANDS)}")
        command = importlib.import_module(f".{name}", __package__)
        return int(command.main(given[1:]))
    except KeyboardInterrupt:
        print("spark-dist: error: interrupted", file=sys.stderr)
        return FAILED
    except Exception as error:
        return _explain(error)


def _explain(error: Exception) -> int:
    """Prints a known error as one line and returns its code; raises what is not known."""
    from spark_dist.cluster import LaunchError
    from spark_dist.pipelines import DataError

    text = " ".join(str(error).split())
    if isinstance(error, (UserError, DataError)):
        code = BAD_ARGUMENTS
    elif isinstance(error, (RunFailed, LaunchError)):
        code = FAILED
    elif isinstance(error, OSError) and error.errno is not None:
        code = FAILED
        text = f"{error.filename or 'file'}: {os.strerror(error.errno)}"
    else:
        raise error
    print(f"spark-dist: error: {text}", file=sys.stderr)
    return code
