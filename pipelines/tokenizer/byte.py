"""The default tokenizer: one id a UTF-8 byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PAD, BOS, EOS = 256, 257, 258


class ByteTokenizer:
    """Ids 0..255 are the bytes; then pad 256, bos 257, eos 258. Any text round-trips."""

    vocab_size = 259
    pad_id = PAD
    bos_id = BOS
    eos_id = EOS
    fingerprint = "byte"

    def __init__(self) -> None:
        self.token_bytes = np.array([1] * 256 + [0] * 3, np.int32)

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return bytes(i for i in map(int, ids) if i < 256).decode("utf-8", errors="replace")
