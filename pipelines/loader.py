"""Batches for training and for held-out evaluation.

Training: sample j of the endless order is row `shuffle(seed, epoch)[j mod rows]`; global batch b
holds samples [b*B, (b+1)*B), host h of H the h-th contiguous B/H of them. So the sequence of
global batches does not depend on the hosts, and the place in it is one number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from .corpora import Corpus
from .cursor import check_fingerprint
from .errors import DataError

Batch = dict[str, np.ndarray]

#: Samples after which an iterator would end; grain's own "no end" overflows in batches of one.
ENDLESS = 2**48


class BatchIterator(Iterator[Batch]):
    """Endless training batches of one host. Close it, or use it in a `with` block."""

    def __init__(
        self,
        corpus: Corpus,
        *,
        global_batch_size: int,
        host: int,
        num_hosts: int,
        first_sample: int,
        read_threads: int,
        prefetch_batches: int,
    ) -> None:
        import grain  # here, because it imports JAX

        self._corpus = corpus
        self._batch = global_batch_size
        self._next = first_sample
        rows = corpus.train_rows
        mine = slice(
            host * global_batch_size // num_hosts, (host + 1) * global_batch_size // num_hosts
        )
        order = grain.MapDataset.range(rows.full).shuffle(seed=_shuffle_seed(corpus.seed))
        samples = order.repeat(None)[first_sample : first_sample + ENDLESS]
        numbers = samples.batch(global_batch_size)
        batches = numbers.map(lambda numbers_B: rows.read(numbers_B[mine]))
        options = grain.ReadOptions(
            num_threads=read_threads,
            prefetch_buffer_size=prefetch_batches if read_threads else 0,
        )
        self._iterator = iter(batches.to_iter_dataset(options))

    def __next__(self) -> Batch:
        """int32[B/H, L] under each of `rows.KEYS`."""
        batch = next(self._iterator)
        self._next += self._batch
        return batch

    def cursor(self) -> dict[str, Any]:
        """The place of the next batch, as plain JSON; the same on every host."""
        return {"next_sample": self._next, "fingerprint": dict(self._corpus.fingerprint)}

    def close(self) -> None:
        """End the reading threads; batches read ahead are dropped. May be called twice."""
        self._iterator.close()

    def __enter__(self) -> BatchIterator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def batches(
    corpus: Corpus,
    *,
    global_batch_size: int,
    host: int = 0,
    num_hosts: int = 1,
    cursor: Any = None,
    read_threads: int = 1,
    prefetch_batches: int = 4,
) -> BatchIterator:
    """Training batches of host `host`, from `cursor` on (None: from the start), without end.

    global_batch_size: rows over all hosts. read_threads: threads that read ahead; 0 reads in the
    calling thread. prefetch_batches: batches read ahead.

    Raises DataError when the sizes do not fit, or `cursor` belongs to other data.
    """
    _check_sizes(global_batch_size, host, num_hosts)
    if read_threads < 0:
        raise DataError(f"data.read_threads={read_threads} must not be negative; use 0 or 1")
    if prefetch_batches < 1:
        raise DataError(f"data.prefetch_batches={prefetch_batches} must be positive; use 4")
    return BatchIterator(
        corpus,
        global_batch_size=global_batch_size,
        host=host,
        num_hosts=num_hosts,
        first_sample=0 if cursor is None else check_fingerprint(cursor, corpus.fingerprint),
        read_threads=read_threads,
        prefetch_batches=prefetch_batches,
    )


def validation_batches(
    corpus: Corpus,
    *,
    global_batch_size: int,
    host: int = 0,
    num_hosts: int = 1,
    max_batches: int = 0,
) -> Iterator[Batch]:
    """Held-out batches of host `host`, in order of the text: every held-out byte once.

    The last row and the last batch are filled with padding, so that all hosts see the same
    number of batches of the same shape. max_batches: stop after so many; 0: all.

    Raises DataError when the sizes do not fit.
    """
    _check_sizes(global_batch_size, host, num_hosts)
    if max_batches < 0:
        raise DataError(f"max_batches={max_batches} must not be negative; use 0 for all")
    return _validation(corpus, global_batch_size, host, num_hosts, max_batches)


def _validation(
    corpus: Corpus, batch: int, host: int, num_hosts: int, max_batches: int
) -> Iterator[Batch]:
    rows = corpus.validation_rows
    count = -(-rows.all // batch)
    share = batch // num_hosts
    for number in range(min(count, max_batches) if max_batches else count):
        first = number * batch + host * share
        yield rows.read(np.arange(first, first + share))


def _check_sizes(global_batch_size: int, host: int, num_hosts: int) -> None:
    if num_hosts < 1 or not 0 <= host < num_hosts:
        raise DataError(f"host={host} is not one of num_hosts={num_hosts}; count from 0")
    if global_batch_size < 1 or global_batch_size % num_hosts:
        raise DataError(
            f"trainer.global_batch_size={global_batch_size} must be a positive multiple of "
            f"hosts={num_hosts}; use {max(num_hosts, global_batch_size // num_hosts * num_hosts)}"
        )


def _shuffle_seed(seed: int) -> int:
    """32 bits that grain adds the epoch to; hashed, so that seed 1 is not seed 0 an epoch later."""
    return int.from_bytes(hashlib.sha256(str(seed).encode("ascii")).digest()[:4], "little")
