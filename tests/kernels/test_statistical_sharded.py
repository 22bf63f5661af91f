"""Statistical top-k over rows that lie on several devices."""

from __future__ import annotations

import math
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spark_dist.kernels import statistical_threshold, statistical_top_k
from spark_dist.sharding import contains_sort_or_top_k, parse_collectives

INF = math.inf
ROWS, LENGTH, K = 6, 1024, 82
SPEC = P("data", "tensor")
LAYOUTS = [(1, 8), (2, 4), (1, 2)]


def mesh_of(rows, columns):
    devices = np.asarray(jax.devices()[: rows * columns]).reshape(rows, columns)
    return Mesh(devices, ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)


def sharded(function, layout, *, outs=SPEC, check_vma=True, arrays=1):
    """`function` of arrays [rows, length], each device with its part of some rows."""
    return jax.jit(
        jax.shard_map(
            function,
            mesh=mesh_of(*layout),
            in_specs=(SPEC,) * arrays,
            out_specs=outs,
            check_vma=check_vma,
        )
    )


def normal(seed, mean=0.0, length=LENGTH, rows=ROWS):
    return jnp.asarray(np.random.default_rng(seed).normal(mean, 1, (rows, length)), jnp.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"offset": 0.2, "ddof": 0}, {"fill": -INF}, {"huber_delta": 0.3}],
    ids=["plain", "offset", "-inf", "huber"],
)
def test_equals_the_unsharded(layout, check_vma, kwargs):
    x, g = normal(0), normal(1)
    where = jnp.asarray(np.random.default_rng(2).random(x.shape) < 0.8)
    # One row short of k valid entries, one with all of them on the first device, one empty.
    where = where.at[0, 40:].set(False).at[1, 128:].set(False).at[2].set(False)
    x = x.at[3, ::7].set(-INF).at[4, 5].set(jnp.nan)

    def both(x, g, where, axis_name=None):
        def operator(x):
            return statistical_top_k(x, K, where=where, axis_name=axis_name, **kwargs)

        y, pull = jax.vjp(operator, x)
        return y, pull(g)[0]

    whole = jax.jit(both)(x, g, where)
    parts = sharded(
        lambda x, g, where: both(x, g, where, "tensor"),
        layout,
        outs=(SPEC, SPEC),
        check_vma=check_vma,
        arrays=3,
    )(x, g, where)
    for found, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_of_a_loss_outside(check_vma):
    x, g = normal(3), normal(4)
    operator = sharded(
        lambda x: statistical_top_k(x, K, axis_name="tensor"), (2, 4), check_vma=check_vma
    )
    found = jax.grad(lambda x: jnp.vdot(jnp.tanh(operator(x)), g))(x)
    expected = jax.grad(lambda x: jnp.vdot(jnp.tanh(statistical_top_k(x, K)), g))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threshold_is_the_same_on_all_shards(layout):
    """Its type says so: it leaves `shard_map` as one value a row. The gradient is whole too."""
    x, g = normal(5, mean=3.0), normal(6)[:, :1]
    operator = sharded(
        lambda x: statistical_threshold(x, K, axis_name="tensor"), layout, outs=P("data")
    )
    np.testing.assert_allclose(operator(x), statistical_threshold(x, K), rtol=1e-6)
    found = jax.grad(lambda x: jnp.vdot(operator(x), g))(x)
    expected = jax.grad(lambda x: jnp.vdot(statistical_threshold(x, K), g))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
def test_gradient_through_a_threshold_used_on_each_shard(check_vma):
    x, g = normal(7), normal(8)

    def kept(x, axis_name=None):
        return x * jax.nn.sigmoid(x - statistical_threshold(x, K, axis_name=axis_name))

    operator = sharded(lambda x: kept(x, "tensor"), (2, 4), check_vma=check_vma)
    found = jax.grad(lambda x: jnp.vdot(operator(x), g))(x)
    expected = jax.grad(lambda x: jnp.vdot(kept(x), g))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_mean(layout):
    """Merged sums of squares would keep anything from 783 to 1,574 of 1,106 here."""
    length, k = 13824, 1106
    x = normal(9, mean=1000.0, length=length, rows=4)
    exact = np.asarray(x, np.float64)
    theta = exact.mean(-1) + exact.std(-1, ddof=1) * NormalDist().inv_cdf(1 - k / length)
    found = sharded(
        lambda x: statistical_threshold(x, k, axis_name="tensor"), layout, outs=P("data")
    )(x)[:, 0]
    np.testing.assert_allclose(found, theta, atol=1.3e-4)  # two roundings at 1,000
    y = sharded(lambda x: statistical_top_k(x, k, axis_name="tensor"), layout)(x)
    expected = np.count_nonzero(exact > theta[:, None], axis=-1)
    assert np.all(abs(np.count_nonzero(y, axis=-1) - expected) <= 2)


def test_constant_rows_and_shards_of_different_means():
    x = jnp.full((2, 64), 1000.3, jnp.float32)
    operator = sharded(lambda x: statistical_top_k(x, 5, axis_name="tensor"), (2, 4))
    np.testing.assert_array_equal(operator(x), jnp.zeros_like(x))
    assert np.all(jax.grad(lambda x: jnp.sum(operator(x)))(x) == 0)
    steps = jnp.repeat(jnp.asarray([[1e4, -1e4, 3.0, 5e5]] * 2), 16, axis=1) + normal(10)[:2, :64]
    np.testing.assert_allclose(operator(steps), statistical_top_k(steps, 5), rtol=1e-5, atol=1e-2)


def test_over_two_mesh_axes_and_a_named_vmap():
    x = normal(11)
    over_both = jax.jit(
        jax.shard_map(
            lambda x: statistical_top_k(x, K, axis_name=("data", "tensor")),
            mesh=mesh_of(2, 4),
            in_specs=P(None, ("data", "tensor")),
            out_specs=P(None, ("data", "tensor")),
        )
    )
    expected = statistical_top_k(x, K)
    np.testing.assert_allclose(over_both(x), expected, rtol=1e-5, atol=1e-6)
    named = jax.vmap(
        lambda x: statistical_top_k(x, K, axis_name="shard"),
        in_axes=1,
        out_axes=1,
        axis_name="shard",
    )(x.reshape(ROWS, 4, LENGTH // 4))
    np.testing.assert_allclose(named.reshape(x.shape), expected, rtol=1e-5, atol=1e-6)


def test_k_counts_over_the_whole_row():
    x = normal(12, length=64)[:2]
    y = sharded(lambda x: statistical_top_k(x, 40, axis_name="tensor"), (2, 4))(x)
    np.testing.assert_allclose(y, statistical_top_k(x, 40), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="k=65 must lie between 0 and the row length 64"):
        sharded(lambda x: statistical_top_k(x, 65, axis_name="tensor"), (2, 4))(x)


def sent(function, arrays=1):
    """Collectives of the compiled program over 4 rows of a mesh of 1 x 8 devices."""
    shapes = [jax.ShapeDtypeStruct((4, LENGTH), jnp.float32)] * arrays
    program = sharded(function, (1, 8), arrays=arrays).lower(*shapes)
    text = program.compile().as_text()
    assert not contains_sort_or_top_k(text)
    return parse_collectives(text)


@pytest.mark.parametrize(("fill", "scalars"), [(0.0, 3), (-INF, 4)])
def test_forward_sends_three_scalars_a_row_and_shard(fill, scalars):
    (gather,) = sent(lambda x: statistical_top_k(x, K, fill=fill, axis_name="tensor"))
    assert gather.kind == "all-gather"
    assert gather.element_type == "f32"
    assert gather.elements == scalars * 4 * 8  # scalars x rows x shards
    assert gather.replica_groups == (tuple(range(8)),)


def test_backward_sends_one_more():
    def pull(x, g):
        return jax.vjp(lambda x: statistical_top_k(x, K, axis_name="tensor"), x)[1](g)[0]

    gather, total = sent(pull, arrays=2)
    assert (gather.kind, gather.elements) == ("all-gather", 3 * 4 * 8)
    assert (total.kind, total.elements) == ("all-reduce", 4)


@pytest.mark.parametrize("spec", [P("tensor"), P(None, "tensor")], ids=["rows", "columns"])
def test_left_to_the_partitioner_no_row_is_gathered(spec):
    """Without `shard_map`: nothing is sent where rows are whole, a few scalars where not."""

    def pull(x, g):
        return jax.vjp(lambda x: statistical_top_k(x, K), x)[1](g)[0]

    place = NamedSharding(mesh_of(1, 8), spec)
    shape = jax.ShapeDtypeStruct((8, LENGTH), jnp.float32, sharding=place)
    text = jax.jit(pull, out_shardings=place).lower(shape, shape).compile().as_text()
    found = parse_collectives(text)
    if spec == P("tensor"):
        assert found == []
    assert all(c.kind == "all-reduce" and c.elements <= 2 * 8 for c in found), found
