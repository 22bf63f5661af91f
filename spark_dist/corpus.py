"""The corpus that a configuration names. No JAX here."""

from __future__ import annotations

from spark_dist.pipelines import Corpus, open_corpus

from .config import RunConfig
from .errors import UserError


def corpus_of(config: RunConfig, *, validation: tuple[str, ...] = ()) -> Corpus:
    """Opens the corpus of a run; `validation` files stand in for its held-out part.

    Raises pipelines.DataError for what cannot be read, UserError when the model's vocabulary is
    smaller than the tokenizer's.
    """
    data = config.data
    corpus = open_corpus(
        corpus=() if validation else data.corpus,
        validation=validation or data.validation,
        text_field=data.text_field,
        tokenizer=data.tokenizer,
        seed=data.seed,
        sequence_length=data.sequence_length,
    )
    need = corpus.tokenizer.vocab_size
    if need > config.model.vocab_size:
        raise UserError(
            f"model.vocab_size={config.model.vocab_size} is below the tokenizer's {need}; "
            f"use --model.vocab-size {need}"
        )
    return corpus
