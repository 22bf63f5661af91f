"""The corpus in the package: whole, checked, split by play, read without JAX."""

import shutil
import subprocess
import sys

import pytest

from spark_dist.pipelines import DataError, embedded, open_corpus, validation_batches


def test_it_holds_42_works() -> None:
    works = embedded.shakespeare()
    assert len(works) == 42
    assert sum(len(text) for text in works.values()) == 5_057_198
    assert all(text.isascii() for text in works.values())
    assert works["hamlet"].startswith("HAMLET, PRINCE OF DENMARK")
    assert works["tempest"].startswith("THE TEMPEST")


def test_two_plays_are_held_out_and_nothing_of_them_is_trained_on() -> None:
    corpus = open_corpus()
    works = embedded.shakespeare()
    held = corpus.tokenizer.decode(corpus.validation.read(0, corpus.validation.num_tokens))
    assert held == works["hamlet"] + works["tempest"]
    train = corpus.tokenizer.decode(corpus.train.read(0, corpus.train.num_tokens))
    assert train == "".join(works[name] for name in works if name not in ("hamlet", "tempest"))
    assert corpus.train.num_documents == 40
    assert corpus.train.num_tokens == corpus.train.num_bytes + 41
    counted = sum(
        int(batch["target_bytes"].sum())
        for batch in validation_batches(corpus, global_batch_size=64)
    )
    assert counted == corpus.validation.num_bytes == len(held)


def test_own_files_can_stand_in_for_the_held_out_plays(tmp_path) -> None:
    (tmp_path / "own.txt").write_text("my own words\n", encoding="utf-8")
    corpus = open_corpus(validation=[str(tmp_path / "own.txt")])
    held = corpus.tokenizer.decode(corpus.validation.read(0, corpus.validation.num_tokens))
    assert held == "my own words\n"
    usual = open_corpus()
    assert corpus.train.num_tokens == usual.train.num_tokens
    assert corpus.fingerprint["corpus"] != usual.fingerprint["corpus"]
    (tmp_path / "blank.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"blank.jsonl: no text"):
        open_corpus(validation=[str(tmp_path / "blank.jsonl")])


def test_the_notice_names_source_and_licence() -> None:
    notice = (embedded.FOLDER / "NOTICE.txt").read_text(encoding="utf-8")
    for words in (
        "shakespeare",
        "0.6",
        "public domain",
        "Open Knowledge Foundation",
        "licenses/by/2.5",
    ):
        assert words in notice


def test_a_damaged_or_missing_file_is_refused(monkeypatch, tmp_path) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(embedded.FOLDER, copy)
    monkeypatch.setattr(embedded, "FOLDER", copy)
    index = (copy / "shakespeare.json").read_text(encoding="utf-8")
    (copy / "shakespeare.json").write_text(
        index.replace('"sha256": "', '"sha256": "0'), encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"damaged.*reinstall"):
        embedded.shakespeare()
    (copy / "shakespeare.txt.xz").write_bytes(b"not xz")
    with pytest.raises(DataError, match="cannot be read"):
        embedded.shakespeare()
    (copy / "shakespeare.txt.xz").unlink()
    with pytest.raises(DataError, match="cannot be read"):
        embedded.shakespeare()


def test_opening_needs_no_jax(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("word " * 1000, encoding="utf-8")
    text, out = str(tmp_path / "a.txt"), str(tmp_path / "out")
    program = f"""
import sys
from spark_dist import pipelines
corpus = pipelines.open_corpus()
next(pipelines.validation_batches(corpus, global_batch_size=2))
pipelines.check_cursor({{"next_sample": 0, "fingerprint": corpus.fingerprint}}, corpus)
pipelines.open_corpus(corpus=[{text!r}])
if __name__ == "__main__":
    pipelines.prepare(corpus=[{text!r}], out={out!r}, jobs=1)
heavy = {{"jax", "grain", "ray", "pyarrow", "sentencepiece", "tokenizers"}}
print(sorted(heavy & set(sys.modules)))
"""
    script = tmp_path / "script.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
