"""Text, JSONL and Parquet: documents come out unchanged, bad input is refused with its place."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_dist.pipelines import DataError, open_corpus
from spark_dist.pipelines.sources import Document, documents, expand, plan_units, unit
from spark_dist.pipelines.sources.text import PIECE


def read(*names, field: str = "text") -> list[Document]:
    units = plan_units(expand([str(each) for each in names], field="data.corpus"), text_field=field)
    return [document for each in units for document in documents(each, text_field=field)]


def test_a_small_text_is_one_document(tmp_path) -> None:
    text = "\ufeffone\r\n\r\ntwo é\n\n\n"
    (tmp_path / "a.txt").write_bytes(text.encode("utf-8"))
    assert [each.text for each in read(tmp_path / "a.txt")] == [text]


@pytest.mark.parametrize("break_", ["\n\n", "\n", ""])
def test_a_long_text_is_cut_and_nothing_is_lost(tmp_path, monkeypatch, break_) -> None:
    monkeypatch.setattr(unit, "UNIT_BYTES", 2 * PIECE)
    text = (break_ + "é诗🎭 word ") * 30_000
    (tmp_path / "a.txt").write_bytes(text.encode("utf-8"))
    found = read(tmp_path / "a.txt")
    assert "".join(each.text for each in found) == text
    assert len(found) == -(-len(text.encode("utf-8")) // PIECE)
    assert all(len(each.text.encode("utf-8")) < 2 * PIECE for each in found)
    if break_:
        assert all(each.text.endswith(break_) for each in found[:-1])
    monkeypatch.undo()
    assert read(tmp_path / "a.txt") == found  # units do not matter


def test_jsonl_lines_come_once_whatever_the_units(tmp_path, monkeypatch) -> None:
    texts = [f"document {i} " + "é" * (i % 90) for i in range(200)] + ["x" * 5000]
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\n".join(json.dumps({"text": text, "n": 1}, ensure_ascii=False) + "\n" for text in texts),
        encoding="utf-8",
    )
    for size in (1, 64, 1000, 1 << 20):
        monkeypatch.setattr(unit, "UNIT_BYTES", size)
        assert [each.text for each in read(path)] == texts


@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_rows(tmp_path, type_) -> None:
    texts = [f"row {i} é" for i in range(1000)]
    table = pa.table({"body": pa.array(texts).cast(type_), "n": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    found = read(tmp_path / "a.parquet", field="body")
    assert [each.text for each in found] == texts
    assert found[999].where.endswith("row 999")


def test_folders_and_globs(tmp_path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.md", ".hidden/d.txt", "e.csv"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name, encoding="utf-8")
    assert [each.text for each in read(tmp_path)] == ["a.txt", "b.txt", "deep/c.md"]
    assert [each.text for each in read(tmp_path / "*.txt")] == ["a.txt", "b.txt"]
    assert [each.text for each in read(tmp_path / "**/*.md")] == ["deep/c.md"]


BAD = {
    "not UTF-8 text": ("a.txt", b"abc\n" * 20_000 + b"\xff", r"a.txt: not UTF-8 at byte 80000"),
    "UTF-16 text": ("a.txt", "text".encode("utf-16"), r"a.txt: not UTF-8 at byte 0"),
    "cut character": ("a.txt", "é".encode()[:1], r"a.txt: not UTF-8 at byte 0"),
    "empty text": ("a.txt", b"", r"a.txt: empty file \(byte 0\)"),
    "empty JSONL": ("a.jsonl", b"", r"a.jsonl: empty file \(byte 0\)"),
    "blank JSONL": ("a.jsonl", b"\n \n", r"a.jsonl: no text from byte 0 on"),
    "empty texts": ("a.jsonl", b'{"text": ""}\n', r"a.jsonl: no text from byte 0 on"),
    "JSON": ("a.jsonl", '{"text": "é"}\n{"text": é}\n'.encode(), r"not JSON at byte 24"),
    "JSONL not UTF-8": ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', r"not UTF-8 at byte 24"),
    "no field": ("a.jsonl", b'{"text": "a"}\n{"body": 1}\n', r"no field 'text' at byte 14, only"),
    "not text": ("a.jsonl", b'{"text": 5}\n', r"'text' at byte 0 is int, not text"),
    "null": ("a.jsonl", b'{"text": null}\n', r"'text' at byte 0 is NoneType, not text"),
    "no object": ("a.jsonl", b'["text"]\n', r"no JSON object at byte 0"),
    "surrogate": ("a.jsonl", b'{"text": "\\ud800"}\n', r"half a surrogate pair"),
    "deep JSON": ("a.jsonl", b"[" * 100_000, r"a.jsonl: (JSON|not JSON) at byte"),
    "long number": ("a.jsonl", b'{"text": ' + b"1" * 5000 + b"}", r"JSON at byte 0 cannot be read"),
    "not Parquet": ("a.parquet", b"PAR1 no", r"a.parquet: not a Parquet file \(byte 0\)"),
    "empty Parquet": ("a.parquet", b"", r"a.parquet: not a Parquet file \(byte 0\)"),
    "ending": ("a.csv", b"text", r"data.corpus='.*a.csv' has an unknown ending"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_their_place(tmp_path, name) -> None:
    file, content, message = BAD[name]
    (tmp_path / file).write_bytes(content)
    (tmp_path / "good.txt").write_text("good text " * 200, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        open_corpus(corpus=[str(tmp_path / "good.txt"), str(tmp_path / file)])
    assert "\n" not in str(caught.value)


def test_bad_parquet(tmp_path) -> None:
    path = tmp_path / "a.parquet"

    def refused(table: pa.Table, message: str) -> None:
        pq.write_table(table, path, row_group_size=2)
        with pytest.raises(DataError, match=message):
            open_corpus(corpus=[str(path)])

    refused(pa.table({"body": ["a"]}), r"no column 'text', only 'body'; set data.text_field")
    refused(pa.table({"text": [1]}), r"column 'text' is int64, not string")
    refused(pa.table({"text": pa.array([], pa.string())}), r"empty file \(row 0\)")
    refused(pa.table({"text": ["a", "b", "c", None]}), r"no 'text' in row 3")
    offsets, data = pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"ab\xff")
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    refused(pa.table({"text": broken}), r"not UTF-8 in row 1, byte 1")
    pq.write_table(
        pa.table({"text": ["words " * 100] * 50}), path, compression="none", use_dictionary=False
    )
    content = bytearray(path.read_bytes())
    content[4:40] = b"\xff" * 36  # the first page's header
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"broken Parquet data near row 0"):
        open_corpus(corpus=[str(path)])


def test_missing_and_empty_places(tmp_path) -> None:
    with pytest.raises(DataError, match=r"data.corpus='.*none.txt' does not exist; name a file"):
        open_corpus(corpus=[str(tmp_path / "none.txt")])
    with pytest.raises(DataError, match=r"data.corpus='.*\*.jsonl' does not exist"):
        open_corpus(corpus=[str(tmp_path / "*.jsonl")])
    with pytest.raises(DataError, match=r"is a folder without data"):
        open_corpus(corpus=[str(tmp_path)])
    (tmp_path / "a.txt").write_text("text " * 500, encoding="utf-8")
    with pytest.raises(DataError, match=r"data.validation='.*none.txt' does not exist"):
        open_corpus(corpus=[str(tmp_path / "a.txt")], validation=[str(tmp_path / "none.txt")])
    with pytest.raises(DataError, match=r"a.txt is in data.corpus and in data.validation"):
        open_corpus(corpus=[str(tmp_path)], validation=[str(tmp_path / "a.txt")])


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch) -> None:
    (tmp_path / "a.txt").symlink_to("/proc/self/mem")  # opens, but byte 0 is not mapped
    with pytest.raises(DataError, match=r"a.txt: (cannot be read|empty file)"):
        open_corpus(corpus=[str(tmp_path / "a.txt")])


def test_a_corpus_too_large_for_memory_names_prepare(tmp_path, monkeypatch) -> None:
    from spark_dist.pipelines import in_memory

    (tmp_path / "a.txt").write_text("text " * 500, encoding="utf-8")
    monkeypatch.setattr(in_memory, "IN_MEMORY_BYTES", 100)
    with pytest.raises(DataError, match=r"data.corpus=.*2500 bytes.*data prepare"):
        open_corpus(corpus=[str(tmp_path / "a.txt")])
