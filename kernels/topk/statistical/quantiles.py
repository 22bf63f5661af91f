"""Quantiles of the normal distribution, one for each count of valid entries, on the host."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np


@lru_cache(maxsize=32)
def gaussian_quantiles(k: int, length: int) -> np.ndarray:
    """Q(1 - k/n) for n = 0 .. length: float64[length + 1], read-only.

    -inf where n <= k (every entry is kept), +inf everywhere for k = 0 (none is).
    """
    table = np.full(length + 1, np.inf if k == 0 else -np.inf)
    if k:
        inverse = NormalDist().inv_cdf
        # By symmetry: -Q(k/n) keeps the digits that 1 - k/n would lose.
        table[k + 1 :] = [-inverse(k / n) for n in range(k + 1, length + 1)]
    table.flags.writeable = False
    return table
