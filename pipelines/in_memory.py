"""Files, or the embedded corpus, tokenised into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from . import holdout
from .embedded import HELD_OUT, shakespeare
from .errors import DataError
from .planning import check_split, corpus_digest, plan_files, rules_again
from .sources import Document, Unit, documents
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
    _check_size(units, corpus)
    batch = _InMemory(tokenizer)
    for unit, rule in zip(units, rules, strict=True):
        batch.add(documents(unit, text_field=text_field), rule)
    for number, rule in rules_again(units, rules, batch.results()).items():
        batch.replace(number, documents(units[number], text_field=text_field), rule)
    return batch.opened()


def tokenise_shakespeare(
    validation: Sequence[str], text_field: str, tokenizer: Tokenizer
) -> Streams:
    """The streams of the embedded corpus, a play being a document.

    The held-out plays are not trained on even where `validation` files stand in for them.
    """
    units, rules = plan_files((), validation, text_field)
    _check_size(units, validation)
    batch = _InMemory(tokenizer)
    works = shakespeare()
    for name, text in works.items():
        if name not in HELD_OUT:
            batch.add([Document(text, name)], holdout.TRAIN)
    for unit, rule in zip(units, rules, strict=True):
        batch.add(documents(unit, text_field=text_field), rule)
    rules_again(units, rules, batch.results()[len(works) - len(HELD_OUT) :])  # none is empty
    if not units:
        for name in HELD_OUT:
            batch.add([Document(works[name], name)], holdout.VALIDATION)
    return batch.opened()


def _check_size(units: Sequence[Unit], names: Sequence[str]) -> None:
    size = sum(Path(path).stat().st_size for path in {unit.path for unit in units})
    if size > IN_MEMORY_BYTES:
        raise DataError(
            f"data.corpus={names[0]!r} holds {size} bytes, too many to tokenise at each start; "
            "run `spark-dist data prepare` once and name its folder"
        )


class _InMemory:
    """Units tokenised into arrays."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._made: list[tuple[Tokenised, dict[str, np.ndarray]]] = []

    def add(self, texts: Iterable[Document], rule: str) -> None:
        """Another unit, with its hold-out rule."""
        self._made.append(self._tokenised(texts, rule))

    def replace(self, number: int, texts: Iterable[Document], rule: str) -> None:
        """Unit `number` again, under another rule."""
        self._made[number] = self._tokenised(texts, rule)

    def results(self) -> list[Tokenised]:
        return [made for made, _ in self._made]

    def opened(self) -> Streams:
        """The streams of all units. Raises DataError when one is empty."""
        check_split(self.results())
        streams = {}
        for split in SPLITS:
            parts = []
            for made, ids in self._made:
                share = made.share(split)
                load = _give(ids[split], share.fixes)
                parts.append(Part(share.tokens, share.documents, share.bytes, load))
            streams[split] = TokenStream(parts, self._tokenizer.eos_id)
        return Streams(streams[TRAIN], streams[VALIDATION], corpus_digest(self.results()))

    def _tokenised(
        self, texts: Iterable[Document], rule: str
    ) -> tuple[Tokenised, dict[str, np.ndarray]]:
        pieces: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
        made = tokenise(texts, self._tokenizer, rule, lambda split, ids: pieces[split].append(ids))
        empty = np.zeros(0, token_dtype(self._tokenizer.vocab_size))
        return made, {split: np.concatenate([empty, *pieces[split]]) for split in SPLITS}


def _give(ids: np.ndarray, fixes: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    return lambda: (ids, fixes)
