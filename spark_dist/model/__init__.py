"""The decoder: Gemma 2's block with dense or Spark feed-forward and attention."""

from .accounting import active_parameters, count_parameters, flops_per_token
from .cache import KVCache, empty_cache
from .decoder import (
    LayerStatistics,
    decode,
    forward,
    init_params,
    logical_axes,
    parameter_shapes,
)
from .gemma import from_gemma2

__all__ = [
    "KVCache",
    "LayerStatistics",
    "active_parameters",
    "count_parameters",
    "decode",
    "empty_cache",
    "flops_per_token",
    "forward",
    "from_gemma2",
    "init_params",
    "logical_axes",
    "parameter_shapes",
]
