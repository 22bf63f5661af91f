"""The checkpoint store alone: which steps stay, and that a save in flight keeps its values."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import spine

from spark_dist.checkpoints import CheckpointStore, check_agreement
from spark_dist.config import RunConfig
from spark_dist.errors import RunFailed
from spark_dist.run_directory import RunDirectory, best_step


def save(store: CheckpointStore, step: int, state: Any, loss: float | None = None) -> None:
    evaluation = None if loss is None else {"loss": loss, "bits_per_byte": 2 * loss}
    store.save(step, state, cursor={"next_sample": 0}, config=RunConfig(), evaluation=evaluation)


def test_the_best_step_stays_beside_the_newest(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    store = CheckpointStore(run, keep=2)
    for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, None, 2.0, None], start=1):
        save(store, step, {"x": jnp.full((3,), step)}, loss)
    store.wait()
    assert run.committed_steps() == [2, 6, 7]
    assert best_step(run) == 2
    save(store, 8, {"x": jnp.full((3,), 8)}, 0.5)
    store.close()
    assert run.committed_steps() == [7, 8]
    assert best_step(run) == 8
    assert spine.saved_arrays(tmp_path, 7)["['x']"].tolist() == [7, 7, 7]


def test_only_committed_steps_are_listed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    store = CheckpointStore(run, keep=2)
    save(store, 3, {"x": jnp.ones(3)})
    store.close()
    (run.checkpoints / "9.orbax-checkpoint-tmp").mkdir()
    (run.checkpoints / "12").mkdir()  # without the mark of a commit
    assert run.committed_steps() == [3]
    CheckpointStore(run, keep=2).close()
    assert not (run.checkpoints / "9.orbax-checkpoint-tmp").exists()


def test_donation_does_not_reach_a_save_in_flight(tmp_path: Path) -> None:
    """Large arrays are saved in the background while the next steps write over their memory."""
    step = jax.jit(
        lambda state: jax.tree.map(lambda x: (x * 1.5 + 1).astype(x.dtype), state),
        donate_argnums=0,
    )
    state = {"w": jnp.arange(4_000_000, dtype=jnp.float32), "n": jnp.arange(7)}
    state |= {f"small{i}": jnp.full((1000,), float(i)) for i in range(20)}
    run = RunDirectory(tmp_path)
    store = CheckpointStore(run, keep=10)
    expected = {}
    for number in range(1, 6):
        state = step(state)
        expected[number] = jax.tree.map(np.array, state)  # copies
        save(store, number, state)
        for _ in range(5):
            state = step(state)
    store.close()
    for number, tree in expected.items():
        found = spine.saved_arrays(tmp_path, number)
        for name, array in tree.items():
            assert found[f"['{name}']"].tobytes() == array.tobytes(), (number, name)


def test_a_save_that_cannot_be_written(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    store = CheckpointStore(run, keep=2)
    save(store, 1, {"x": jnp.ones(3)})
    store.wait()
    run.checkpoints.rename(tmp_path / "elsewhere")
    run.checkpoints.write_text("a file in the way")

    def save_and_wait() -> None:
        save(store, 2, {"x": jnp.ones(3)})
        store.wait()

    with pytest.raises(RunFailed, match=r"saving step 2 in .* failed: .*; committed steps are"):
        save_and_wait()
    stuck = [t.name for t in threading.enumerate() if "Signaling" in type(t).__name__]
    assert stuck == [], "a thread would keep the process for 20 minutes"
    assert RunDirectory(tmp_path).committed_steps() == []


def test_agreement_names_what_differs(config: RunConfig) -> None:
    class Adam:
        count = jnp.int32(3)

    state = {
        "step": jnp.int32(5),
        "opt_state": {"adamw": [Adam()], "skipped_steps": jnp.int32(2)},
    }
    check_agreement(5, state, {"next_sample": 40}, config)
    with pytest.raises(RunFailed, match=r"state.step is 5, not 6.*count \+ skipped.* is 5, not 6"):
        check_agreement(6, state, {"next_sample": 48}, config)
    with pytest.raises(RunFailed, match="next_sample is 41, not 40"):
        check_agreement(5, state, {"next_sample": 41}, config)


@pytest.fixture
def config() -> RunConfig:
    config = RunConfig()
    trainer = config.trainer.model_copy(update={"global_batch_size": 8})
    return config.model_copy(update={"trainer": trainer})
