"""Where the axes of parameters and batches lie."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from spark_dist.sharding import (
    AXES,
    BATCH,
    RULES,
    batch_sharding,
    make_mesh,
    partition_spec,
    replicated,
    shardings,
)


@pytest.fixture(scope="module")
def cube():
    return make_mesh(data=2, fsdp=2, tensor=2)


def test_rules_name_axes_of_the_mesh():
    assert set(RULES.values()) <= {*AXES, None}


@pytest.mark.parametrize(
    ("axes", "shape", "spec"),
    [
        (("embed", "mlp"), (8, 12), PartitionSpec("fsdp", "tensor")),
        (("layers", "mlp", "embed"), (4, 12, 8), PartitionSpec(None, "tensor", "fsdp")),
        (("embed", "heads", "head_dim"), (8, 4, 6), PartitionSpec("fsdp", "tensor")),
        (("embed", "kv_heads", "head_dim"), (8, 1, 6), PartitionSpec("fsdp")),
        (("heads", "head_dim", "embed"), (4, 6, 8), PartitionSpec("tensor", None, "fsdp")),
        (("vocab", "embed"), (259, 8), PartitionSpec(None, "fsdp")),
        (("vocab", "embed"), (260, 7), PartitionSpec("tensor")),
        (("embed",), (7,), PartitionSpec()),
        # One mesh axis serves one array axis, the first that it divides.
        (("mlp", "mlp"), (12, 12), PartitionSpec("tensor")),
        (("mlp", "mlp"), (11, 12), PartitionSpec(None, "tensor")),
    ],
)
def test_axes_that_do_not_divide_stay_whole(cube, axes, shape, spec):
    assert partition_spec(axes, shape, cube) == spec


def test_mesh_axes_of_one_device_are_not_named():
    mesh = make_mesh(data=8)
    assert partition_spec(("embed", "mlp"), (8, 12), mesh) == PartitionSpec()


def test_unknown_axes_and_other_ranks_are_refused(cube):
    with pytest.raises(KeyError, match="breadth"):
        partition_spec(("breadth",), (8,), cube)
    with pytest.raises(ValueError, match="argument 2 is"):
        partition_spec(("embed",), (8, 12), cube)


def test_trees(cube):
    axes = {"a": ("embed", "mlp"), "b": {"scale": ("embed",)}}
    shapes = {
        "a": jax.ShapeDtypeStruct((8, 12), "float32"),
        "b": {"scale": jax.ShapeDtypeStruct((8,), "float32")},
    }
    assert shardings(axes, shapes, cube) == {
        "a": NamedSharding(cube, PartitionSpec("fsdp", "tensor")),
        "b": {"scale": NamedSharding(cube, PartitionSpec("fsdp"))},
    }


def test_batches_lie_over_data_and_fsdp_whole_over_tensor(cube):
    rows = jax.device_put(np.arange(32).reshape(8, 4), batch_sharding(cube))
    assert batch_sharding(cube).spec == BATCH
    for shard in rows.addressable_shards:
        data, fsdp, _ = np.argwhere(cube.devices == shard.device)[0]
        first = 2 * (2 * data + fsdp)  # row blocks in the order of the devices
        np.testing.assert_array_equal(shard.data, np.arange(32).reshape(8, 4)[first : first + 2])
    everywhere = jax.device_put(np.arange(3), replicated(cube))
    assert all(shard.data.shape == (3,) for shard in everywhere.addressable_shards)
