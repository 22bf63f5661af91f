"""How arrays lie on machines."""

from .mesh import AXES, make_mesh, mesh_shape
from .rules import BATCH, RULES, batch_sharding, partition_spec, replicated, shardings

__all__ = [
    "AXES",
    "BATCH",
    "RULES",
    "batch_sharding",
    "make_mesh",
    "mesh_shape",
    "partition_spec",
    "replicated",
    "shardings",
]
