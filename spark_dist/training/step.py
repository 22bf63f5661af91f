"""One optimizer step and one evaluation step over the global batch.

A batch holds int32[B, L]: tokens, targets, segment_ids (0 is padding), positions, target_bytes,
and stop int32[B], one vote a row. All are global arrays; sums over them are sums over all hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spark_dist.sharding import BATCH, batch_sharding

from ..config import ModelConfig, RunConfig
from ..model import LayerStatistics, forward
from .optimizer import learning_rate, make_optimizer
from .state import State, state_shardings

Batch = dict[str, jax.Array]
Metrics = dict[str, jax.Array]

CALIBRATION_RATE = 0.05
"""Largest change of a layer's quantile offset a step."""

SPIKE_DEVIATIONS = 6.0
SPIKE_MEMORY = 0.9
SPIKE_WARMUP = 50


class Sums(NamedTuple):
    """Sums over the targets of a batch: nats, UTF-8 bytes, targets; and the layers' statistics."""

    nats: jax.Array
    bytes: jax.Array
    targets: jax.Array
    layers: LayerStatistics


def _counted(batch: Batch) -> jax.Array:
    """bool[B, L]: tokens whose target counts."""
    return batch["segment_ids"] > 0


def sums(params: Any, config: RunConfig, ffn_offset: jax.Array, batch: Batch) -> Sums:
    """Forward pass of a batch. The nats carry the gradient."""
    logits, layers = forward(
        params,
        config.model,
        ffn_offset,
        batch["tokens"],
        batch["positions"],
        batch["segment_ids"],
        compute_dtype=jnp.dtype(config.trainer.compute_dtype),
        remat=config.trainer.remat == "full",
    )
    counted = _counted(batch)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return Sums(
        jnp.sum(jnp.where(counted, nats, 0.0)),
        jnp.sum(jnp.where(counted, batch["target_bytes"], 0), dtype=jnp.int32),
        jnp.sum(counted, dtype=jnp.int32),
        jax.lax.stop_gradient(layers),
    )


def active_fraction(model: ModelConfig, layers: LayerStatistics) -> jax.Array:
    """float32[num_layers]: neurons that survived, averaged over tokens."""
    return layers.ffn_active / (jnp.maximum(layers.tokens, 1.0) * model.d_ff)


def attended_keys(layers: LayerStatistics) -> jax.Array:
    """float32[num_layers]: mean survivors in rows longer than 2 k; NaN where there was none."""
    return layers.attention_keys / layers.attention_rows


def calibrate(model: ModelConfig, offset: jax.Array, fraction: jax.Array) -> jax.Array:
    """The offset after a step that realised `fraction`[num_layers]: closed loop on the quantile."""
    if not model.sparse_ffn or model.ffn_threshold == "gaussian" or model.ffn_k == 0:
        return offset
    target = model.ffn_k / model.d_ff
    return offset + CALIBRATION_RATE * jnp.clip(fraction / target - 1.0, -1.0, 1.0)


def _split(batch: Batch, parts: int, mesh: Mesh) -> Batch:
    """[B, ...] -> [parts, B / parts, ...], every device keeping its own rows."""
    spec = NamedSharding(mesh, PartitionSpec(None, *BATCH))

    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(x, spec)

    return jax.tree.map(split, batch)


def _gradient(config: RunConfig, mesh: Mesh, state: State, batch: Batch) -> tuple[Sums, Any]:
    """Sums over the batch and the gradient of its mean nats a target."""
    total = jnp.maximum(jnp.sum(_counted(batch), dtype=jnp.float32), 1.0)

    def loss(params: Any, part: Batch) -> tuple[jax.Array, Sums]:
        out = sums(params, config, state["ffn_offset"], part)
        return out.nats / total, out

    grad = jax.grad(loss, has_aux=True)
    parts = config.trainer.grad_accumulation
    if parts == 1:
        gradient, out = grad(state["params"], batch)
        return out, gradient

    def accumulate(carry: tuple[Any, Sums], part: Batch) -> tuple[tuple[Any, Sums], None]:
        gradient, out = grad(state["params"], part)
        return jax.tree.map(jnp.add, carry, (gradient, out)), None

    pieces = _split(batch, parts, mesh)
    shapes = jax.eval_shape(grad, state["params"], jax.tree.map(lambda x: x[0], pieces))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (gradient, out), _ = jax.lax.scan(accumulate, zero, pieces)
    return out, gradient


def _spike(config: RunConfig, opt: State, step: jax.Array, loss: jax.Array) -> jax.Array:
    """Whether the loss lies far above its running mean."""
    if not config.trainer.skip_loss_spikes:
        return jnp.zeros((), bool)
    floor = 0.02 * opt["loss_mean"]
    deviation = jnp.maximum(jnp.sqrt(opt["loss_variance"]), floor)
    warm = step - opt["skipped_steps"] >= SPIKE_WARMUP
    return warm & (loss > opt["loss_mean"] + SPIKE_DEVIATIONS * deviation)


def _running(opt: State, loss: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Exponential mean and variance of the loss, the first loss taken whole."""
    delta = loss - opt["loss_mean"]
    first = opt["loss_mean"] == 0.0
    mean = jnp.where(first, loss, opt["loss_mean"] + (1 - SPIKE_MEMORY) * delta)
    variance = SPIKE_MEMORY * (opt["loss_variance"] + (1 - SPIKE_MEMORY) * delta * delta)
    return mean, jnp.where(first, 0.0, variance)


def train_step(config: RunConfig, mesh: Mesh, state: State, batch: Batch) -> tuple[State, Metrics]:
    """The pure step. A loss or gradient that is not finite leaves parameters and moments alone."""
    opt = state["opt_state"]
    out, gradient = _gradient(config, mesh, state, batch)
    loss = out.nats / jnp.maximum(out.targets, 1).astype(jnp.float32)
    norm = optax.tree.norm(gradient)
    accept = jnp.isfinite(loss) & jnp.isfinite(norm) & ~_spike(config, opt, state["step"], loss)

    gradient = jax.tree.map(
        lambda g: g * jnp.minimum(1.0, config.optimizer.clip_norm / jnp.maximum(norm, 1e-30)),
        gradient,
    )
    direction, adamw = make_optimizer(config.optimizer).update(
        gradient, opt["adamw"], state["params"]
    )
    rate = learning_rate(config.optimizer, state["step"])
    params = optax.apply_updates(state["params"], jax.tree.map(lambda d: rate * d, direction))
    fraction = active_fraction(config.model, out.layers)
    mean, variance = _running(opt, loss)

    proposed = {
        "params": params,
        "ffn_offset": calibrate(config.model, state["ffn_offset"], fraction),
        "opt_state": {
            "adamw": adamw,
            "skipped_steps": opt["skipped_steps"],
            "consecutive_skips": jnp.zeros((), jnp.int32),
            "loss_mean": mean,
            "loss_variance": variance,
        },
    }
    kept = {
        "params": state["params"],
        "ffn_offset": state["ffn_offset"],
        "opt_state": {
            **opt,
            "skipped_steps": opt["skipped_steps"] + 1,
            "consecutive_skips": opt["consecutive_skips"] + 1,
        },
    }
    new: State = jax.tree.map(lambda a, b: jnp.where(accept, a, b), proposed, kept)
    new["step"] = state["step"] + 1
    metrics = {
        "loss": loss,
        "bits_per_byte": out.nats / math.log(2) / jnp.maximum(out.bytes, 1).astype(jnp.float32),
        "targets": out.targets,
        "grad_norm": norm,
        "learning_rate": rate,
        "skipped_steps": new["opt_state"]["skipped_steps"],
        "consecutive_skips": new["opt_state"]["consecutive_skips"],
        "ffn_active_fraction": fraction,
        "ffn_offset": new["ffn_offset"],
        "attention_active_mean": attended_keys(out.layers),
        "stop": jnp.max(batch["stop"]),
    }
    return new, metrics


def batch_shapes(config: RunConfig, mesh: Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and sharding of a global batch."""
    rows, length = config.trainer.global_batch_size, config.data.sequence_length
    names = ("tokens", "targets", "segment_ids", "positions", "target_bytes")
    sharding = batch_sharding(mesh)
    shapes = {n: jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=sharding) for n in names}
    shapes["stop"] = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding)
    return shapes


def jit_train_step(config: RunConfig, mesh: Mesh) -> Callable[..., tuple[State, Metrics]]:
    """`train_step` jitted with its layout; the old state's memory is reused."""
    placed = state_shardings(config, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        lambda state, batch: train_step(config, mesh, state, batch),
        in_shardings=(placed, batch_sharding(mesh)),
        out_shardings=(placed, everywhere),
        donate_argnums=0,
    )


def jit_eval_step(config: RunConfig, mesh: Mesh) -> Callable[..., Sums]:
    """(params, ffn_offset, batch) -> `Sums`, the same on every device."""
    placed = state_shardings(config, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.jit(
        lambda params, offset, batch: sums(params, config, offset, batch),
        in_shardings=(placed["params"], placed["ffn_offset"], batch_sharding(mesh)),
        out_shardings=everywhere,
    )
