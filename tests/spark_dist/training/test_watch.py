"""Warnings about layers that stay off their sparsity target."""

from __future__ import annotations

import math

from spark_dist.training.watch import SparsityWatch


def test_warns_once_an_excursion_and_names_the_layer():
    watch = SparsityWatch("FFN active fraction", target=0.08, patience=3)
    said = [watch.observe(step, [0.08, 0.01]) for step in range(6)]
    assert [len(s) for s in said] == [0, 0, 1, 0, 0, 0]
    assert "layer 1" in said[2][0]
    assert "0.01" in said[2][0]
    assert watch.observe(7, [0.08, 0.08]) == []
    again = [watch.observe(step, [0.08, 0.2]) for step in range(8, 11)]
    assert [len(s) for s in again] == [0, 0, 1]


def test_the_band_is_half_to_double():
    watch = SparsityWatch("attended keys", target=32, patience=1)
    assert watch.observe(1, [16.0, 64.0, math.nan]) == []
    assert len(watch.observe(2, [15.9, 64.1, math.nan])) == 2
