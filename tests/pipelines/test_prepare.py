"""`prepare`: the rows of the in-memory path, once, in processes, whatever kills it."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_dist.pipelines import (
    Corpus,
    DataError,
    Progress,
    WorkerDied,
    batches,
    load_tokenizer,
    open_corpus,
    prepare,
    tokenise,
)
from spark_dist.pipelines.holdout import HASH
from spark_dist.pipelines.sources import Document, unit
from spark_dist.pipelines.sources.text import PIECE

LENGTH = 50


@pytest.fixture(autouse=True)
def small_units(monkeypatch) -> None:
    monkeypatch.setattr(unit, "UNIT_BYTES", PIECE)


@pytest.fixture
def files(tmp_path, texts) -> list[str]:
    """A text file, a JSONL file and a Parquet file: 250 documents and ten pieces of text."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts * 10), encoding="utf-8")
    lines = [json.dumps({"text": text}) + "\n" for text in texts[:120]]
    (folder / "b.jsonl").write_text("".join(lines), encoding="utf-8")
    pq.write_table(pa.table({"text": texts[120:]}), folder / "c.parquet", row_group_size=50)
    return [str(folder / "a.txt"), str(folder / "*.jsonl"), str(folder / "c.parquet")]


def same(one: Corpus, other: Corpus) -> None:
    assert one.fingerprint == other.fingerprint
    for first, second in ((one.train, other.train), (one.validation, other.validation)):
        assert first.num_tokens == second.num_tokens
        assert first.num_documents == second.num_documents
        assert first.num_bytes == second.num_bytes
    for first, second in (
        (one.train_rows, other.train_rows),
        (one.validation_rows, other.validation_rows),
    ):
        expected, found = first.read(range(first.all)), second.read(range(second.all))
        for key, array in expected.items():
            np.testing.assert_array_equal(array, found[key])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("fixture", ["byte", "sentencepiece_file", "json_file"])
def test_it_gives_the_rows_of_the_in_memory_path(files, tmp_path, fixture, request) -> None:
    name = "byte" if fixture == "byte" else request.getfixturevalue(fixture)
    seen: list[Progress] = []
    out = str(tmp_path / "out")
    report = prepare(corpus=files, out=out, tokenizer=name, jobs=2, on_progress=seen.append)
    assert [each.done for each in seen] == list(range(1, report.shards + 1))
    assert report.shards > 8
    assert report.reused == 0
    for length in (LENGTH, 7):
        direct = open_corpus(corpus=files, tokenizer=name, sequence_length=length)
        mapped = open_corpus(corpus=[out], tokenizer=name, sequence_length=length)
        same(direct, mapped)
    assert report.train_tokens == mapped.train.num_tokens
    assert report.validation_bytes == mapped.validation.num_bytes
    assert report.train_documents == mapped.train.num_documents
    cursor = {"next_sample": 6, "fingerprint": direct.fingerprint}
    with (
        batches(direct, global_batch_size=3, cursor=cursor) as one,
        batches(mapped, global_batch_size=3, cursor=cursor) as other,
    ):
        for _ in range(3):
            np.testing.assert_array_equal(next(one)["targets"], next(other)["targets"])


def test_small_corpora_and_given_validation(tmp_path, write_jsonl) -> None:
    few = write_jsonl("few.jsonl", [letter * 90 for letter in "abcde"])
    unlucky = write_jsonl("none.jsonl", [f"a document {i}" for i in range(10, 40)])
    for number, (corpus, validation) in enumerate(
        [([few], []), ([unlucky], []), ([few], [unlucky]), ([few, unlucky], [])]
    ):
        out = str(tmp_path / f"out{number}")
        report = prepare(corpus=corpus, validation=validation, out=out, jobs=1)
        assert report.validation_documents > 0
        mapped = open_corpus(corpus=[out], sequence_length=8)
        same(open_corpus(corpus=corpus, validation=validation, sequence_length=8), mapped)
        before = contents(tmp_path / f"out{number}")
        again = prepare(corpus=corpus, validation=validation, out=out, jobs=1)
        assert again.reused == again.shards
        assert contents(tmp_path / f"out{number}") == before


def test_finished_shards_are_verified_not_redone(files, tmp_path) -> None:
    out = tmp_path / "out"
    first = prepare(corpus=files, out=str(out), jobs=2)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    second = prepare(corpus=files, out=str(out), jobs=1)
    assert (second.reused, second.train_tokens) == (first.shards, first.train_tokens)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.*")} == stamps
    before = contents(out)
    damaged = out / "shards" / "00001.train.tokens"
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"zz")
    (out / "shards" / "00002.train.tokens").unlink()
    third = prepare(corpus=files, out=str(out), jobs=1)
    assert third.reused == first.shards - 2
    assert contents(out) == before


KILLED = """
import os, signal, sys
from spark_dist.pipelines import prepare
from spark_dist.pipelines.sources import unit
def stop(progress):
    if progress.done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    unit.UNIT_BYTES = int(sys.argv[2])
    prepare(corpus=sys.argv[3:], out=sys.argv[1], jobs=2, on_progress=stop)
"""


def test_after_a_kill_the_rest_is_made(files, tmp_path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    report = prepare(corpus=files, out=str(whole), jobs=2)
    script = tmp_path / "killed.py"
    script.write_text(KILLED, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), str(PIECE), *files],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    process.communicate(timeout=120)  # ends when the last worker has let go of the pipe
    assert process.returncode == -signal.SIGKILL
    done = sorted((out / "shards").glob("*.json"))
    assert 3 <= len(done) < report.shards
    assert not (out / "index.json").exists()
    with pytest.raises(DataError, match=r"data.corpus=.*is unfinished; run the same"):
        open_corpus(corpus=[str(out)])
    kept = {path: path.stat().st_mtime_ns for path in done}
    resumed = prepare(corpus=files, out=str(out), jobs=2)
    assert resumed.reused == len(done)
    assert {path: path.stat().st_mtime_ns for path in done} == kept
    assert contents(out) == contents(whole)


KILLED_WRITING = """
import os, signal, sys
from spark_dist.pipelines import atomic, load_tokenizer, prepare, preparation
from spark_dist.pipelines.shard import make_shard
from spark_dist.pipelines.sources import unit
out, piece, where, nth, *files = sys.argv[1:]
replaced = 0
def replace(source, target, real=os.replace):
    global replaced
    replaced += 1
    if replaced == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
    real(source, target)
def in_this_process(tasks, tokenizer, jobs, on_done):
    return [make_shard(task, load_tokenizer(tokenizer)) for task in tasks]
if __name__ == "__main__":
    unit.UNIT_BYTES = int(piece)
    atomic.os.replace = replace
    preparation.run_tasks = in_this_process
    prepare(corpus=files, out=out, jobs=1)
"""


@pytest.mark.parametrize("nth", [1, 2, 3, 4, 5, -1])
def test_a_kill_between_any_two_files_leaves_nothing_half(files, tmp_path, nth) -> None:
    """Before the job file, the files and record of the first shard, the next one, the index."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    report = prepare(corpus=files[:2], out=str(whole), jobs=2)
    if nth < 0:
        nth = 1 + 3 * report.shards + 1
    script = tmp_path / "killed.py"
    script.write_text(KILLED_WRITING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), str(out), str(PIECE), "here", str(nth), *files[:2]],
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(out.rglob("*.part-*"))
    assert not (out / "index.json").exists()
    resumed = prepare(corpus=files[:2], out=str(out), jobs=1)
    assert resumed.reused == max(0, nth - 2) // 3
    assert contents(out) == contents(whole)


def test_a_worker_that_is_killed_is_told_and_its_peers_work_is_kept(files, tmp_path) -> None:
    def kill_workers(progress: Progress) -> None:
        for child in psutil.Process().children() if progress.done == 1 else []:
            if "spawn_main" in " ".join(child.cmdline()):
                child.kill()

    out = tmp_path / "out"
    with pytest.raises(WorkerDied, match=r"ended abruptly: out of memory.*run it again"):
        prepare(corpus=files, out=str(out), jobs=2, on_progress=kill_workers)
    assert not list(out.rglob("*.part-*"))
    kept = len(list((out / "shards").glob("*.json")))
    assert prepare(corpus=files, out=str(out), jobs=1).reused == kept >= 1


def test_a_script_without_the_guard_is_told(files, tmp_path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import sys\nfrom spark_dist.pipelines import prepare\n"
        "prepare(corpus=sys.argv[2:], out=sys.argv[1], jobs=1)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out"), *files],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert 'lacks `if __name__ == "__main__":`' in done.stderr


def test_other_input_or_settings_are_refused_by_name(files, tmp_path, json_file) -> None:
    out = str(tmp_path / "out")
    prepare(corpus=files, out=out, jobs=1)
    before = contents(tmp_path / "out")

    def refused(message: str, **changed) -> None:
        with pytest.raises(DataError, match=message) as caught:
            prepare(**{"corpus": files, "out": out, "jobs": 1, **changed})
        assert "\n" not in str(caught.value)

    refused(
        r"begun with tokenizer byte, now tokenizers:[0-9a-f]+; use the same", tokenizer=json_file
    )
    refused(r"begun with the file .*c.parquet, which is no longer named", corpus=files[:2])
    refused(r"begun with its input in another order", corpus=files[::-1])
    extra = tmp_path / "extra.txt"
    extra.write_text("more " * 100, encoding="utf-8")
    refused(r"begun with other files, without .*extra.txt", validation=[str(extra)])
    source = Path(files[0])
    content = source.read_bytes()
    source.write_bytes(content + b"!")
    refused(rf"a.txt changed \(bytes {len(content)}, now {len(content) + 1}\)")
    source.write_bytes(content.replace(b"a", b"b", 1))
    refused(r"a.txt: changed since .*out was begun \(shard 0\); restore the file")
    source.write_bytes(content)
    path = Path(files[2])
    table = pq.read_table(path)
    swapped = table.set_column(0, "text", pa.array(table["text"].to_pylist()[::-1]))
    pq.write_table(swapped, path, row_group_size=50)
    refused(r"c.parquet:? changed")
    pq.write_table(table, path, row_group_size=50)
    assert contents(tmp_path / "out") == before
    assert prepare(corpus=files, out=out, jobs=1).reused > 8


def test_bad_input_is_refused_and_can_be_mended(tmp_path, write_jsonl) -> None:
    good = write_jsonl("good.jsonl", [f"{number} text " * 20 for number in range(20)])
    bad = tmp_path / "bad.txt"
    bad.write_bytes(b"words\n" * 20_000 + b"\xff")
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"bad.txt: not UTF-8 at byte 120000"):
        prepare(corpus=[good, str(bad)], out=str(out), jobs=2)
    assert not (out / "index.json").exists()
    assert not list(out.rglob("*.part-*"))
    blank = write_jsonl("blank.jsonl", ["", ""])
    with pytest.raises(DataError, match=r"blank.jsonl: no text from byte 0"):
        prepare(corpus=[good, blank], out=str(tmp_path / "out2"), jobs=1)
    tiny = write_jsonl("tiny.jsonl", ["x"])
    with pytest.raises(DataError, match=r"too small to hold anything out; name --data.validation"):
        prepare(corpus=[tiny], out=str(tmp_path / "out3"), jobs=1)
    with pytest.raises(DataError, match=r"none.txt' does not exist"):
        prepare(corpus=[str(tmp_path / "none.txt")], out=str(tmp_path / "out4"))
    assert not (tmp_path / "out4").exists()


def test_places_that_cannot_take_it(tmp_path, write_jsonl) -> None:
    name = write_jsonl("a.jsonl", [f"{number} text " * 20 for number in range(20)])
    with pytest.raises(DataError, match=r"data.corpus is empty; name the files"):
        prepare(corpus=[], out=str(tmp_path / "out"))
    with pytest.raises(DataError, match=r"jobs=-1"):
        prepare(corpus=[name], out=str(tmp_path / "out"), jobs=-1)
    for out in (name, f"{name}/below"):
        with pytest.raises(DataError, match=r"out='.*a.jsonl.*' cannot be made a folder"):
            prepare(corpus=[name], out=out)
    with pytest.raises(DataError, match=r"out='.*' holds other files \(a.jsonl\)"):
        prepare(corpus=[name], out=str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_two_at_once_are_refused(tmp_path, write_jsonl) -> None:
    name = write_jsonl("a.jsonl", [f"{number} text " * 20 for number in range(20)])
    refusals = []

    def again(progress: Progress) -> None:
        with pytest.raises(DataError, match="being prepared by another process") as caught:
            prepare(corpus=[name], out=str(tmp_path / "out"), jobs=1)
        refusals.append(caught.value)

    prepare(corpus=[name], out=str(tmp_path / "out"), jobs=1, on_progress=again)
    assert len(refusals) == 1
    same(
        open_corpus(corpus=[name], sequence_length=9),
        open_corpus(corpus=[str(tmp_path / "out")], sequence_length=9),
    )


def test_a_prepared_folder_is_checked_when_opened(tmp_path, write_jsonl, json_file) -> None:
    name = write_jsonl("a.jsonl", [f"{number} text " * 20 for number in range(20)])
    out = tmp_path / "out"
    prepare(corpus=[name], out=str(out), tokenizer=json_file, jobs=1)
    with pytest.raises(DataError, match=r"prepared with tokenizer tokenizers:.*set data.tokenizer"):
        open_corpus(corpus=[str(out)])
    with pytest.raises(DataError, match=r"is a prepared folder and stands alone"):
        open_corpus(corpus=[str(out), name], tokenizer=json_file)
    with pytest.raises(DataError, match=r"is a prepared folder and stands alone"):
        open_corpus(corpus=[str(out)], validation=[name], tokenizer=json_file)
    tokens = out / "shards" / "00000.train.tokens"
    content = tokens.read_bytes()
    tokens.write_bytes(content[:-2])
    with pytest.raises(DataError, match=r"00000.train.tokens: \d+ bytes instead of \d+; run"):
        open_corpus(corpus=[str(out)], tokenizer=json_file)
    tokens.unlink()
    with pytest.raises(DataError, match=r"00000.train.tokens: cannot be read"):
        open_corpus(corpus=[str(out)], tokenizer=json_file)
    index = out / "index.json"
    for broken in ("{", "[]", '{"kind": "spark-dist tokens", "format": 99}'):
        index.write_text(broken, encoding="utf-8")
        with pytest.raises(DataError, match=r"index.json: (cannot be read|not format 1)"):
            open_corpus(corpus=[str(out)], tokenizer=json_file)


def test_a_full_disk_leaves_nothing_half(files, tmp_path) -> None:
    out = tmp_path / "out"
    limit = 100_000
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # the processes inherit it
    try:
        with pytest.raises(OSError, match=r"(?i)file too large.*shards/0000\d.\w+.tokens"):
            prepare(corpus=files, out=str(out), jobs=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(out.rglob("*.part-*"))
    assert not (out / "index.json").exists()
    prepare(corpus=files, out=str(out), jobs=1)
    assert os.path.getsize(out / "shards" / "00000.train.tokens") > limit


def test_one_document_is_held_at_a_time() -> None:
    trace: list[str] = []

    def texts():
        for number in range(5):
            trace.append(f"read {number}")
            yield Document(f"text {number}", "here")

    tokenise.tokenise(
        texts(), load_tokenizer("byte"), HASH, lambda split, ids: trace.append("written")
    )
    assert trace == [each for number in range(5) for each in (f"read {number}", "written")]
