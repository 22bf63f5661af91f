"""How arrays lie on machines."""

from .collectives import Collective, contains_sort_or_top_k, parse_collectives
from .mesh import AXES, make_mesh, mesh_shape
from .rules import BATCH, RULES, batch_sharding, partition_spec, replicated, shardings

__all__ = [
    "AXES",
    "BATCH",
    "RULES",
    "Collective",
    "batch_sharding",
    "contains_sort_or_top_k",
    "make_mesh",
    "mesh_shape",
    "parse_collectives",
    "partition_spec",
    "replicated",
    "shardings",
]
