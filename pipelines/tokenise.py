"""Documents to token ids, in training and held-out shares."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from .errors import DataError
from .holdout import divide, document_digest
from .sources import Document
from .tokenizer import Tokenizer

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)

#: A correction of the byte count of one token: its position in the share, and the difference.
FIX = np.dtype([("position", "<i8"), ("bytes", "<i8")])


def token_dtype(vocab_size: int) -> np.dtype:
    """Smallest type of a stored id: uint16 or uint32, little-endian."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass
class Share:
    """One unit's part of a stream: `doc eos doc eos ...`, without the stream's opening eos."""

    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    """UTF-8 bytes of the texts."""
    digest: str = ""
    """Over the documents in order, whatever the tokenizer."""
    fixes: np.ndarray = field(default_factory=lambda: np.zeros(0, FIX))


@dataclass
class Tokenised:
    """What became of one unit."""

    train: Share
    validation: Share
    documents: int
    """Documents read; one that is cut counts once here, but in both shares."""
    smallest: str | None
    """Hex digest of the document with the smallest digest."""

    def share(self, split: str) -> Share:
        return self.train if split == TRAIN else self.validation


def tokenise(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    rule: str,
    write: Callable[[str, np.ndarray], None],
) -> Tokenised:
    """Encode `documents` under the hold-out `rule`, one at a time.

    `write(split, ids)` receives the ids of a document with its closing eos, as `token_dtype`.
    A tokenizer may normalise text, add a leading space or meet unknown characters, so that the
    bytes of its tokens do not sum to the bytes of the text; the difference is noted as a fix of
    the document's first token. Sums over documents are then exact with any tokenizer.

    Raises DataError when a text encodes to the end-of-text id.
    """
    makers = {split: _Maker(tokenizer) for split in SPLITS}
    read, smallest = 0, None
    for document in documents:
        digest = document_digest(document.text)
        smallest = digest if smallest is None else min(smallest, digest)
        read += 1
        for split, text in zip(SPLITS, divide(document.text, digest, rule), strict=True):
            if text:
                write(split, makers[split].add(text, document.where))
    return Tokenised(
        makers[TRAIN].share(),
        makers[VALIDATION].share(),
        read,
        None if smallest is None else smallest.hex(),
    )


class _Maker:
    """Sums up one share."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._table = tokenizer.token_bytes
        self._tokens = self._documents = self._bytes = 0
        self._digest = hashlib.sha256()
        self._positions, self._differences = array("q"), array("q")

    def add(self, text: str, where: str) -> np.ndarray:
        ids = self._tokenizer.encode(text)
        eos = self._tokenizer.eos_id
        if (ids == eos).any():
            raise DataError(
                f"{where}: the text encodes to the end-of-text id {eos}; "
                "remove that token's name from the text or use another data.tokenizer"
            )
        size = len(text.encode("utf-8"))
        difference = size - int(self._table[ids].sum(dtype=np.int64))
        if difference:
            self._positions.append(self._tokens)
            self._differences.append(difference)
        self._digest.update(document_digest(text))
        self._documents += 1
        self._bytes += size
        self._tokens += len(ids) + 1
        out = np.empty(len(ids) + 1, self._dtype)
        out[:-1] = ids
        out[-1] = eos
        return out

    def share(self) -> Share:
        fixes = np.empty(len(self._positions), FIX)
        fixes["position"] = self._positions
        fixes["bytes"] = self._differences
        return Share(self._tokens, self._documents, self._bytes, self._digest.hexdigest(), fixes)
