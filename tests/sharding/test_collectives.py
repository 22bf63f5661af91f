"""The reader of HLO text, on programs compiled for eight devices and on text of other backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from spark_dist.sharding import contains_sort_or_top_k, parse_collectives

ALONG_A = ((0, 4), (1, 5), (2, 6), (3, 7))
ALONG_B = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.fixture(scope="module")
def mesh():
    devices = np.asarray(jax.devices()).reshape(2, 4)
    return Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def lowered(mesh, function, *, outs=None, dtype=jnp.float32):
    """`function` over [16, 32], rows on axis a, columns on axis b; inside shard_map with `outs`."""
    x = jax.ShapeDtypeStruct((16, 32), dtype, sharding=NamedSharding(mesh, P("a", "b")))
    if outs is not None:
        function = jax.shard_map(function, mesh=mesh, in_specs=P("a", "b"), out_specs=outs)
    return jax.jit(function).lower(x)


def compiled(mesh, function, **kwargs):
    return lowered(mesh, function, **kwargs).compile().as_text()


RING = [(i, (i + 1) % 4) for i in range(4)]
CASES = {
    "all-reduce": (lambda x: lax.psum(x, "b"), P("a"), (8, 8), ALONG_B),
    "all-gather": (lambda x: lax.all_gather(x, "a", tiled=True), P("a", "b"), (16, 8), ALONG_A),
    "reduce-scatter": (
        lambda x: lax.psum_scatter(x, "b", tiled=True),
        P(("a", "b")),
        (2, 8),
        ALONG_B,
    ),
    "collective-permute": (
        lambda x: lax.ppermute(x, "b", RING),
        P("a", "b"),
        (8, 8),
        tuple((d + s, d + t) for d in (0, 4) for s, t in RING),
    ),
}


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("stage", ["compiled", "lowered"])
def test_each_kind_in_a_real_program(mesh, kind, stage):
    function, outs, shape, groups = CASES[kind]
    program = lowered(mesh, function, outs=outs)
    text = program.compile().as_text() if stage == "compiled" else program.as_text(dialect="hlo")
    (found,) = parse_collectives(text)
    assert (found.kind, found.element_type, found.shape) == (kind, "f32", shape)
    assert found.elements == np.prod(shape)
    assert found.bytes == 4 * found.elements
    assert found.replica_groups == groups
    assert not found.is_async


def test_all_to_all_counts_all_its_parts(mesh):
    text = compiled(mesh, lambda x: lax.all_to_all(x, "b", 0, 1, tiled=True), outs=P("a", "b"))
    (found,) = parse_collectives(text)
    assert (found.kind, found.elements, found.bytes) == ("all-to-all", 64, 256)
    assert found.replica_groups == ALONG_B


def test_types_have_their_widths(mesh):
    text = compiled(mesh, lambda x: lax.ppermute(x, "b", RING), outs=P("a", "b"), dtype=jnp.int8)
    (found,) = parse_collectives(text)
    assert (found.element_type, found.bytes) == ("s8", 64)


def test_no_collectives_in_a_program_without(mesh):
    assert parse_collectives(compiled(mesh, lambda x: x * 2)) == []


def test_top_k_over_a_sharded_row_is_caught_gathering(mesh):
    text = compiled(mesh, lambda x: lax.top_k(x, 3))
    rows = [c for c in parse_collectives(text) if c.kind == "all-gather" and c.shape[-1] == 32]
    assert rows, "the row of 32 was expected to be gathered"
    assert max(c.elements for c in rows) >= 8 * 32
    assert contains_sort_or_top_k(text)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.top_k(x, 3),
        lambda x: lax.top_k(x.astype(jnp.bfloat16), 3),
        lambda x: lax.approx_max_k(x, 3),
        jnp.sort,
        jnp.argsort,
        jnp.median,
    ],
    ids=["top_k", "top_k_bf16", "approx_max_k", "sort", "argsort", "median"],
)
def test_sorts_are_found_in_every_text(mesh, function):
    program = lowered(mesh, function)
    assert contains_sort_or_top_k(program.compile().as_text())
    assert contains_sort_or_top_k(program.as_text())
    assert contains_sort_or_top_k(program.as_text(dialect="hlo"))


def test_names_alone_are_no_sort(mesh):
    def top_k(x):
        with jax.named_scope("sort(x)"):
            return jnp.max(x, axis=-1) + jnp.tanh(x).sum(axis=-1)

    program = lowered(mesh, top_k)
    assert not contains_sort_or_top_k(program.compile().as_text())
    assert not contains_sort_or_top_k(program.as_text(debug_info=True))


ASYNC = """HloModule m, is_scheduled=true

%wrapped (p: f32[8,128]) -> f32[2,128] {
  %p = f32[8,128]{1,0} parameter(0)
  ROOT %rs = f32[2,128]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}
}

ENTRY %main (p: bf16[4,128]) -> bf16[8,128] {
  %p.1 = bf16[4,128]{1,0:T(8,128)(2,1)} parameter(0)
  %ag-start = (bf16[4,128]{1,0:T(8,128)(2,1)}, bf16[8,128]{1,0:T(8,128)(2,1)}) \
all-gather-start(%p.1), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %cp-start = (s4[3]{0}, s4[3]{0}, u32[], u32[]) collective-permute-start(%q), \
source_target_pairs={{0,1},{1,0}}
  %rs-start = ((f32[8,128]{1,0}), f32[2,128]{1,0}) async-start(%w), calls=%wrapped
  %cp-done = s4[3]{0} collective-permute-done(%cp-start)
  %rs-done = f32[2,128]{1,0} async-done(%rs-start)
  %ar = (f32[], bf16[64]{0}) all-reduce(%s, %t), replica_groups={}, to_apply=%add
  ROOT %ag-done = bf16[8,128]{1,0:T(8,128)(2,1)} all-gather-done((bf16[4,128]{1,0}, \
bf16[8,128]{1,0}) %ag-start)
}
"""


def test_a_start_and_its_done_are_one():
    scatter, gather, permute, reduce = parse_collectives(ASYNC)
    assert (gather.kind, gather.shape, gather.bytes) == ("all-gather", (8, 128), 2048)
    assert gather.replica_groups == ALONG_A
    assert gather.is_async
    assert (permute.shape, permute.bytes, permute.is_async) == ((3,), 2, True)
    assert permute.replica_groups == ((0, 1), (1, 0))
    assert (scatter.kind, scatter.shape, scatter.is_async) == ("reduce-scatter", (2, 128), True)
    assert scatter.replica_groups == ALONG_B
    assert (reduce.arrays, reduce.replica_groups) == ((("f32", ()), ("bf16", (64,))), ())
    assert (reduce.element_type, reduce.elements, reduce.bytes) == ("bf16", 65, 132)
    assert not reduce.is_async


def test_text_that_is_not_hlo_is_refused(mesh):
    with pytest.raises(ValueError, match='dialect="hlo"'):
        parse_collectives(lowered(mesh, lambda x: x).as_text())
    with pytest.raises(ValueError, match="not known: replica_groups=new"):
        parse_collectives("HloModule m\n  %a = f32[2]{0} all-reduce(%b), replica_groups=new<2>")
