"""Write requirements.lock from interpreters in which the package is installed and tested.

    python .ci/lock.py .venv/bin/python /path/to/other/venv/bin/python > requirements.lock

The first interpreter is of the floor, Python 3.11; the second is newer. Each reports the versions
of everything that `spark-dist[dev]` and the build backend need there. A line that holds for both
has no marker.
"""

from __future__ import annotations

import json
import subprocess
import sys

CLOSURE = """
import importlib.metadata as metadata, json, re
from packaging.requirements import Requirement

def name_of(text):
    return re.sub(r"[-_.]+", "-", text).lower()

seen, found = set(), {}
todo = [("spark-dist", frozenset({"dev"}))]
while todo:
    name, extras = todo.pop()
    if (name, extras) in seen:
        continue
    seen.add((name, extras))
    dist = metadata.distribution(name)
    if name != "spark-dist":
        found[name] = dist.version
    for line in dist.requires or []:
        need = Requirement(line)
        if any(not need.marker or need.marker.evaluate({"extra": e}) for e in {"", *extras}):
            todo.append((name_of(need.name), frozenset(need.extras)))
print(json.dumps(found))
"""

HEADER = """\
# Versions with which the tests pass on Linux, for Python 3.11 (JAX 0.10) and for Python 3.12 and
# newer. Written by .ci/lock.py from the environments they were tested in; do not edit by hand.
"""


def closure(python: str) -> dict[str, str]:
    """Name and version of each distribution that spark-dist[dev] needs in `python`."""
    done = subprocess.run([python, "-c", CLOSURE], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def lines(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Requirement lines for Python 3.11 (`old`) and for newer ones (`new`)."""
    result = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            result.append(f"{name}=={old[name]}")
            continue
        if name in old:
            result.append(f'{name}=={old[name]} ; python_version < "3.12"')
        if name in new:
            result.append(f'{name}=={new[name]} ; python_version >= "3.12"')
    return result


if __name__ == "__main__":
    floor, newer = (closure(python) for python in sys.argv[1:])
    print(HEADER + "\n".join(lines(floor, newer)))
