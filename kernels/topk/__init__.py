"""Operators that keep about k, or exactly k, entries of a row: one folder an operator."""

from .statistical import statistical_threshold, statistical_top_k

__all__ = ["statistical_threshold", "statistical_top_k"]
