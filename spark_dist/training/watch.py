"""Warns, by name, of layers whose realised sparsity stays off its target."""

from __future__ import annotations

import math
from collections.abc import Sequence


class SparsityWatch:
    """Counts logged steps outside [k/2, 2k] for each layer of one operator.

    what: named in the warning. target: k, in the unit of the observations.
    patience: logged steps in a row outside the band before the warning, given once an excursion.
    """

    def __init__(self, what: str, target: float, patience: int = 20):
        self.what, self.target, self.patience = what, target, patience
        self._outside: dict[int, int] = {}

    def observe(self, step: int, values: Sequence[float]) -> list[str]:
        """Warnings due after the values of a logged step, one a layer; NaN counts as no reading."""
        warnings = []
        for layer, value in enumerate(values):
            if math.isnan(value):
                continue
            if self.target / 2 <= value <= 2 * self.target:
                self._outside[layer] = 0
                continue
            self._outside[layer] = self._outside.get(layer, 0) + 1
            if self._outside[layer] == self.patience:
                warnings.append(
                    f"layer {layer}: {self.what} {value:.4g} has been outside "
                    f"[{self.target / 2:.4g}, {2 * self.target:.4g}] for {self.patience} logged "
                    f"steps (step {step}); see ffn_threshold, ffn_k and attention_k"
                )
        return warnings
