"""One optimizer step: what it learns, what it refuses, and that layouts agree."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import RunConfig
from spark_dist.sharding import batch_sharding, contains_sort_or_top_k, make_mesh
from spark_dist.training import init_state, jit_eval_step, jit_train_step
from spark_dist.training.feed import place
from spark_dist.training.state import state_shardings
from spark_dist.training.step import batch_shapes


def with_model(config: RunConfig, **model: Any) -> RunConfig:
    return config.model_copy(update={"model": config.model.model_copy(update=model)})


def with_trainer(config: RunConfig, **trainer: Any) -> RunConfig:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update=trainer)})


@functools.cache
def compiled(config: RunConfig, mesh: jax.sharding.Mesh) -> Any:
    """The jitted step, compiled once for all tests of this file."""
    return jit_train_step(config, mesh)


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.ravel(jax.device_get(x)) for x in jax.tree.leaves(tree)])


def test_loss_falls_and_fraction_reaches_the_target(config, one_device, rows):
    step, state = compiled(config, one_device), init_state(config, one_device)
    sharding = batch_sharding(one_device)
    with jax.transfer_guard("disallow"):
        for i in range(40):
            state, metrics = step(state, place(rows(i), sharding))
            if i == 0:
                first = float(jax.device_get(metrics["loss"]))
    found = jax.device_get(metrics)
    assert first > 3.5
    assert found["loss"] < 0.6 * first
    target = config.model.ffn_k / config.model.d_ff
    np.testing.assert_allclose(found["ffn_active_fraction"], target, rtol=0.3)
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2), rel=1e-5)
    assert int(jax.device_get(state["step"])) == 40
    assert int(jax.device_get(state["opt_state"]["adamw"][0].count)) == 40


@pytest.mark.parametrize("poison", ["parameter", "loss"])
def test_a_value_that_is_not_finite_changes_nothing_but_the_counters(
    config, one_device, rows, poison
):
    state = init_state(config, one_device)
    step = compiled(config, one_device)
    batch = place(rows(0), batch_sharding(one_device))
    state, _ = step(state, batch)
    if poison == "parameter":
        bad = state["params"]["layers"]["ffn"]["v"].at[0, 0, 0].set(jnp.nan)
        state["params"]["layers"]["ffn"]["v"] = bad
    else:
        table = state["params"]["embedding"]["table"]
        state["params"]["embedding"]["table"] = table.at[0, 0].set(jnp.inf)
    before = jax.device_get(state)
    for expected in (1, 2):
        state, metrics = step(state, batch)
        found = jax.device_get(metrics)
        assert not math.isfinite(found["loss"]) or not math.isfinite(found["grad_norm"])
        assert (found["skipped_steps"], found["consecutive_skips"]) == (expected, expected)
    after = jax.device_get(state)
    for name in ("params", "ffn_offset"):
        np.testing.assert_array_equal(flat(before[name]), flat(after[name]))
    np.testing.assert_array_equal(
        flat(before["opt_state"]["adamw"]), flat(after["opt_state"]["adamw"])
    )
    assert after["step"] == before["step"] + 2


def test_a_good_step_ends_a_series_of_skips(config, one_device, rows):
    state = init_state(config, one_device)
    step = compiled(config, one_device)
    batch = place(rows(0), batch_sharding(one_device))
    good = jax.tree.map(jnp.copy, state["params"])
    state["params"]["final_norm"]["scale"] = (
        state["params"]["final_norm"]["scale"].at[0].set(jnp.nan)
    )
    state, metrics = step(state, batch)
    assert int(metrics["consecutive_skips"]) == 1
    state["params"] = good
    state, metrics = step(state, batch)
    assert (int(metrics["consecutive_skips"]), int(metrics["skipped_steps"])) == (0, 1)


def test_spikes_are_skipped_only_when_asked(config, one_device, rows):
    sharding = batch_sharding(one_device)
    skips = {}
    for asked in (False, True):
        c = with_trainer(config, skip_loss_spikes=asked)
        step, state = compiled(c, one_device), init_state(c, one_device)
        for i in range(60):
            state, metrics = step(state, place(rows(i), sharding))
        assert int(metrics["skipped_steps"]) == 0
        spike = rows(60)
        spike["targets"] = np.random.default_rng(1).integers(0, 64, (8, 16)).astype(np.int32)
        _, metrics = step(state, place(spike, sharding))
        skips[asked] = int(metrics["skipped_steps"])
    assert skips == {False: 0, True: 1}


def test_accumulation_equals_one_large_batch(config, one_device, rows):
    batch_rows = rows(3)
    batch_rows["segment_ids"][:3, 5:] = 0  # unequal numbers of targets in the parts
    losses, updates = [], []
    for parts in (1, 2, 4):
        c = with_trainer(config, grad_accumulation=parts)
        state = init_state(c, one_device)
        before = flat(state["params"])
        state, metrics = compiled(c, one_device)(
            state, place(batch_rows, batch_sharding(one_device))
        )
        losses.append(float(metrics["loss"]))
        updates.append(flat(state["params"]) - before)
        np.testing.assert_allclose(metrics["targets"], np.sum(batch_rows["segment_ids"] > 0))
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
    for update in updates[1:]:
        assert np.linalg.norm(update - updates[0]) < 1e-4 * np.linalg.norm(updates[0])


@pytest.mark.parametrize(
    ("sizes", "ffn"),
    [((8, 1, 1), "spark"), ((1, 8, 1), "spark"), ((2, 2, 2), "spark"), ((1, 2, 4), "gated")],
)
def test_layouts_agree_step_by_step(config, one_device, rows, sizes, ffn):
    """From the same state a step agrees: loss 1e-5, update 1e-4 relative, at the real rate.

    Of the very first step only the loss is compared: without moments Adam takes the sign of each
    gradient, and that of a gradient at rounding level is noise on any layout.
    """
    c = with_model(config, ffn=ffn)
    mesh = make_mesh(data=sizes[0], fsdp=sizes[1], tensor=sizes[2])
    single, sharded = compiled(c, one_device), compiled(c, mesh)
    state = init_state(c, one_device)
    np.testing.assert_array_equal(flat(state["params"]), flat(init_state(c, mesh)["params"]))
    for i in range(5):
        here = jax.device_get(state)
        there = jax.device_put(here, state_shardings(c, mesh))
        before = flat(state["params"])
        state, a = single(state, place(rows(i), batch_sharding(one_device)))
        moved, b = sharded(there, place(rows(i), batch_sharding(mesh)))
        assert float(a["loss"]) == pytest.approx(float(b["loss"]), rel=1e-5)
        update, other = flat(state["params"]) - before, flat(moved["params"]) - before
        if i > 0:
            assert np.linalg.norm(update - other) < 1e-4 * np.linalg.norm(update)


@pytest.mark.parametrize("selection", ["statistical", "top_k"])
def test_no_sort_in_the_training_step(config, one_device, selection):
    c = with_model(config, ffn_selection=selection)
    state = init_state(c, one_device)
    lowered = jit_train_step(c, one_device).lower(state, batch_shapes(c, one_device))
    assert contains_sort_or_top_k(lowered.compile().as_text()) == (selection == "top_k")


def test_gaussian_threshold_leaves_the_offset_alone(config, one_device, rows):
    for threshold, moves in (("gaussian", False), ("calibrated", True)):
        c = with_model(config, ffn_threshold=threshold)
        step, state = compiled(c, one_device), init_state(c, one_device)
        for i in range(3):
            state, _ = step(state, place(rows(i), batch_sharding(one_device)))
        assert bool(np.any(jax.device_get(state["ffn_offset"]) != 0)) == moves


def test_calibration_moves_against_the_error_and_at_most_by_the_rate(config):
    from spark_dist.training.step import CALIBRATION_RATE, calibrate

    target = config.model.ffn_k / config.model.d_ff
    got = calibrate(config.model, jnp.zeros(2), jnp.array([3 * target, 0.0]))
    np.testing.assert_allclose(got, [CALIBRATION_RATE, -CALIBRATION_RATE])
    got = calibrate(config.model, jnp.ones(2), jnp.array([1.1 * target, target]))
    np.testing.assert_allclose(got, [1 + 0.1 * CALIBRATION_RATE, 1.0], rtol=1e-6)


def test_padding_counts_for_nothing(config, one_device, rows):
    evaluate = jit_eval_step(config, one_device)
    state = init_state(config, one_device)
    sharding = batch_sharding(one_device)
    whole = rows(0)
    padded = {k: np.concatenate([v, np.zeros_like(v)]) for k, v in whole.items()}
    padded["tokens"][8:] = 5
    a = jax.device_get(evaluate(state["params"], state["ffn_offset"], place(whole, sharding)))
    b = jax.device_get(evaluate(state["params"], state["ffn_offset"], place(padded, sharding)))
    assert (a.targets, a.bytes, a.layers.tokens) == (b.targets, b.bytes, b.layers.tokens)
    np.testing.assert_allclose(a.nats, b.nats, rtol=1e-6)
    np.testing.assert_array_equal(a.layers.ffn_active, b.layers.ffn_active)


def test_a_vote_to_stop_reaches_everyone(config, rows):
    mesh = make_mesh(data=8)
    state = init_state(config, mesh)
    batch = place(rows(0), batch_sharding(mesh))
    votes = np.zeros(8, np.int32)
    votes[5] = 1
    batch["stop"] = jax.device_put(votes, batch_sharding(mesh))
    _, metrics = compiled(config, mesh)(state, batch)
    assert int(metrics["stop"]) == 1
