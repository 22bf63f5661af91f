"""Host batches onto the mesh."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding

Rows = Mapping[str, np.ndarray]


def place(rows: Rows, sharding: NamedSharding, *, stop: bool = False) -> dict[str, jax.Array]:
    """A global batch from this host's rows: int32[B / hosts, L] each -> int32[B, L].

    stop: this host's vote to end the run, one a row; the step returns the maximum, so that all
    hosts learn of it in the same step.
    """
    count = next(iter(rows.values())).shape[0]
    local = {**rows, "stop": np.full((count,), int(stop), np.int32)}
    return {
        name: jax.make_array_from_process_local_data(sharding, array)
        for name, array in local.items()
    }
