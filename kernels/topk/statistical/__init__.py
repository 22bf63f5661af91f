"""Statistical top-k: a threshold from the mean and deviation of a row, no sort.

`api.py` checks arguments, `xla.py` computes, `reference.py` says the same plainly.
"""

from .api import statistical_threshold, statistical_top_k

__all__ = ["statistical_threshold", "statistical_top_k"]
