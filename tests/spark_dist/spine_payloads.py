"""What tests run on the hosts of a cluster: training that records its input, and parts of it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from spark_dist.checkpoints import CheckpointStore
from spark_dist.cluster import WorkerInfo
from spark_dist.config import RunConfig
from spark_dist.corpus import corpus_of
from spark_dist.errors import RunFailed
from spark_dist.payload import TrainRequest, train
from spark_dist.pipelines import BatchIterator, batches
from spark_dist.run_directory import RunDirectory
from spark_dist.sharding import batch_sharding, replicated
from spark_dist.training import abstract_state, jit_train_step
from spark_dist.training.feed import place
from spark_dist.training.run import Attempt
from spark_dist.training.startup import build_mesh, check_world, connect

STARTUP = "spark_dist.training.startup"


class Recording(Attempt):
    """Training that keeps a digest of every global batch as the step receives it."""

    def loop(self, state: Any, step: int, feed: BatchIterator) -> tuple[Any, int]:
        compiled = self.train_step
        whole = jax.jit(lambda batch: batch, out_shardings=replicated(self.mesh))
        self.digests: dict[str, str] = {}

        def recorded(state: Any, batch: Any) -> Any:
            with jax.transfer_guard("allow"):
                digest = hashlib.sha256()
                for name, array in sorted(whole(batch).items()):
                    digest.update(name.encode() + np.asarray(array.addressable_data(0)).tobytes())
            self.digests[str(step + len(self.digests) + 1)] = digest.hexdigest()
            return compiled(state, batch)

        self.train_step = recorded
        return super().loop(state, step, feed)

    def finish(self, state: Any, step: int, feed: BatchIterator) -> dict[str, Any]:
        return super().finish(state, step, feed) | {"digests": self.digests}


def recorded(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """`train` whose result also holds `digests`, by step."""
    return Recording(request, worker).run()


def single_steps(job: dict[str, Any], worker: WorkerInfo) -> dict[str, Any]:
    """One step from each of the checkpoints `steps` of the run `source`, under `config`.

    The parameter updates are compared with those in the file `reference`; where there is none it
    is written. Returns `loss` and `relative` (L2 distance of the updates), one a checkpoint.
    """
    config = RunConfig.model_validate(job["config"])
    connect(config, worker)
    check_world(config, worker)
    mesh = build_mesh(config, worker)
    corpus, source = corpus_of(config), RunDirectory(job["source"])
    store = CheckpointStore(source, keep=1000)
    step_once, target = jit_train_step(config, mesh), abstract_state(config, mesh)
    whole = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))

    def flat(params: Any) -> np.ndarray:
        leaves = jax.tree.leaves(whole(params))
        return np.concatenate([np.ravel(leaf.addressable_data(0)) for leaf in leaves])

    losses, updates = [], []
    for step in job["steps"]:
        state = store.restore(step, target)
        before = flat(state["params"])
        with batches(
            corpus,
            global_batch_size=config.trainer.global_batch_size,
            host=worker.rank,
            num_hosts=worker.world_size,
            cursor=source.checkpoint_json(step)["cursor"],
            read_threads=0,
        ) as feed:
            state, metrics = step_once(state, place(next(feed), batch_sharding(mesh)))
        losses.append(float(metrics["loss"]))
        updates.append(flat(state["params"]) - before)
    store.close()
    reference = Path(job["reference"])
    if not reference.exists():
        np.save(reference, np.stack(updates))
    known = np.load(reference, mmap_mode="r")
    relative = [
        float(np.linalg.norm(update - other) / np.linalg.norm(other))
        for update, other in zip(updates, known, strict=True)
    ]
    sizes = {name: int(size) for name, size in mesh.shape.items()}
    return {"loss": losses, "relative": relative, "mesh": sizes, "hosts": jax.process_count()}


def differing(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """What the assertions at start say on each rank when rank 1 has something else."""
    config = request.config
    connect(config, worker)
    check_world(config, worker)
    found = {}
    for name, value in {
        f"{STARTUP}.config_digest": "00" * 32,
        f"{STARTUP}.code_digest": "11" * 32,
        f"{STARTUP}.backend": "another",
    }.items():
        other = mock.patch(name, return_value=value)
        with other if worker.rank == 1 else contextlib.nullcontext():
            try:
                check_world(config, worker)
            except RunFailed as error:
                found[name.rpartition(".")[2]] = str(error)
    try:
        check_world(config, dataclasses.replace(worker, local_devices=3))
    except RunFailed as error:
        found["devices"] = str(error)
    worker.post({"kind": "found", "rank": worker.rank, "found": found})
    return found


def train_with_another_backend(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """Training of which rank 1 computes with another kernel backend."""
    if worker.rank == 1:
        mock.patch(f"{STARTUP}.backend", return_value="another").start()
    return train(request, worker)
