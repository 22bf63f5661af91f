"""Rows against a slow reference, borders of documents and parts, bytes counted once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_dist.pipelines import Rows, TokenStream, load_tokenizer, open_corpus, validation_batches
from spark_dist.pipelines.rows import KEYS
from spark_dist.pipelines.stream import Part
from spark_dist.pipelines.tokenise import FIX

BYTE = load_tokenizer("byte")
EOS, PAD = BYTE.eos_id, BYTE.pad_id


def stream_of(parts: list[list[bytes]]) -> TokenStream:
    """A byte stream with one part for each list of documents."""

    def part(documents: list[bytes]) -> Part:
        ids = np.array([i for each in documents for i in [*each, EOS]], np.uint16)
        size = sum(map(len, documents))
        return Part(len(ids), len(documents), size, lambda: (ids, np.zeros(0, FIX)))

    return TokenStream([part(each) for each in parts], EOS)


def slow_row(whole: list[int], number: int, length: int) -> dict[str, list[int]]:
    """One row, token by token, from the definition."""
    row: dict[str, list[int]] = {key: [] for key in KEYS}
    segment = position = 0
    for at in range(number * length, (number + 1) * length):
        if at + 1 >= len(whole):
            values = (PAD, PAD, 0, 0, 0)
        else:
            if whole[at] == EOS or at == number * length:
                segment, position = segment + 1, 0
            else:
                position += 1
            values = (whole[at], whole[at + 1], segment, position, int(whole[at + 1] < 256))
        for key, value in zip(KEYS, values, strict=True):
            row[key].append(value)
    return row


@given(
    parts=st.lists(st.lists(st.binary(max_size=9), max_size=4), min_size=1, max_size=4),
    length=st.integers(1, 12),
)
def test_rows_equal_the_definition(parts, length) -> None:
    stream = stream_of(parts)
    whole = [EOS, *(i for part in parts for each in part for i in [*each, EOS])]
    assert stream.num_tokens == len(whole)
    rows = Rows(stream, BYTE, length)
    assert rows.full == (len(whole) - 1) // length
    assert rows.all == -(-(len(whole) - 1) // length)
    numbers = list(range(rows.all + 1))[::-1]  # one of padding, in any order
    found = rows.read(numbers)
    for place, number in enumerate(numbers):
        expected = slow_row(whole, number, length)
        for key in KEYS:
            assert found[key][place].tolist() == expected[key], key
    assert {(array.dtype, array.shape) for array in found.values()} == {
        (np.dtype(np.int32), (len(numbers), length))
    }
    assert found["target_bytes"].sum() == stream.num_bytes


def test_an_eos_opens_the_segment_of_its_document() -> None:
    rows = Rows(stream_of([[b"ab", b"c"], [b"defg"]]), BYTE, 6).read([0, 1])
    a, b, c, d, e, f, g = b"abcdefg"
    assert rows["tokens"].tolist() == [[EOS, a, b, EOS, c, EOS], [d, e, f, g, PAD, PAD]]
    assert rows["targets"].tolist() == [[a, b, EOS, c, EOS, d], [e, f, g, EOS, PAD, PAD]]
    assert rows["segment_ids"].tolist() == [[1, 1, 1, 2, 2, 3], [1, 1, 1, 1, 0, 0]]
    assert rows["positions"].tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
    assert rows["target_bytes"].tolist() == [[1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0]]


def test_reading_outside_is_refused() -> None:
    stream = stream_of([[b"ab"]])
    assert stream.read(1, 1).tolist() == []
    for start, stop in ((-1, 1), (0, 5), (2, 1)):
        with pytest.raises(IndexError, match="outside of 4 tokens"):
            stream.read(start, stop)


@pytest.mark.parametrize(
    "fixture", ["byte", "sentencepiece_file", "exact_sentencepiece_file", "json_file"]
)
@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_validation_covers_every_held_out_byte_once(
    fixture, num_hosts, request, write_jsonl, texts
) -> None:
    name = "byte" if fixture == "byte" else request.getfixturevalue(fixture)
    corpus = open_corpus(
        corpus=[write_jsonl("a.jsonl", texts)],
        validation=[write_jsonl("v.jsonl", [text + "  x" for text in texts])],
        tokenizer=name,
        sequence_length=13,
    )
    size = sum(len((text + "  x").encode("utf-8")) for text in texts)
    hosts = [
        list(validation_batches(corpus, global_batch_size=8, host=host, num_hosts=num_hosts))
        for host in range(num_hosts)
    ]
    assert len({len(each) for each in hosts}) == 1
    whole = [
        {key: np.concatenate([batch[key] for batch in each]) for key in KEYS}
        for each in zip(*hosts, strict=True)
    ]
    assert sum(int(batch["target_bytes"].sum()) for batch in whole) == size
    assert corpus.validation.num_bytes == size
    flat = {key: np.concatenate([batch[key].ravel() for batch in whole]) for key in KEYS}
    real = flat["segment_ids"] > 0
    assert real.sum() == corpus.validation.num_tokens - 1
    stream = corpus.validation.read(0, corpus.validation.num_tokens)
    np.testing.assert_array_equal(flat["tokens"][real], stream[:-1])
    np.testing.assert_array_equal(flat["targets"][real], stream[1:])
    assert (flat["tokens"][~real] == corpus.tokenizer.pad_id).all()


def test_a_leading_space_is_not_counted(sentencepiece_file, write_jsonl) -> None:
    corpus = open_corpus(
        corpus=[write_jsonl("a.jsonl", ["no matter " * 90])],
        validation=[write_jsonl("v.jsonl", ["the day", "the  night"])],
        tokenizer=sentencepiece_file,
        sequence_length=64,
    )
    rows = corpus.validation_rows.read([0])
    real = rows["segment_ids"][0] > 0
    per_segment = [
        int(rows["target_bytes"][0][rows["segment_ids"][0] == segment].sum()) for segment in (1, 2)
    ]
    assert per_segment == [7, 10]
    assert (rows["target_bytes"][0][real] >= 0).all()


def test_limits_of_validation(write_jsonl) -> None:
    corpus = open_corpus(corpus=[write_jsonl("a.jsonl", ["x" * 2000])], sequence_length=10)
    assert len(list(validation_batches(corpus, global_batch_size=4))) == 6
    assert len(list(validation_batches(corpus, global_batch_size=4, max_batches=2))) == 2
    assert len(list(validation_batches(corpus, global_batch_size=4, max_batches=99))) == 6
