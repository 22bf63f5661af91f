"""Spark Transformers in JAX: pre-training, evaluation and sparse decoding.

    import spark_dist
    result = spark_dist.train(spark_dist.presets()["tiny"])

The names below are loaded when they are first used, so that importing this package, or one
wing of it, loads nothing else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_dist.api import Generator, evaluate, train
    from spark_dist.config import RunConfig
    from spark_dist.preset_table import presets

__version__ = "0.1.0"
__all__ = ["Generator", "RunConfig", "evaluate", "presets", "train"]

_HOMES = {
    "Generator": "spark_dist.api",
    "RunConfig": "spark_dist.config",
    "evaluate": "spark_dist.api",
    "presets": "spark_dist.preset_table",
    "train": "spark_dist.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
