"""Dense Gemma 2 and Gemma 3n's sparse MLP against `transformers`: stored values, and live."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from spark_dist.config import ModelConfig
from spark_dist.errors import UserError
from spark_dist.model import decode, empty_cache, forward, from_gemma2
from spark_dist.model.ffn import make_ffn

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden"
CLOSE = 1e-4


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return dict(stored)


def weights(example) -> dict[str, np.ndarray]:
    return {k.removeprefix("weights/"): v for k, v in example.items() if k.startswith("weights/")}


def geometry(example) -> ModelConfig:
    """Our configuration of a `Gemma2Config`."""
    theirs = json.loads(str(example["config"]))
    return ModelConfig(
        vocab_size=theirs["vocab_size"],
        num_layers=theirs["num_hidden_layers"],
        d_model=theirs["hidden_size"],
        num_heads=theirs["num_attention_heads"],
        num_kv_heads=theirs["num_key_value_heads"],
        head_dim=theirs["head_dim"],
        d_ff=theirs["intermediate_size"],
        ffn="gated",
        attention="full",
        local_window=theirs["sliding_window"],
        attention_pattern=("local", "global"),
        attention_soft_cap=theirs["attn_logit_softcapping"],
        final_soft_cap=theirs["final_logit_softcapping"],
        rope_base=theirs["rope_parameters"]["rope_theta"],
        query_scale=theirs["query_pre_attn_scalar"] ** -0.5,
        norm_eps=theirs["rms_norm_eps"],
    )


def check_gemma2(example) -> None:
    cfg = geometry(example)
    params = from_gemma2(weights(example), cfg)
    tokens = example["tokens"]
    ones = np.ones_like(tokens)
    rows = {
        "tokens": tokens,
        "positions": ones * np.arange(tokens.shape[1], dtype=np.int32),
        "segment_ids": ones,
    }
    offset = jnp.zeros(cfg.num_layers)
    logits, _ = jax.jit(lambda p, rows: forward(p, cfg, offset, **rows))(params, rows)
    np.testing.assert_allclose(logits, example["logits"], rtol=CLOSE, atol=CLOSE)
    cache = empty_cache(cfg, *tokens.shape)
    logits, _ = jax.jit(lambda p, rows: decode(p, cfg, offset, **rows, cache=cache))(params, rows)
    np.testing.assert_allclose(logits, example["logits"], rtol=CLOSE, atol=CLOSE)


def check_gemma3n_mlp(example) -> None:
    width, size = example["gate"].shape
    cfg = ModelConfig(ffn="gaussian_topk", d_model=size, d_ff=width, ffn_k=width // 20)
    mlp = make_ffn(cfg, nnx.Rngs(0))
    for name in ("gate", "up", "down"):
        getattr(mlp, name)[...] = example[name].T
    y, active = mlp(jnp.asarray(example["x"]), jnp.float32(0))
    np.testing.assert_allclose(y, example["y"], rtol=CLOSE, atol=CLOSE)
    gate = example["x"].astype(float) @ example["gate"].T
    theta = gate.mean(-1, keepdims=True) + 1.6448536 * gate.std(-1, keepdims=True)
    np.testing.assert_array_equal(active, (gate > theta).sum(-1))


def test_gemma2_against_stored_logits():
    example = load("gemma2")
    # What makes the example worth its bytes: the window and both soft caps bite.
    cfg = geometry(example)
    assert cfg.local_window < example["tokens"].shape[1]
    assert np.abs(example["logits"]).max() > 0.5 * (cfg.final_soft_cap or np.inf)
    check_gemma2(example)


def test_gemma3n_mlp_against_stored_outputs():
    check_gemma3n_mlp(load("gemma3n_mlp"))


def test_stored_files_are_small():
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 200_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ffn": "spark", "ffn_predictor_dim": 12, "ffn_k": 4}, ["model.ffn=spark", "use gated"]),
        ({"num_layers": 4}, ["model.layers.3.self_attn.o_proj.weight", "missing"]),
        ({"num_heads": 2}, ["q_proj.weight", "32 outputs", "2 heads x 8"]),
        ({"d_ff": 41}, ["layers.ffn.down", "(3, 40, 24)", "(3, 41, 24)"]),
        ({"vocab_size": 60}, ["embedding.table", "(61, 24)", "(60, 24)"]),
    ],
)
def test_other_geometries_are_refused(change, words):
    example = load("gemma2")
    cfg = ModelConfig(**{**geometry(example).model_dump(), **change})
    with pytest.raises(UserError) as caught:
        from_gemma2(weights(example), cfg)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.interop
@pytest.mark.slow
def test_against_the_installed_transformers():
    """New weights and inputs from the installed version, and the stored ones made again."""
    pytest.importorskip("transformers", reason="needs the extra interop")
    make = runpy.run_path(str(ROOT / "benchmarks" / "make_golden.py"))
    check_gemma2(make["gemma2"](1))
    check_gemma3n_mlp(make["gemma3n_mlp"](1))
    for name in ("gemma2", "gemma3n_mlp"):
        again, stored = make[name](0), load(name)
        assert again.keys() == stored.keys()
        for key in stored.keys() - {"config"}:
            np.testing.assert_allclose(again[key], stored[key], rtol=1e-5, atol=1e-6)
