"""Measurements against named peers, interleaved in one process."""

from .train import StepTimes, bench_train

__all__ = ["StepTimes", "bench_train"]
