"""What a gang makes of Ray's words."""

from __future__ import annotations

import pytest

from spark_dist.cluster.gang import _ray_detail

CREATION = """The actor died because of an error raised in its creation task, ray::HostActor
  File "x.py", line 3
PermissionError: [Errno 13] '/run'
"""
WORKER = """The actor died unexpectedly before finishing this task.
\tclass_name: HostActor
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR \
Worker exit detail: Worker unexpectedly exits with a connection error code 2. \
Some common causes include: (1) a list"""
NODE = """The actor died unexpectedly before finishing this task.
The actor died because its node has died. Node Id: 12
\tmore"""


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (CREATION, "PermissionError: [Errno 13] '/run'"),
        (WORKER, "Worker unexpectedly exits with a connection error code 2."),
        (NODE, "The actor died because its node has died. Node Id: 12"),
    ],
)
def test_the_cause_in_one_line(text: str, detail: str) -> None:
    assert _ray_detail(RuntimeError(text)) == detail
