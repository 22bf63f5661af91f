"""Counts of parameters and of floating-point operations."""

from __future__ import annotations

import math
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
    """Operations a trained token, multiply and add counted as two, forward and backward (3 x)."""

    dense_equivalent: float
    active: float


def flops_per_token(cfg: ModelConfig, sequence_length: int) -> Flops:
    """Products with the parameters and causal attention over one row of `sequence_length`.

    dense_equivalent counts all products, logits included, the embedding look-up not. active counts
    those left when neurons and keys off the target are skipped (algorithm of arXiv 2506.06644,
    table C.1, with the exact r). Causal attention: the mean number of visible keys a query.
    """
    matrix = count_parameters(cfg) - cfg.d_model * (4 * cfg.num_layers + 1)
    matrix_active = active_parameters(cfg) - cfg.d_model * (4 * cfg.num_layers + 1)
    keys = kept = 0.0
    for layer in range(cfg.num_layers):
        window = cfg.local_window if cfg.layer_is_local(layer) else sequence_length
        window = min(window, sequence_length)
        # Queries 1..window see 1, 2, ..., window keys, the others `window`.
        seen = window * (window + 1) / 2 + (sequence_length - window) * window
        keys += seen / sequence_length
        k = min(cfg.attention_k, window)
        seen_k = k * (k + 1) / 2 + (sequence_length - k) * k
        kept += seen_k / sequence_length
    width = cfg.num_heads * cfg.head_dim
    attention = 4.0 * width * keys
    if cfg.attention == "spark":
        r = cfg.attention_predictor_dim / cfg.head_dim
        attention_active = 2 * width * (r * keys + (1 - r) * kept + kept)
    else:
        attention_active = attention
    dense = 3 * (2.0 * matrix + attention)
    active = 3 * (2.0 * matrix_active + attention_active)
    assert math.isfinite(dense)
    return Flops(dense, active)
