"""One training attempt on one host: start-up, state, loop, end. Read it top to bottom.

Every host runs this same program; what they must agree on (when to stop, to evaluate, to save)
follows from step numbers and from metrics that are the same everywhere.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

from spark_dist.cluster import Stopped, WorkerInfo
from spark_dist.kernels import backend
from spark_dist.pipelines import BatchIterator, Corpus, batches, check_cursor, validation_batches
from spark_dist.sharding import batch_sharding

from ..checkpoints import CheckpointStore, check_agreement, restore_weights
from ..corpus import corpus_of
from ..errors import RunFailed
from ..model import active_parameters, count_parameters
from ..payload import TrainRequest
from ..run_directory import RunDirectory, check_weights, locate
from ..trackers import MultiTracker, make_trackers
from .evaluation import Evaluation, run_evaluation
from .feed import place
from .profiler import Profiler
from .readings import Readings
from .sample import sample_text
from .startup import build_mesh, check_world, connect
from .state import State, abstract_state, init_state
from .step import batch_shapes, jit_eval_step, jit_train_step


def run(request: TrainRequest, worker: WorkerInfo) -> dict[str, Any]:
    """Trains until the last step, a stop request or a failure; returns the result.

    Raises UserError for what does not fit, RunFailed for a run that cannot go on,
    `cluster.Stopped` after a stop request that ended in a committed checkpoint.
    """
    return Attempt(request, worker).run()


class Attempt:
    """The parts of an attempt, in the order in which they come to be."""

    def __init__(self, request: TrainRequest, worker: WorkerInfo):
        self.request, self.worker = request, worker
        self.config = request.config
        self.directory = RunDirectory(worker.run_dir)
        self.first = worker.rank == 0

    def run(self) -> dict[str, Any]:
        with self.phase("startup"):
            connect(self.config, self.worker)
            check_world(self.config, self.worker)
            self.mesh = build_mesh(self.config, self.worker)
            self.rows = batch_sharding(self.mesh)
        with self.phase("data"):
            self.corpus = corpus_of(self.config)
        self.store = CheckpointStore(self.directory, self.config.trainer.keep_checkpoints)
        with self.phase("restore" if self.request.resume else "init"):
            state, cursor, step = self.first_state()
        self.header(step)
        with self.phase("compile"):
            self.train_step = (
                jit_train_step(self.config, self.mesh)
                .lower(state, batch_shapes(self.config, self.mesh))
                .compile()
            )
            self.eval_step = jit_eval_step(self.config, self.mesh)
        self.trackers = self.make_trackers(step)
        data = self.config.data
        feed = batches(
            self.corpus,
            global_batch_size=self.config.trainer.global_batch_size,
            host=self.worker.rank,
            num_hosts=self.worker.world_size,
            cursor=cursor,
            read_threads=data.read_threads,
            prefetch_batches=data.prefetch_batches,
        )
        try:
            state, last = self.loop(state, step, feed)
            return self.finish(state, last, feed)
        finally:
            feed.close()
            self.trackers.close()
            self.store.close()

    # -- state -------------------------------------------------------------------------------

    def first_state(self) -> tuple[State, dict[str, Any] | None, int]:
        """State, data cursor and step to begin with: fresh, resumed, or from another's weights."""
        target = abstract_state(self.config, self.mesh)
        if self.request.resume:
            step = self.directory.committed_steps()[-1]
            facts = self.directory.checkpoint_json(step)
            check_cursor(facts["cursor"], self.corpus)
            state = self.store.restore(step, target)
            check_agreement(step, state, facts["cursor"], self.config)
            return state, facts["cursor"], step
        state = init_state(self.config, self.mesh)
        if self.config.init_from is not None:
            check_weights(self.config.init_from, self.config.model)
            source, step = locate(self.config.init_from)
            wanted = {name: target[name] for name in ("params", "ffn_offset")}
            state |= restore_weights(source, step, wanted)
        return state, None, 0

    # -- the loop ----------------------------------------------------------------------------

    def loop(self, state: State, step: int, feed: BatchIterator) -> tuple[State, int]:
        """From `step` to the last one. Metrics are read one step late, so devices never wait."""
        trainer = self.config.trainer
        readings = Readings(self.config, self.mesh, self.worker.post)
        profiler = Profiler(self.config.profile if self.first else None, self.directory.root)
        self.best: float | None = self.best_so_far()
        self.saved = step if self.request.resume else -1
        pending: tuple[int, Any] | None = None
        with jax.transfer_guard("disallow"):
            while step < trainer.steps:
                profiler.before(step + 1)
                with readings.waiting():
                    rows = next(feed)
                batch = place(rows, self.rows, stop=self.worker.should_stop())
                state, metrics = self.train_step(state, batch)
                step += 1
                stop = pending is not None and self.read(readings, *pending)
                pending = (step, metrics)
                # The last step is evaluated over all held-out rows, in finish().
                due_eval = _due(trainer.eval_every, step) and step < trainer.steps
                due_save = _due(trainer.checkpoint_every, step) and step < trainer.steps
                if stop or due_eval or due_save or step == trainer.steps:
                    stop |= self.read(readings, *pending)
                    pending = None
                    with readings.paused():
                        profiler.after(step, state)
                        evaluation = self.evaluate(state, step) if due_eval else None
                        stop &= step < trainer.steps  # at the last one the run is done
                        if self.is_best(evaluation) or due_save or stop:
                            self.save(state, step, feed, evaluation)
                    if stop:
                        self.store.wait()
                        raise Stopped(step)
                else:
                    profiler.after(step, state)
        return state, step

    def read(self, readings: Readings, step: int, metrics: Any) -> bool:
        """Takes in the metrics of a step; whether any host asked to stop by then."""
        seen = jax.device_get(
            {k: metrics[k] for k in ("stop", "consecutive_skips", "skipped_steps")}
        )
        readings.count(step)
        if _due(self.config.trainer.log_every, step) or step == self.config.trainer.steps:
            self.trackers.log(step, readings.line(step, jax.device_get(metrics)))
        limit = self.config.trainer.max_consecutive_skips
        if seen["consecutive_skips"] >= limit:
            raise RunFailed(
                f"step {step}: loss or gradient not finite (or a spike) for {limit} steps in a "
                "row; parameters are those of the last good step: lower "
                "optimizer.learning_rate or look at the data, then start again"
            )
        return bool(seen["stop"])

    def is_best(self, evaluation: Evaluation | None) -> bool:
        """Whether this is the lowest held-out loss so far; remembers it."""
        if evaluation is None or not math.isfinite(evaluation.loss):
            return False
        if self.best is not None and evaluation.loss >= self.best:
            return False
        self.best = evaluation.loss
        return True

    def best_so_far(self) -> float | None:
        """Lowest held-out loss among the committed steps of a resumed run."""
        if not self.request.resume:
            return None
        losses = [
            found["loss"]
            for step in self.directory.committed_steps()
            if (found := self.directory.checkpoint_json(step).get("evaluation"))
        ]
        return min(losses, default=None)

    def evaluate(self, state: State, step: int, *, whole: bool = False) -> Evaluation:
        """Held-out loss at this step; `whole` reads all held-out rows."""
        trainer = self.config.trainer
        with self.phase("evaluate", step), jax.transfer_guard("allow"):
            found = run_evaluation(
                self.config.model,
                self.eval_step,
                state["params"],
                state["ffn_offset"],
                validation_batches(
                    self.corpus,
                    global_batch_size=trainer.global_batch_size,
                    host=self.worker.rank,
                    num_hosts=self.worker.world_size,
                    max_batches=0 if whole else trainer.eval_batches,
                ),
                self.rows,
            )
        self.trackers.log_validation(step, found.loss, found.bits_per_byte)
        self.worker.post(
            {
                "kind": "evaluation",
                "step": step,
                "loss": found.loss,
                "bits_per_byte": found.bits_per_byte,
            }
        )
        return found

    def save(
        self, state: State, step: int, feed: BatchIterator, evaluation: Evaluation | None
    ) -> None:
        """Starts a checkpoint; it is committed in the background."""
        with self.phase("save", step), jax.transfer_guard("allow"):
            self.store.save(
                step,
                state,
                cursor=feed.cursor(),
                config=self.config,
                evaluation={"loss": evaluation.loss, "bits_per_byte": evaluation.bits_per_byte}
                if evaluation is not None and math.isfinite(evaluation.loss)
                else None,
            )
        self.saved = step

    # -- beginning and end -------------------------------------------------------------------

    def make_trackers(self, step: int) -> MultiTracker:
        """Rank 0's trackers; the other ranks have none."""
        if not self.first:
            return MultiTracker({})
        return make_trackers(
            self.config.logging.trackers,
            self.directory.root,
            self.config.model_dump(mode="json"),
            project=self.config.logging.project,
            resume_step=step,  # what an attempt wrote that left no checkpoint goes
            warn=lambda text: self.worker.post({"kind": "warning", "message": text}),
        )

    def header(self, step: int) -> None:
        """What a person sees first."""
        config, device = self.config, self.mesh.devices.flat[0]
        tokens = config.trainer.global_batch_size * config.data.sequence_length
        info = {
            "kind": "header",
            "preset": config.preset,
            "devices": int(self.mesh.devices.size),
            "platform": device.platform,
            "device_kind": device.device_kind,
            "processes": self.worker.world_size,
            "mesh": {name: int(size) for name, size in self.mesh.shape.items()},
            "backend": backend(),
            "parameters": count_parameters(config.model),
            "active_parameters": active_parameters(config.model),
            "tokens_planned": tokens * config.trainer.steps,
            "corpus": _describe(self.corpus),
            "run_dir": str(self.directory.root),
            "steps": config.trainer.steps,
            "step": step,
        }
        self.worker.post(info)
        if self.first:  # for the report
            detail = json.dumps(info)
            self.worker.post({"kind": "event", "event": "header", "step": step, "detail": detail})

    def finish(self, state: State, step: int, feed: BatchIterator) -> dict[str, Any]:
        """Held-out result over all rows, the last checkpoint, a sample."""
        found = self.evaluate(state, step, whole=True)
        if self.saved != step:
            self.save(state, step, feed, found)
        with self.phase("commit", step):
            self.store.wait()
        with self.phase("sample", step):
            text = sample_text(self.config, self.mesh, state, self.corpus.tokenizer)
        if self.first and text:
            self.worker.post({"kind": "event", "event": "sample", "step": step, "detail": text})
        return {
            "run_dir": str(self.directory.root),
            "step": step,
            "loss": found.loss,
            "bits_per_byte": found.bits_per_byte,
            "ffn_active_fraction": found.ffn_active_fraction,
            "attention_active_mean": [_number(mean) for mean in found.attention_active_mean],
            "skipped_steps": int(jax.device_get(state["opt_state"]["skipped_steps"])),
            "sample": text,
            "exit": 0,
        }

    @contextmanager
    def phase(self, name: str, step: int | None = None) -> Iterator[None]:
        """Says where this host is, and afterwards how long it took."""
        self.worker.post({"kind": "phase", "phase": name, "step": step})
        begin = time.monotonic()
        yield
        if self.first:
            seconds = time.monotonic() - begin
            self.worker.post({"kind": "event", "event": name, "step": step, "seconds": seconds})


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0


def _describe(corpus: Corpus) -> str:
    train, held_out = corpus.train, corpus.validation
    return (
        f"{train.num_tokens:,} tokens in {train.num_documents:,} documents, "
        f"{held_out.num_tokens:,} tokens held out"
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
