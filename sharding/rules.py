"""Which mesh axis each logical axis of a parameter lies on.

FSDP shards the axis that a product sums over or writes to most (`embed`), tensor parallelism the
axis between two products (`mlp`, `heads`). An axis that does not divide stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

RULES: Mapping[str, str | None] = {
    "layers": None,
    "vocab": "tensor",
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
}

BATCH = PartitionSpec(("data", "fsdp"))
"""Rows of a batch over the data and fsdp axes."""


def partition_spec(axes: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Where an array with these logical axes lies. Raises KeyError for an unknown axis name."""
    placed: list[str | None] = []
    for name, size in zip(axes, shape, strict=True):
        axis = RULES[name]
        fits = axis is not None and size % mesh.shape[axis] == 0 and axis not in placed
        placed.append(axis if fits and mesh.shape[axis] > 1 else None)
    while placed and placed[-1] is None:
        placed.pop()
    return PartitionSpec(*placed)


def shardings(axes: Any, shapes: Any, mesh: Mesh) -> Any:
    """`NamedSharding` for each leaf of a tree of logical axes beside a tree of shapes."""
    return jax.tree.map(
        lambda a, s: NamedSharding(mesh, partition_spec(a, s.shape, mesh)),
        axes,
        shapes,
        is_leaf=lambda a: isinstance(a, tuple) and all(isinstance(n, str) for n in a),
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """The same value on every device."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the data and fsdp axes."""
    return NamedSharding(mesh, BATCH)
