"""Peak rates: known ones, and no guess for the rest."""

from __future__ import annotations

from spark_dist.training.peaks import peak_flops


def test_known_and_unknown():
    assert peak_flops("TPU v5p", "bfloat16") == 459e12
    assert peak_flops("cpu", "bfloat16") is None
    assert peak_flops("TPU v5p", "float32") is None
