"""What a run carries from step to step, and where it lies on the mesh."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spark_dist.sharding import shardings

from ..config import RunConfig
from ..model import init_params, logical_axes, parameter_shapes
from .optimizer import make_optimizer

State = dict[str, Any]
"""params, opt_state {adamw, skipped_steps, consecutive_skips, loss_mean, loss_variance},
ffn_offset float32[num_layers], step int32[]."""


def _fresh(config: RunConfig, seed: jax.Array) -> State:
    params = init_params(config.model, jax.random.key(seed))
    return {
        "params": params,
        "opt_state": {
            "adamw": make_optimizer(config.optimizer).init(params),
            "skipped_steps": jnp.zeros((), jnp.int32),
            "consecutive_skips": jnp.zeros((), jnp.int32),
            "loss_mean": jnp.zeros((), jnp.float32),
            "loss_variance": jnp.zeros((), jnp.float32),
        },
        "ffn_offset": jnp.zeros((config.model.num_layers,), jnp.float32),
        "step": jnp.zeros((), jnp.int32),
    }


def state_shardings(config: RunConfig, mesh: Mesh) -> State:
    """`NamedSharding` of every leaf: moments lie as their parameters, the rest on all devices."""
    param_shardings = shardings(logical_axes(config.model), parameter_shapes(config.model), mesh)
    shapes = jax.eval_shape(lambda: _fresh(config, jnp.zeros((), jnp.uint32)))
    structure = jax.tree.structure(shapes["params"])
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(node: Any) -> Any:
        if jax.tree.structure(node) == structure:
            return param_shardings
        return everywhere

    return jax.tree.map(place, shapes, is_leaf=lambda n: jax.tree.structure(n) == structure)


def abstract_state(config: RunConfig, mesh: Mesh) -> State:
    """`jax.ShapeDtypeStruct` with sharding of every leaf: the target of a restore."""
    shapes = jax.eval_shape(lambda: _fresh(config, jnp.zeros((), jnp.uint32)))
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        state_shardings(config, mesh),
    )


def init_state(config: RunConfig, mesh: Mesh) -> State:
    """A fresh state, each shard made on its own device. The same on every layout."""
    # It runs once: compiled without effort, on CPU in a quarter of the time, to the same bits.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    make = jax.jit(
        lambda seed: _fresh(config, seed),
        out_shardings=state_shardings(config, mesh),
        compiler_options={"xla_backend_optimization_level": 1} if on_cpu else None,
    )
    seed = jax.device_put(
        jnp.asarray(config.trainer.seed, jnp.uint32), NamedSharding(mesh, PartitionSpec())
    )
    return make(seed)
