"""Which implementation serves the operators of this wing."""

from __future__ import annotations


def backend() -> str:
    """Name of the implementation that serves here: "xla", plain XLA operations.

    All hosts of a run must agree on it, for two implementations round differently; so it is part
    of the digest that they compare at the start.
    """
    return "xla"
