"""A file of the `tokenizers` library (tokenizer.json) as a tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tokenizers

from ..errors import DataError

# Names that mean "end of a document", the most specific first.
EOS_NAMES = ("<eos>", "</s>", "<|endoftext|>", "<|end_of_text|>", "[EOS]", "[SEP]")
BOS_NAMES = ("<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]", "[CLS]")
PAD_NAMES = ("<pad>", "<|padding|>", "<|pad|>", "[PAD]")

BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class JsonTokenizer:
    def __init__(self, content: bytes, name: str, fingerprint: str) -> None:
        """Raises DataError when `content` is no tokenizers file or names no known eos token."""
        try:
            model = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
            parts = json.loads(content)
        except Exception as error:  # the library raises bare Exception
            raise DataError(
                f"data.tokenizer={name!r} is not a tokenizers file; name an intact tokenizer.json"
            ) from error
        model.no_truncation()
        model.no_padding()
        model.encode_special_tokens = True  # "</s>" in a text is five characters, not an end
        self._model = model
        self.fingerprint = fingerprint
        vocab = model.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1  # ids may have holes
        eos = _first(EOS_NAMES, vocab)
        if eos is None:
            raise DataError(
                f"data.tokenizer={name!r} has no end-of-text token; "
                f"add a special token named one of {', '.join(EOS_NAMES)}"
            )
        bos, pad = _first(BOS_NAMES, vocab), _first(PAD_NAMES, vocab)
        self.eos_id: int = eos
        self.bos_id: int = eos if bos is None else bos
        self.pad_id: int = eos if pad is None else pad
        self.token_bytes = self._table(vocab, byte_level="ByteLevel" in _kinds(parts))

    def _table(self, vocab: dict[str, int], *, byte_level: bool) -> np.ndarray:
        table = np.zeros(self.vocab_size, np.int32)
        for piece, token in vocab.items():
            if byte_level:  # every character of a piece stands for one byte
                table[token] = len(piece)
            elif BYTE_PIECE.fullmatch(piece):
                table[token] = 1
            else:
                plain = piece.removeprefix("##").replace(SPACE, " ")
                table[token] = len(plain.encode("utf-8"))
        for token, added in self._model.get_added_tokens_decoder().items():
            table[token] = 0 if added.special else len(added.content.encode("utf-8"))
        table[[self.eos_id, self.bos_id, self.pad_id]] = 0
        return table

    def encode(self, text: str) -> np.ndarray:
        return np.asarray(self._model.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._model.decode([int(i) for i in ids], skip_special_tokens=True)


def _first(names: Iterable[str], vocab: dict[str, int]) -> int | None:
    return next((vocab[name] for name in names if name in vocab), None)


def _kinds(parts: dict[str, Any]) -> set[str]:
    """The types of the pre-tokenizers and decoders, sequences opened."""
    found: set[str] = set()
    pending = [parts.get("pre_tokenizer"), parts.get("decoder")]
    while pending:
        part = pending.pop()
        if part:
            found.add(part.get("type", ""))
            pending += part.get("pretokenizers", []) + part.get("decoders", [])
    return found
