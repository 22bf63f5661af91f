"""Training-step time of dense, Spark and Spark with JAX's own top-k, interleaved.

Run it with `spark-dist bench train small`. One step of each variant in turn makes a round; the
ratios are medians over rounds of the times within a round, so that drifts of the machine cancel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from spark_dist.pipelines import batches
from spark_dist.sharding import batch_sharding, make_mesh

from ..config import ModelConfig, RunConfig
from ..corpus import corpus_of
from ..errors import UserError
from ..preset_table import presets
from ..training.feed import place
from ..training.state import init_state
from ..training.step import batch_shapes, jit_train_step

BASE = "dense"


@dataclass(frozen=True)
class StepTimes:
    """seconds: median step time. ratio: median over rounds of seconds against dense."""

    variant: str
    seconds: float
    ratio: float
    compile_seconds: float


def variants(spark: ModelConfig, dense: ModelConfig) -> dict[str, ModelConfig]:
    """What is timed, by name. All have equally many parameters."""
    full = spark.model_copy(update={"attention": "full"})
    return {
        BASE: dense,
        "spark FFN, full attention": full,
        "spark FFN, spark attention": spark,
        "lax.top_k FFN, full attention": full.model_copy(update={"ffn_selection": "top_k"}),
        "lax.approx_max_k FFN, full attention": full.model_copy(
            update={"ffn_selection": "approx_max_k"}
        ),
    }


def bench_train(
    preset: str, *, rounds: int, note: Callable[[str], None] = lambda _: None
) -> list[StepTimes]:
    """Times real training steps on the embedded corpus, on all local devices.

    preset: a Spark preset that has a dense twin. rounds: timed steps of each variant, at least 1.
    note: told what is being compiled. Raises UserError for another preset.
    """
    known = presets()
    pairs = {name: f"{name}-dense" for name in known if f"{name}-dense" in known}
    if preset not in pairs:
        raise UserError(f"preset={preset!r} has no dense twin; choose from {', '.join(pairs)}")
    if rounds < 1:
        raise UserError(f"rounds={rounds} must be at least 1")
    spark, dense = known[preset].resolved(), known[pairs[preset]].resolved()
    mesh = make_mesh(devices=jax.local_devices()[:1])
    rows = batch_sharding(mesh)
    feed = _feed(spark)
    running: dict[str, tuple[Any, Any]] = {}
    compiled_in: dict[str, float] = {}
    for name, model in variants(spark.model, dense.model).items():
        note(f"compiling {name}")
        config = spark.model_copy(update={"model": model})
        state = init_state(config, mesh)
        begin = time.perf_counter()
        step = jit_train_step(config, mesh).lower(state, batch_shapes(config, mesh)).compile()
        compiled_in[name] = time.perf_counter() - begin
        running[name] = (step, state)
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for round_ in range(rounds + 1):  # the first warms up
        batch = place(next(feed), rows)
        for name, (step, state) in running.items():
            begin = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            if round_:
                seconds[name].append(time.perf_counter() - begin)
            running[name] = (step, state)
    feed.close()
    return [
        StepTimes(
            name,
            statistics.median(times),
            statistics.median(t / base for t, base in zip(times, seconds[BASE], strict=True)),
            compiled_in[name],
        )
        for name, times in seconds.items()
    ]


def _feed(config: RunConfig) -> Any:
    data, corpus = config.data, corpus_of(config)
    return batches(
        corpus,
        global_batch_size=config.trainer.global_batch_size,
        host=0,
        num_hosts=1,
        cursor=None,
        read_threads=data.read_threads,
        prefetch_batches=data.prefetch_batches,
    )
