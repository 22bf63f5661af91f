"""Files, or the embedded corpus, tokenised into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from . import holdout
from .embedded import HELD_OUT, shakespeare
from .errors import DataError
from .planning import check_split, corpus_digest, plan_files, rules_again
from .sources import Document, documents
from .stream import Part, Streams, TokenStream
from .tokenise import SPLITS, TRAIN, VALIDATION, Tokenised, token_dtype, tokenise
from .tokenizer import Tokenizer

#: Files above this are not tokenised in memory at each start.
IN_MEMORY_BYTES = 4 * 1024**3


def tokenise_files(
    corpus: Sequence[str], validation: Sequence[str], text_field: str, tokenizer: Tokenizer
) -> Streams:
    """The streams of `corpus` and `validation`, both as in `open_corpus`."""
    units, rules = plan_files(corpus, validation, text_field)
    size = sum(Path(path).stat().st_size for path in {unit.path for unit in units})
    if size > IN_MEMORY_BYTES:
        raise DataError(
            f"data.corpus={corpus[0]!r} holds {size} bytes, too many to tokenise at each start; "
            "run `spark-dist data prepare` once and name its folder"
        )
    batch = _InMemory(tokenizer)
    for number, (unit, rule) in enumerate(zip(units, rules, strict=True)):
        batch.make(number, documents(unit, text_field=text_field), rule)
    again = rules_again(units, rules, batch.results())
    for number, rule in again.items():
        batch.make(number, documents(units[number], text_field=text_field), rule)
    return batch.opened()


def tokenise_shakespeare(tokenizer: Tokenizer) -> Streams:
    """The streams of the embedded corpus, a play being a document."""
    batch = _InMemory(tokenizer)
    works = shakespeare()
    for number, (name, text) in enumerate(works.items()):
        rule = holdout.VALIDATION if name in HELD_OUT else holdout.TRAIN
        batch.make(number, [Document(text, name)], rule)
    return batch.opened()


class _InMemory:
    """Units tokenised into arrays."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: dict[int, tuple[Tokenised, dict[str, np.ndarray]]] = {}

    def make(self, number: int, texts: Iterable[Document], rule: str) -> None:
        pieces: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        made = tokenise(texts, self._tokenizer, rule, lambda split, ids: pieces[split].append(ids))
        empty = np.zeros(0, token_dtype(self._tokenizer.vocab_size))
        self._made[number] = (
            made,
            {split: np.concatenate([empty, *pieces[split]]) for split in SPLITS},
        )

    def results(self) -> list[Tokenised]:
        return [self._made[number][0] for number in sorted(self._made)]

    def opened(self) -> Streams:
        check_split(self.results())
        streams = {
            split: TokenStream(
                [self._part(number, split) for number in sorted(self._made)],
                self._tokenizer.eos_id,
            )
            for split in SPLITS
        }
        return Streams(streams[TRAIN], streams[VALIDATION], corpus_digest(self.results()))

    def _part(self, number: int, split: str) -> Part:
        made, arrays = self._made[number]
        share = made.share(split)
        return Part(share.tokens, share.documents, share.bytes, _give(arrays[split], share.fixes))


def _give(ids: np.ndarray, fixes: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    return lambda: (ids, fixes)
