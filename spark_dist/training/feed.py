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
    return {name: _global(array, sharding) for name, array in local.items()}


def _global(local: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """The global array of which this process holds the rows of its own place.

    Each device's part is put there explicitly, as `jax.transfer_guard("disallow")` asks for.
    """
    shape = (local.shape[0] * jax.process_count(), *local.shape[1:])
    first = local.shape[0] * jax.process_index()
    parts = []
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        start, stop, _ = index[0].indices(shape[0])
        parts.append(jax.device_put(local[start - first : stop - first], device))
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
