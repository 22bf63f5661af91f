"""Named configurations. Each Spark preset and its dense twin have equal parameter counts.

Spark substitution of a gated FFN of width d (arXiv 2506.06644, section 2.2 and table of
hyper-parameters): d_ff = 1.5 d, since K1, K2 and V together are 2 d_model x d_ff against the gated
3 d_model x d; r about d_model / 2; k = 8 % of d_ff; r_attn = head_dim / 2.
"""

from __future__ import annotations

from .config import (
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
)


def _dense(spark: ModelConfig) -> ModelConfig:
    """The gated, fully attending twin of a Spark geometry, with as many parameters."""
    return spark.model_copy(
        update={"ffn": "gated", "attention": "full", "d_ff": spark.d_ff * 2 // 3}
    )


def _pair(name: str, spark: RunConfig, dense_name: str | None = None) -> dict[str, RunConfig]:
    dense_name = dense_name or f"{name}-dense"
    dense = spark.model_copy(update={"preset": dense_name, "model": _dense(spark.model)})
    return {name: spark.model_copy(update={"preset": name}), dense_name: dense}


_TINY = RunConfig()

_SMALL = RunConfig(
    model=ModelConfig(
        num_layers=8,
        d_model=384,
        num_heads=6,
        num_kv_heads=6,
        head_dim=64,
        d_ff=1536,
        ffn_predictor_dim=192,
        ffn_k=123,
        attention_predictor_dim=32,
        attention_k=64,
    ),
    data=DataConfig(sequence_length=256),
    optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=50),
    trainer=TrainerConfig(steps=600, global_batch_size=12),
)

# Gemma 2 2B: 26 layers, d_model 2304, 8 query and 4 key/value heads of 256, gated d_ff 9216,
# vocabulary 256,128 with padding in the paper's model, 256,000 in the released one.
_SPARK_2B = RunConfig(
    model=ModelConfig(
        vocab_size=256_000,
        num_layers=26,
        d_model=2304,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        d_ff=13_824,
        ffn_predictor_dim=1024,
        ffn_k=1106,
        attention_predictor_dim=128,
        attention_k=256,
        local_window=4096,
    ),
    data=DataConfig(sequence_length=8192),
    optimizer=OptimizerConfig(learning_rate=4e-4, warmup_steps=2000),
    trainer=TrainerConfig(
        steps=480_000,
        global_batch_size=512,
        compute_dtype="bfloat16",
        remat="full",
        eval_every=2000,
        eval_batches=16,
        checkpoint_every=1000,
        keep_checkpoints=3,
    ),
    mesh=MeshConfig(data=1, fsdp=-1),
    launcher="ray",
)

# Gemma 2 9B: 42 layers, d_model 3584, 16 query and 8 key/value heads of 256, gated d_ff 14336.
_SPARK_9B = _SPARK_2B.model_copy(
    update={
        "model": _SPARK_2B.model.model_copy(
            update={
                "num_layers": 42,
                "d_model": 3584,
                "num_heads": 16,
                "num_kv_heads": 8,
                "d_ff": 21_504,
                "ffn_predictor_dim": 1792,
                "ffn_k": 1720,
            }
        ),
        "optimizer": OptimizerConfig(learning_rate=3e-4, warmup_steps=2000),
    }
)


def presets() -> dict[str, RunConfig]:
    """All presets by name, the default first."""
    return {
        **_pair("tiny", _TINY),
        **_pair("small", _SMALL),
        **_pair("spark-2b", _SPARK_2B, "gemma2-2b"),
        **_pair("spark-9b", _SPARK_9B, "gemma2-9b"),
    }
