"""The decoder on a mesh of eight devices: where its parameters lie, and that nothing changes."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from spark_dist.model import forward, init_params, logical_axes, parameter_shapes
from spark_dist.preset_table import presets
from spark_dist.sharding import batch_sharding, make_mesh, replicated, shardings

QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def cube():
    return make_mesh(data=2, fsdp=2, tensor=2)


def laid_out(cfg, mesh):
    return shardings(logical_axes(cfg), parameter_shapes(cfg), mesh)


def bytes_per_device(cfg, mesh) -> int:
    places, shapes = laid_out(cfg, mesh), parameter_shapes(cfg)
    sizes = jax.tree.map(lambda p, s: math.prod(p.shard_shape(s.shape)), places, shapes)
    return 4 * sum(jax.tree.leaves(sizes))


@pytest.mark.parametrize("name", list(presets()))
def test_every_preset_is_cut_by_fsdp_and_tensor(cube, name):
    """All matrices in four; norms, and the byte vocabulary's odd table, in two."""
    cfg = presets()[name].model
    shapes = parameter_shapes(cfg)
    size = {"embedding": 0, "norms": cfg.d_model * (4 * cfg.num_layers + 1)}
    size["embedding"] = math.prod(shapes["embedding"]["table"].shape)
    total = sum(math.prod(s.shape) for s in jax.tree.leaves(shapes))
    matrices = total - sum(size.values())
    table = size["embedding"] // (4 if cfg.vocab_size % 2 == 0 else 2)
    assert bytes_per_device(cfg, cube) == 4 * (matrices // 4 + table + size["norms"] // 2)
    spec = laid_out(cfg, cube)["layers"]["attention"]["q"].spec
    assert spec == PartitionSpec(None, "fsdp", "tensor")


def test_heads_that_do_not_divide_stay_whole(build, cube):
    places = laid_out(build(num_kv_heads=1).cfg, cube)["layers"]["attention"]
    assert places["k"].spec == places["v"].spec == PartitionSpec(None, "fsdp")
    assert places["q"].spec == PartitionSpec(None, "fsdp", "tensor")


@pytest.mark.parametrize(
    ("ffn", "attention", "kv_heads"),
    [("gated", "full", 2), ("spark", "spark", 2), ("gaussian_topk", "spark", 1)],
)
def test_forward_equals_one_devices(build, pack, cube, ffn, attention, kv_heads):
    decoder = build(ffn=ffn, attention=attention, num_kv_heads=kv_heads)
    cfg = decoder.cfg
    rows = pack([16], [6, 7], [3, 9], [], length=16)
    expected, expected_statistics = decoder.forward(decoder.calibrated, rows)

    params = jax.device_put(decoder.params, laid_out(cfg, cube))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params))
    assert held == bytes_per_device(cfg, cube)
    offset = jax.device_put(decoder.calibrated, replicated(cube))
    rows = jax.device_put(rows, batch_sharding(cube))
    run = jax.jit(lambda params, rows: forward(params, cfg, offset, **rows), compiler_options=QUICK)
    with jax.transfer_guard("disallow"):
        logits, statistics = run(params, rows)

    # A sharded product sums in another order, and how depends on the processor: single logits were
    # 2e-5 away, all of them together 1e-6.
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    away = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
    assert away <= 5e-6
    jax.tree.map(np.testing.assert_array_equal, statistics, expected_statistics)


def test_fresh_parameters_are_the_same_on_every_layout(build, cube):
    cfg = build().cfg
    init = functools.partial(jax.jit, lambda key: init_params(cfg, key), compiler_options=QUICK)
    one = init()(jax.random.key(1))
    cut = init(out_shardings=laid_out(cfg, cube))(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, one, cut)
