"""The learning-rate schedules, and AdamW against its formula."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from spark_dist.config import OptimizerConfig
from spark_dist.training import learning_rate, make_optimizer


def rates(**settings) -> np.ndarray:
    cfg = OptimizerConfig(learning_rate=1.0, **settings)
    return np.array([float(learning_rate(cfg, jnp.int32(s))) for s in range(cfg.schedule_steps)])


def test_cosine_warms_up_peaks_and_ends_near_the_floor():
    r = rates(schedule="cosine", warmup_steps=10, schedule_steps=100, final_fraction=0.1)
    np.testing.assert_allclose(r[:10], np.arange(1, 11) / 10, rtol=1e-6)
    assert r[10] == pytest.approx(1.0)
    assert r[55] == pytest.approx(0.55, abs=1e-6)
    assert 0.1 < r[-1] < 0.102
    assert (np.diff(r[10:]) <= 0).all()


def test_wsd_is_flat_and_then_falls_in_a_line():
    r = rates(
        schedule="wsd", warmup_steps=5, schedule_steps=50, decay_fraction=0.2, final_fraction=0.0
    )
    np.testing.assert_allclose(r[5:40], 1.0)
    np.testing.assert_allclose(r[40:], 1 - np.arange(10) / 10, atol=1e-6)


def test_constant_without_warm_up():
    np.testing.assert_array_equal(rates(schedule="constant", warmup_steps=0, schedule_steps=5), 1)


def test_beyond_the_schedule_the_rate_stays_at_the_floor():
    cfg = OptimizerConfig(learning_rate=1.0, schedule_steps=20, warmup_steps=2, final_fraction=0.3)
    assert float(learning_rate(cfg, jnp.int32(500))) == pytest.approx(0.3)


def test_unresolved_schedule_is_refused():
    with pytest.raises(ValueError, match="schedule_steps"):
        learning_rate(OptimizerConfig(), jnp.int32(0))


def test_first_adamw_step_and_which_parameters_decay():
    cfg = OptimizerConfig(weight_decay=0.5, eps=1e-12)
    params = {"ffn": {"v": jnp.full((2, 2), 4.0)}, "norm": {"scale": jnp.full((2,), 4.0)}}
    gradient = {"ffn": {"v": jnp.full((2, 2), -3.0)}, "norm": {"scale": jnp.full((2,), 3.0)}}
    optimizer = make_optimizer(cfg)
    direction, _ = optimizer.update(gradient, optimizer.init(params), params)
    # The first bias-corrected Adam step is the sign; decay adds weight_decay * parameter.
    np.testing.assert_allclose(direction["ffn"]["v"], 1.0 - 0.5 * 4.0, rtol=1e-5)
    np.testing.assert_allclose(direction["norm"]["scale"], -1.0, rtol=1e-5)
