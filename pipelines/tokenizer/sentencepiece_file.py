"""A SentencePiece model file as a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import sentencepiece

from ..errors import DataError

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in pieces


class SentencePieceTokenizer:
    def __init__(self, content: bytes, name: str, fingerprint: str) -> None:
        """Raises DataError when `content` is no SentencePiece model or defines no eos."""
        try:
            model = sentencepiece.SentencePieceProcessor(model_proto=content)
            self.vocab_size = int(model.vocab_size())
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"data.tokenizer={name!r} is not a SentencePiece model; name an intact file"
            ) from error
        if model.eos_id() < 0:
            raise DataError(
                f"data.tokenizer={name!r} has no eos token; train the model with --eos_id"
            )
        self._model = model
        self.fingerprint = fingerprint
        self.eos_id = int(model.eos_id())
        self.pad_id = int(model.pad_id()) if model.pad_id() >= 0 else self.eos_id
        self.bos_id = int(model.bos_id()) if model.bos_id() >= 0 else self.eos_id
        self.token_bytes = np.array([self._bytes(i) for i in range(self.vocab_size)], np.int32)

    def _bytes(self, token: int) -> int:
        model = self._model
        if model.is_control(token) or model.is_unknown(token) or model.is_unused(token):
            return 0
        if model.is_byte(token):
            return 1
        return len(model.id_to_piece(token).replace(SPACE, " ").encode("utf-8"))

    def encode(self, text: str) -> np.ndarray:
        return np.asarray(self._model.encode(text, out_type=int), np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._model.decode([int(i) for i in ids])
