"""Small corpora, and tokenizer files trained on the embedded text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from spark_dist.pipelines.embedded import shakespeare

JsonLines = Callable[[str, list[str]], str]


@pytest.fixture
def write_jsonl(tmp_path: Path) -> JsonLines:
    """(name, texts) -> path of a JSONL file with one document a text."""

    def write(name: str, texts: list[str]) -> str:
        path = tmp_path / name
        lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
        path.write_text("".join(lines), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """250 documents of 1 to about 400 characters with UTF-8 of one to four bytes."""
    source = shakespeare()["sonnets"]
    extra = ("", " é", " 诗", " 🎭")
    return [source[i * 300 : i * 300 + 1 + (i * 37) % 400] + extra[i % 4] for i in range(250)]


@pytest.fixture(scope="session")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real SentencePiece model of 600 pieces: it normalises and puts a space in front."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(shakespeare()["sonnets"].splitlines()),
        model_writer=model,
        vocab_size=600,
        byte_fallback=True,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "sonnets.model"
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture(scope="session")
def exact_sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A SentencePiece model that changes nothing, with pad, as Gemma's are."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(shakespeare()["sonnets"].splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        pad_id=3,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "exact.model"
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture(scope="session")
def json_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A real byte-level BPE file of 600 tokens that also asks for truncation and padding."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(shakespeare()["sonnets"].splitlines(keepends=True), trainer)
    model.enable_truncation(16)
    model.enable_padding(length=16, pad_id=1, pad_token="<|padding|>")
    path = tmp_path_factory.mktemp("tokenizers") / "tokenizer.json"
    model.save(str(path))
    return str(path)
