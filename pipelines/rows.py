"""Rows of a token stream: fixed windows with targets, segments, positions and byte counts.

Row i of length L: tokens are stream[iL : (i+1)L], targets the same one further. An eos opens the
segment of the document that follows it. B rows, L tokens a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .stream import TokenStream
from .tokenizer import Tokenizer

KEYS = ("tokens", "targets", "segment_ids", "positions", "target_bytes")


class Rows:
    """Rows of `sequence_length` tokens of one stream, by number."""

    def __init__(self, stream: TokenStream, tokenizer: Tokenizer, sequence_length: int) -> None:
        self._stream = stream
        self._length = sequence_length
        self._eos, self._pad = tokenizer.eos_id, tokenizer.pad_id
        self._table = tokenizer.token_bytes
        self.full = (stream.num_tokens - 1) // sequence_length
        """Rows that need no padding."""
        self.all = -(-(stream.num_tokens - 1) // sequence_length)
        """Rows that hold every token, the last one padded."""

    def read(self, numbers: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The rows `numbers`, each int32[B, L].

        tokens, targets; segment_ids: from 1, one more at each eos in tokens, 0 for padding;
        positions: from 0 at each eos and at the row's start; target_bytes: UTF-8 bytes that the
        target stands for (eos 0). Tokens and targets of padding are the pad id, the rest 0. A
        number at or behind `all` gives a row of padding.
        """
        numbers = np.asarray(numbers, np.int64)
        shape = (len(numbers), self._length)
        tokens_BL = np.full(shape, self._pad, np.int32)
        targets_BL = np.full(shape, self._pad, np.int32)
        fixes_BL = np.zeros(shape, np.int32)
        filled_B = np.zeros(len(numbers), np.int64)
        for b, number in enumerate(numbers):
            start = int(number) * self._length
            stop = min(start + self._length, self._stream.num_tokens - 1)
            if start >= stop:
                continue
            window = self._stream.read(start, stop + 1)
            filled_B[b] = n = stop - start
            tokens_BL[b, :n] = window[:-1]
            targets_BL[b, :n] = window[1:]
            at, difference = self._stream.byte_fixes(start + 1, stop + 1)
            fixes_BL[b, at] = difference
        place_L = np.arange(self._length, dtype=np.int32)
        real_BL = place_L < filled_B[:, None]
        opens_BL = tokens_BL == self._eos
        opens_BL[:, 0] = True
        segments_BL = np.cumsum(opens_BL, axis=1, dtype=np.int32)
        begins_BL = np.maximum.accumulate(np.where(opens_BL, place_L, 0), axis=1)
        bytes_BL = self._table[targets_BL] + fixes_BL
        return {
            "tokens": tokens_BL,
            "targets": targets_BL,
            "segment_ids": np.where(real_BL, segments_BL, 0).astype(np.int32),
            "positions": np.where(real_BL, place_L - begins_BL, 0).astype(np.int32),
            "target_bytes": np.where(real_BL, bytes_BL, 0).astype(np.int32),
        }
