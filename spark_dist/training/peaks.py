"""Peak rates of accelerators, for the fraction of them that a run uses."""

from __future__ import annotations

BFLOAT16_PEAK = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}
"""Dense bfloat16 operations a second by `jax.Device.device_kind`, from the vendors' data sheets."""


def peak_flops(device_kind: str, dtype: str) -> float | None:
    """Operations a second of one device in this dtype; None where unknown, never guessed."""
    return BFLOAT16_PEAK.get(device_kind) if dtype == "bfloat16" else None
