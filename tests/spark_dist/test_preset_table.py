"""Presets: geometry of the papers, equal counts in each pair, consistent when read back."""

from __future__ import annotations

import math

import jax
import pytest

from spark_dist.config import RunConfig
from spark_dist.model import active_parameters, count_parameters, parameter_shapes
from spark_dist.preset_table import presets

PAIRS = [
    ("tiny", "tiny-dense"),
    ("small", "small-dense"),
    ("spark-2b", "gemma2-2b"),
    ("spark-9b", "gemma2-9b"),
]


def counted(tree) -> int:
    """Parameters of a tree of shapes."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(("spark", "dense"), PAIRS)
def test_each_pair_has_equal_counts(spark, dense):
    models = [presets()[name].model for name in (spark, dense)]
    shapes = [parameter_shapes(model) for model in models]
    assert counted(shapes[0]) == counted(shapes[1])
    assert [count_parameters(m) for m in models] == [counted(s) for s in shapes]
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jax.numpy.dtype("float32")}
    assert (models[0].ffn, models[0].attention) == ("spark", "spark")
    assert (models[1].ffn, models[1].attention) == ("gated", "full")
    assert active_parameters(models[1]) == count_parameters(models[1])
    assert active_parameters(models[0]) < count_parameters(models[0])


def test_the_papers_figures():
    for name in ("spark-2b", "gemma2-2b"):
        shapes = parameter_shapes(presets()[name].model)
        assert counted(shapes["layers"]["ffn"]) == 26 * 63_700_992
        assert counted(shapes) == 2_614_341_888  # the released Gemma 2 2B
    assert counted(parameter_shapes(presets()["gemma2-9b"].model)) == 9_241_705_984
    model = presets()["spark-2b"].model
    # A token reads K1 whole, and its k columns of K2 and of V.
    skipped = (13_824 - 1106) * (1280 + 2304)
    assert active_parameters(model) == 2_614_341_888 - 26 * skipped


@pytest.mark.parametrize(
    ("name", "geometry"),
    [
        ("tiny", (4, 160, 4, 4, 40, 648, 80, 52, 20, 32, 128, 12)),
        ("small", (8, 384, 6, 6, 64, 1536, 192, 123, 32, 64, 256, 12)),
        ("spark-2b", (26, 2304, 8, 4, 256, 13_824, 1024, 1106, 128, 256, 8192, 512)),
        ("spark-9b", (42, 3584, 16, 8, 256, 21_504, 1792, 1720, 128, 256, 8192, 512)),
    ],
)
def test_geometry(name, geometry):
    config = presets()[name]
    m = config.model
    assert geometry == (
        *(m.num_layers, m.d_model, m.num_heads, m.num_kv_heads, m.head_dim),
        *(m.d_ff, m.ffn_predictor_dim, m.ffn_k, m.attention_predictor_dim, m.attention_k),
        *(config.data.sequence_length, config.trainer.global_batch_size),
    )


def test_every_preset_is_consistent_when_read_back():
    assert list(presets()) == [name for pair in PAIRS for name in pair]
    assert next(iter(presets().values())) == RunConfig()
    for name, config in presets().items():
        assert config.preset == name
        # `model_copy` does not validate: a preset must pass the door like a user's file.
        assert RunConfig.model_validate(config.model_dump()) == config
        assert RunConfig.model_validate_json(config.resolved().model_dump_json())
