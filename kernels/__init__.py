"""The maths of sparse activation: top-k operators."""

from .backends import backend
from .topk import statistical_threshold, statistical_top_k

__all__ = ["backend", "statistical_threshold", "statistical_top_k"]
