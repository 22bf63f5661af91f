"""Counts of parameters and of floating-point operations."""

from __future__ import annotations

from typing import NamedTuple

from ..config import ModelConfig


def _ffn_parameters(cfg: ModelConfig) -> int:
    matrices = 2 if cfg.ffn == "spark" else 3
    return matrices * cfg.d_model * cfg.d_ff


def _attention_parameters(cfg: ModelConfig) -> int:
    return 2 * cfg.d_model * cfg.head_dim * (cfg.num_heads + cfg.num_kv_heads)


def count_parameters(cfg: ModelConfig) -> int:
    """All parameters, the tied embedding once; equals the sum over `parameter_shapes`."""
    layer = _ffn_parameters(cfg) + _attention_parameters(cfg) + 4 * cfg.d_model
    return cfg.num_layers * layer + cfg.vocab_size * cfg.d_model + cfg.d_model


def active_parameters(cfg: ModelConfig) -> int:
    """Parameters one token reads when inactive neurons are skipped, at the target count k."""
    if cfg.ffn == "gated":
        return count_parameters(cfg)
    d, f, k = cfg.d_model, cfg.d_ff, cfg.ffn_k
    if cfg.ffn == "spark":
        read = cfg.ffn_predictor_dim * f + k * (d - cfg.ffn_predictor_dim) + k * d
    else:
        read = d * f + 2 * k * d
    return count_parameters(cfg) - cfg.num_layers * (_ffn_parameters(cfg) - read)


class Flops(NamedTuple):
    """Operations a trained token, multiply and add counted as two, forward and backward (3 x).

    dense_equivalent: all matrix products of the step, those of masked query-key pairs too, which
    the training step computes. active: those left when neurons at their target count and keys that
    are masked or off the target are skipped.
    """

    dense_equivalent: float
    active: float


def _mean_seen(window: int, sequence_length: int) -> float:
    """Keys a query of one causal row sees on average, through a window of `window` keys."""
    window = min(window, sequence_length)
    # Queries 1..window see 1, 2, ..., window keys, the others `window`.
    seen = window * (window + 1) / 2 + (sequence_length - window) * window
    return seen / sequence_length


def flops_per_token(cfg: ModelConfig, sequence_length: int) -> Flops:
    """Products of one row of `sequence_length`: logits included, the embedding look-up not.

    The active ones follow arXiv 2506.06644, table C.1, with the exact r.
    """
    norms = cfg.d_model * (4 * cfg.num_layers + 1)
    width = cfg.num_heads * cfg.head_dim
    all_keys = cfg.num_layers * sequence_length
    seen = kept = 0.0
    for layer in range(cfg.num_layers):
        window = cfg.local_window if cfg.layer_is_local(layer) else sequence_length
        seen += _mean_seen(window, sequence_length)
        kept += _mean_seen(min(cfg.attention_k, window), sequence_length)
    if cfg.attention == "spark":
        r = cfg.attention_predictor_dim / cfg.head_dim
        attention_active = 2.0 * width * (r * seen + (1 - r) * kept + kept)
    else:
        attention_active = 4.0 * width * seen
    return Flops(
        3 * (2.0 * (count_parameters(cfg) - norms) + 4.0 * width * all_keys),
        3 * (2.0 * (active_parameters(cfg) - norms) + attention_active),
    )
