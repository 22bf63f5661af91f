"""A driver in a process of its own: python drive.py PAYLOAD RUN_DIR HOSTS [CONFIG [OPTIONS]].

Prints every message as it comes, then the outcome and whether JAX was imported, as JSON lines,
and exits with the outcome's code. CONFIG and OPTIONS are JSON; the options "address", "ship",
"stop_grace" and "end_grace" go to RayLauncher, "local" takes LocalLauncher instead, and the others
go to its `run`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import cluster_payloads

from spark_dist.cluster import LocalLauncher, RayLauncher


def say(**fields: Any) -> None:
    """One JSON line, at once."""
    print(json.dumps(fields), flush=True)


def main() -> int:
    """Launch, print, and return the exit code."""
    name, run_dir, hosts, *rest = sys.argv[1:]
    config = json.loads(rest[0]) if rest else None
    options: dict[str, Any] = json.loads(rest[1]) if rest[1:] else {}
    own = {key: options.pop(key) for key in list(options) if key in RayLauncher.__match_args__}
    own["ship"] = tuple(own.get("ship", ()))
    launcher = LocalLauncher() if options.pop("local", False) else RayLauncher(**own)
    began = time.monotonic()
    first: list[float] = []

    def on_message(rank: int, message: dict[str, Any]) -> None:
        first.append(time.monotonic() - began)
        say(rank=rank, message=message)

    outcome = launcher.run(
        getattr(cluster_payloads, name),
        config,
        run_dir=run_dir,
        hosts=int(hosts),
        on_message=on_message,
        **options,
    )
    say(
        outcome=dataclasses.asdict(outcome),
        jax_imported="jax" in sys.modules,
        first_message_seconds=first[0] if first else None,
        seconds=time.monotonic() - began,
    )
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
