"""One long sequence of tokens: `eos doc eos doc ... eos`, in memory or in mapped files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Part:
    """The share of one unit, with the means to get at it when it is first read."""

    tokens: int
    documents: int
    bytes: int
    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    """Gives the ids, uint16 or uint32 [tokens], and the byte fixes, `tokenise.FIX` [m]."""


class TokenStream:
    """Random access to the tokens of all documents, across parts. Safe to read from threads."""

    def __init__(self, parts: Sequence[Part], eos_id: int) -> None:
        self._parts = [part for part in parts if part.tokens]
        self._loaded: list[tuple[np.ndarray, np.ndarray] | None] = [None] * len(self._parts)
        self._eos_id = eos_id
        # Position 0 is the eos that opens the first document; part p begins at _starts[p].
        sizes = np.array([0, *(part.tokens for part in self._parts)], np.int64)
        self._starts = 1 + np.cumsum(sizes)
        self.num_tokens = int(self._starts[-1])
        """Tokens, the opening eos included."""
        self.num_documents = sum(part.documents for part in self._parts)
        self.num_bytes = sum(part.bytes for part in self._parts)
        """UTF-8 bytes of the documents."""

    def read(self, start: int, stop: int) -> np.ndarray:
        """int32[stop - start]: the tokens at positions [start, stop), within the stream."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"[{start}, {stop}) is outside of {self.num_tokens} tokens")
        out = np.empty(stop - start, np.int32)
        if start == 0 < stop:
            out[0] = self._eos_id
        for part, low, high in self._overlap(start, stop):
            base = int(self._starts[part])
            out[low - start : high - start] = self._load(part)[0][low - base : high - base]
        return out

    def byte_fixes(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(offsets from `start`, differences), int64[m] each, of the tokens at [start, stop).

        What has to be added to the bytes of these tokens so that each document sums to its own.
        """
        offsets, differences = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, low, high in self._overlap(start, stop):
            base = int(self._starts[part])
            fixes = self._load(part)[1]
            if len(fixes):
                first, last = np.searchsorted(fixes["position"], [low - base, high - base])
                offsets.append(fixes["position"][first:last] + (base - start))
                differences.append(fixes["bytes"][first:last])
        return np.concatenate(offsets), np.concatenate(differences)

    def _overlap(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(part, first position, end position) for each part that meets [start, stop)."""
        at = max(start, 1)
        part = int(np.searchsorted(self._starts, at, side="right")) - 1
        while at < stop:
            upto = min(stop, int(self._starts[part + 1]))
            yield part, at, upto
            at, part = upto, part + 1

    def _load(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        found = self._loaded[number]
        if found is None:  # two threads may both load; either result serves
            found = self._loaded[number] = self._parts[number].load()
        return found


@dataclass(frozen=True)
class Streams:
    """A corpus without the settings of a run."""

    train: TokenStream
    validation: TokenStream
    digest: str
    """32 hex digits over all documents, their order and their split; not the tokenizer."""
