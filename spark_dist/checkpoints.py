"""Checkpoints: orbax, asynchronous, one folder a step, restored onto any layout.

A step holds `state` {params, opt_state, ffn_offset, step} and `json` {cursor, config,
format_version, evaluation}. Only what orbax has committed counts.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from .config import RunConfig
from .errors import RunFailed, disk_advice
from .failed_saves import quieten
from .run_directory import FORMAT_VERSION, RunDirectory

State = dict[str, Any]

UNCOMMITTED = "*.orbax-checkpoint-tmp"
REMOVALS = 40
"""Attempts to remove what a failed save has left."""


class CheckpointStore:
    """Writes and reads the checkpoints of a run. Every process of the run makes one.

    keep: newest steps kept, beside the one with the lowest held-out loss.
    """

    def __init__(self, run: RunDirectory, keep: int):
        self.run = run
        self._begun: int | None = None
        self._broken = False
        quieten()
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        self._remove_uncommitted()
        best = policies.BestN(
            get_metric_fn=lambda m: m["loss"],
            reverse=True,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        self._manager = ocp.CheckpointManager(
            run.checkpoints,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
                enable_async_checkpointing=True,
                # Else threads of a save whose folder cannot be made wait for it for 20 minutes.
                async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            ),
            item_names=("state", "json"),
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "json": ocp.JsonCheckpointHandler(),
            },
        )

    def save(
        self,
        step: int,
        state: State,
        *,
        cursor: dict[str, Any],
        config: RunConfig,
        evaluation: dict[str, float] | None = None,
    ) -> None:
        """Starts a save; returns when the arrays are copied off the devices.

        The previous one is committed first. Raises RunFailed when one of the two failed.
        """
        self.wait()
        self._begun = step
        facts = {
            "cursor": cursor,
            "config": config.model_dump(mode="json"),
            "format_version": FORMAT_VERSION,
            "evaluation": evaluation,
        }
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state), json=ocp.args.JsonSave(facts)
                ),
                metrics=evaluation,
                force=True,
            )
        except Exception as error:
            raise self._failed(error) from error

    def wait(self) -> None:
        """Returns when the last save is committed. Raises RunFailed when it failed."""
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._failed(error) from error

    def restore(self, step: int, target: State) -> State:
        """The state of a committed step, laid out as `target` (ShapeDtypeStructs with sharding).

        Raises RunFailed when it cannot be read whole.
        """
        args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
        try:
            return self._manager.restore(step, args=args)["state"]
        except Exception as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            folder = self.run.checkpoints / str(step)
            raise RunFailed(
                f"checkpoint {step} cannot be read ({first[:200]}); "
                f"move {folder} away to go on from an earlier step"
            ) from error

    def close(self) -> None:
        """Ends the background threads."""
        self._manager.close()
        if self._broken:  # writes that were under way may have come back since
            self._remove_uncommitted()

    def _remove_uncommitted(self) -> None:
        """Writes of a failed save that are still under way put files back for a moment."""
        if jax.process_index() != 0:
            return
        for _ in range(REMOVALS):
            folders = list(self.run.checkpoints.glob(UNCOMMITTED))
            if not folders:
                return
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)

    def _failed(self, error: Exception) -> RunFailed:
        """The error to raise for a failed save; what it left half-written is removed."""
        self._broken = True
        self._remove_uncommitted()
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else getattr(error, "errno", None)
        reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
        return RunFailed(
            f"saving step {self._begun} in {self.run.checkpoints} failed: "
            f"{reason.splitlines()[0][:200]}; committed steps are untouched: {disk_advice(number)}"
        )


def restore_weights(run: RunDirectory, step: int, target: State) -> State:
    """params and ffn_offset of a committed step alone, laid out as `target`.

    target: {"params": ..., "ffn_offset": ...} of ShapeDtypeStructs; leaves without a sharding
    come to the default device. Nothing else of the checkpoint is read.
    """
    local = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    target = jax.tree.map(
        lambda s: (
            s if s.sharding is not None else jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=local)
        ),
        target,
    )
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(
            run.checkpoints / str(step) / "state",
            args=ocp.args.PyTreeRestore(
                item=target, restore_args=restore_args, partial_restore=True
            ),
        )


def check_agreement(step: int, state: State, cursor: dict[str, Any], config: RunConfig) -> None:
    """Raises RunFailed unless step, optimizer count and cursor of a restored state agree."""
    saved = int(np.asarray(jax.device_get(state["step"])))
    count = int(np.asarray(jax.device_get(state["opt_state"]["adamw"][0].count)))
    skipped = int(np.asarray(jax.device_get(state["opt_state"]["skipped_steps"])))
    samples = step * config.trainer.global_batch_size
    facts = {
        "state.step": (saved, step),
        "optimizer count + skipped steps": (count + skipped, step),
        "cursor.next_sample": (cursor.get("next_sample"), samples),
    }
    wrong = [
        f"{name} is {have}, not {want}" for name, (have, want) in facts.items() if have != want
    ]
    if wrong:
        raise RunFailed(f"checkpoint {step} contradicts itself: {'; '.join(wrong)}")
