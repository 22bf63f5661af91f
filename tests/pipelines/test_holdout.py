"""What is held out: given files, every hundredth by hash, and the small corpora."""

import json
from pathlib import Path

import pytest

from spark_dist.pipelines import Corpus, DataError, TokenStream, open_corpus
from spark_dist.pipelines.holdout import HASH, TAILS, divide, document_digest


def text_of(stream: TokenStream, corpus: Corpus) -> list[str]:
    """The documents of a byte stream."""
    ids = stream.read(0, stream.num_tokens)
    assert ids[0] == ids[-1] == corpus.tokenizer.eos_id
    parts, begin = [], 1
    for end in (ids == corpus.tokenizer.eos_id).nonzero()[0][1:]:
        parts.append(corpus.tokenizer.decode(ids[begin:end]))
        begin = end + 1
    return parts


def open_small(corpus: str, **settings) -> Corpus:
    return open_corpus(corpus=[corpus], sequence_length=4, **settings)


def test_every_hundredth_by_hash(write_jsonl) -> None:
    texts = [f"document number {i}" for i in range(3000)]
    corpus = open_small(write_jsonl("a.jsonl", texts))
    train, held = text_of(corpus.train, corpus), text_of(corpus.validation, corpus)
    assert sorted(train + held) == sorted(texts)
    assert 15 <= len(held) <= 45
    assert train == [text for text in texts if text not in set(held)]  # order kept
    shuffled = open_small(write_jsonl("b.jsonl", texts[::-1]))
    assert text_of(shuffled.validation, shuffled) == held[::-1]  # the text decides, not the place


def test_copies_land_on_the_same_side(write_jsonl) -> None:
    texts = [f"document number {i % 300}" for i in range(900)]
    corpus = open_small(write_jsonl("a.jsonl", texts))
    train, held = text_of(corpus.train, corpus), text_of(corpus.validation, corpus)
    assert not set(train) & set(held)
    assert len(train) + len(held) == 900


def test_validation_files_take_nothing_from_the_corpus(write_jsonl) -> None:
    texts = [f"document number {i}" for i in range(300)]
    corpus = open_small(
        write_jsonl("a.jsonl", texts), validation=[write_jsonl("v.jsonl", ["held", "out"])]
    )
    assert text_of(corpus.train, corpus) == texts
    assert text_of(corpus.validation, corpus) == ["held", "out"]


def test_a_single_text_file_trains(tmp_path) -> None:
    text = "A line of text.\nAnother line.\n\n" * 100
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    corpus = open_small(str(path))
    (train,), (held,) = text_of(corpus.train, corpus), text_of(corpus.validation, corpus)
    assert train + held == text
    assert train.endswith("\n\n")
    assert len(text) / 10 - 40 < len(held) <= len(text) / 10


def test_a_few_documents_give_their_last_tenths(write_jsonl) -> None:
    texts = [letter * 100 for letter in "abcdefghi"]
    corpus = open_small(write_jsonl("a.jsonl", texts))
    assert text_of(corpus.train, corpus) == [text[:90] for text in texts]
    assert text_of(corpus.validation, corpus) == [text[90:] for text in texts]


def test_when_no_hash_hits_the_smallest_is_held_out(write_jsonl) -> None:
    candidates = (f"document number {i}" for i in range(1000))
    missed = [text for text in candidates if not divide(text, document_digest(text), HASH)[1]]
    texts = missed[:30]
    corpus = open_small(write_jsonl("a.jsonl", [*texts, texts[0]]))
    assert text_of(corpus.validation, corpus) == [min(texts, key=document_digest)]


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("x" * 90 + "a\n\nb\nc d", 93),
        ("x" * 90 + "a b\nc d e", 94),
        ("x" * 90 + "a bbbbbbbb", 92),
        ("x" * 100, 90),
        ("xy", 1),
        ("x", 1),
    ],
)
def test_where_a_tail_begins(text, cut) -> None:
    train, held = divide(text, document_digest(text), TAILS)
    assert (train, held) == (text[:cut], text[cut:])


def test_nothing_to_hold_out(write_jsonl) -> None:
    with pytest.raises(DataError, match=r"too small to hold anything out; name --data.validation"):
        open_corpus(corpus=[write_jsonl("a.jsonl", ["x", "y"])], sequence_length=1)


def test_copies_of_one_document_alone(write_jsonl) -> None:
    with pytest.raises(DataError, match=r"documents being alike; name --data.validation"):
        open_corpus(corpus=[write_jsonl("a.jsonl", ["the same text"] * 20)], sequence_length=1)


def test_longer_than_the_corpus(write_jsonl) -> None:
    name = write_jsonl("a.jsonl", ["x" * 100])
    longest = 91  # 90 of 100 characters and the eos before and after
    corpus = open_corpus(corpus=[name], sequence_length=longest)
    assert corpus.train_rows.full == 1
    message = (
        r"data.sequence_length=92 is longer than the training text of 92 tokens; use at most 91"
    )
    with pytest.raises(DataError, match=message):
        open_corpus(corpus=[name], sequence_length=92)
    with pytest.raises(DataError, match=r"data.sequence_length=0 must be positive"):
        open_corpus(corpus=[name], sequence_length=0)
    with pytest.raises(DataError, match=r"data.sequence_length=99999999 is longer"):
        open_corpus(sequence_length=99_999_999)


def test_the_digest_follows_text_order_and_split(write_jsonl, json_file) -> None:
    texts = [f"document number {i}" for i in range(300)]
    name = write_jsonl("a.jsonl", texts)
    digest = open_small(name).fingerprint["corpus"]
    assert open_small(name, tokenizer=json_file).fingerprint["corpus"] == digest
    assert open_small(write_jsonl("b.jsonl", texts)).fingerprint["corpus"] == digest
    others = [
        open_small(write_jsonl("c.jsonl", texts[::-1])),
        open_small(write_jsonl("d.jsonl", [*texts[:-1], "changed"])),
        open_small(name, validation=[write_jsonl("v.jsonl", ["held"])]),
    ]
    assert len({digest, *(each.fingerprint["corpus"] for each in others)}) == 4


def test_the_text_field_can_be_named(tmp_path) -> None:
    path: Path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": 1, "body": "b" * 50}) + "\n", encoding="utf-8")
    corpus = open_small(str(path), text_field="body")
    assert text_of(corpus.train, corpus) == ["b" * 45]
