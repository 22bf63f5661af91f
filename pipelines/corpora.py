"""From the data settings to a corpus that rows can be read from. Needs no JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .cursor import FORMAT, check_fingerprint
from .errors import DataError
from .in_memory import tokenise_files, tokenise_shakespeare
from .prepared import is_prepared, open_prepared
from .rows import Rows
from .stream import TokenStream
from .tokenizer import Tokenizer, load_tokenizer

#: The shuffle numbers rows with 32 bits.
MAX_ROWS = 2**32 - 1


@dataclass(frozen=True)
class Corpus:
    """Training and held-out text as tokens, and what fixes the order of its samples."""

    train: TokenStream
    validation: TokenStream
    tokenizer: Tokenizer
    seed: int
    sequence_length: int
    fingerprint: dict[str, str | int]

    @property
    def train_rows(self) -> Rows:
        """Rows of training text; `full` of them make one epoch."""
        return Rows(self.train, self.tokenizer, self.sequence_length)

    @property
    def validation_rows(self) -> Rows:
        """Rows of held-out text; `all` of them hold it once."""
        return Rows(self.validation, self.tokenizer, self.sequence_length)


def open_corpus(
    *,
    corpus: Sequence[str] = (),
    validation: Sequence[str] = (),
    text_field: str = "text",
    tokenizer: str = "byte",
    seed: int = 0,
    sequence_length: int = 128,
) -> Corpus:
    """Open the text of `corpus`; () is Shakespeare without Hamlet and The Tempest.

    corpus: files (.txt, .jsonl, .parquet; `sources.files.KINDS`), globs, folders, or one folder
    made by `prepare`, which is mapped instead of read. validation: held-out files; () holds out
    part of the corpus (`holdout`), of Shakespeare those two plays. text_field: field or column
    of JSONL and Parquet records. tokenizer: see `load_tokenizer`. seed: order of the samples.
    sequence_length: tokens a row.

    Raises DataError for files that cannot be used (with file and offset), for a tokenizer that
    cannot, and when the text is too short.
    """
    corpus, validation = list(corpus), list(validation)
    encoder = load_tokenizer(tokenizer)
    folders = [name for name in corpus if is_prepared(name)]
    if folders:
        if len(corpus) > 1 or validation:
            raise DataError(
                f"data.corpus={folders[0]!r} is a prepared folder and stands alone; name no other "
                "data.corpus and no data.validation (give them to `data prepare`)"
            )
        opened = open_prepared(folders[0], encoder)
    elif corpus:
        opened = tokenise_files(corpus, validation, text_field, encoder)
    else:
        opened = tokenise_shakespeare(validation, text_field, encoder)
    found = Corpus(
        train=opened.train,
        validation=opened.validation,
        tokenizer=encoder,
        seed=seed,
        sequence_length=sequence_length,
        fingerprint={
            "format": FORMAT,
            "corpus": opened.digest,
            "tokenizer": encoder.fingerprint,
            "seed": seed,
            "sequence_length": sequence_length,
            "tokens": opened.train.num_tokens,
        },
    )
    _check_length(found)
    return found


def check_cursor(cursor: Any, corpus: Corpus) -> None:
    """Raises DataError, naming each differing field, when `cursor` is of other data."""
    check_fingerprint(cursor, corpus.fingerprint)


def _check_length(corpus: Corpus) -> None:
    length, tokens = corpus.sequence_length, corpus.train.num_tokens
    if length < 1:
        raise DataError(f"data.sequence_length={length} must be positive; use 128")
    rows = corpus.train_rows.full
    if rows == 0:
        raise DataError(
            f"data.sequence_length={length} is longer than the training text of {tokens} tokens; "
            f"use at most {tokens - 1}, or more text in data.corpus"
        )
    if rows > MAX_ROWS:
        raise DataError(
            f"data.sequence_length={length} makes {rows} rows, more than {MAX_ROWS}; "
            f"use at least {tokens // MAX_ROWS + 1}"
        )
