"""The order of samples: the same for any hosts, resumable anywhere, each row once an epoch."""

import dataclasses
import hashlib
import itertools
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from spark_dist.pipelines import DataError, batches, check_cursor, open_corpus, validation_batches
from spark_dist.pipelines.rows import KEYS

STEPS, BATCH = 30, 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("data") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return open_corpus(corpus=[str(path)], sequence_length=600, seed=3)


def digest(batch: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(b"".join(batch[key].tobytes() for key in KEYS)).hexdigest()


def take(corpus, steps: int = STEPS, **settings) -> list[dict[str, np.ndarray]]:
    with batches(corpus, **{"global_batch_size": BATCH, **settings}) as iterator:
        return list(itertools.islice(iterator, steps))


@pytest.fixture(scope="module")
def undisturbed(corpus) -> list[str]:
    return [digest(batch) for batch in take(corpus)]


def test_the_test_crosses_epochs_within_a_batch(corpus) -> None:
    assert corpus.train_rows.full % BATCH
    assert 2.5 * corpus.train_rows.full < STEPS * BATCH


@pytest.mark.parametrize("num_hosts", [1, 2, 4, 8])
@pytest.mark.parametrize("read_threads", [0, 1, 3])
def test_global_batches_do_not_depend_on_hosts_or_threads(
    corpus, undisturbed, num_hosts, read_threads
) -> None:
    hosts = [
        take(corpus, host=host, num_hosts=num_hosts, read_threads=read_threads)
        for host in range(num_hosts)
    ]
    whole = [
        {key: np.concatenate([part[key] for part in parts]) for key in KEYS}
        for parts in zip(*hosts, strict=True)
    ]
    assert [digest(batch) for batch in whole] == undisturbed


def test_resume_at_every_step_equals_the_undisturbed_sequence(corpus, undisturbed) -> None:
    with batches(corpus, global_batch_size=BATCH) as iterator:
        cursors = [iterator.cursor()]
        for step, batch in enumerate(itertools.islice(iterator, STEPS)):
            assert digest(batch) == undisturbed[step]
            cursors.append(json.loads(json.dumps(iterator.cursor())))
    for step, cursor in enumerate(cursors[:-1]):
        assert cursor["next_sample"] == step * BATCH
        rest = take(corpus, STEPS - step, cursor=cursor, read_threads=step % 2)
        assert [digest(batch) for batch in rest] == undisturbed[step:]


def test_resume_on_other_hosts(corpus, undisturbed) -> None:
    with batches(corpus, global_batch_size=BATCH, host=1, num_hosts=2) as iterator:
        for _ in range(7):
            next(iterator)
        cursor = iterator.cursor()
    parts = [take(corpus, 5, host=host, num_hosts=4, cursor=cursor) for host in range(4)]
    whole = [
        {key: np.concatenate([part[key] for part in each]) for key in KEYS}
        for each in zip(*parts, strict=True)
    ]
    assert [digest(batch) for batch in whole] == undisturbed[7:12]


def test_another_batch_size_goes_on_with_the_next_sample(corpus) -> None:
    rows = np.concatenate([batch["tokens"] for batch in take(corpus, 8)])
    cursor = {"next_sample": 3 * BATCH, "fingerprint": corpus.fingerprint}
    again = take(corpus, 10, global_batch_size=4, cursor=cursor)
    np.testing.assert_array_equal(
        np.concatenate([batch["tokens"] for batch in again]), rows[3 * BATCH :]
    )


def test_each_row_comes_once_an_epoch_in_new_order(corpus) -> None:
    size = corpus.train_rows.full
    rows = [batch["tokens"][0].tobytes() for batch in take(corpus, 2 * size, global_batch_size=1)]
    every = {row.tobytes() for row in corpus.train_rows.read(range(size))["tokens"]}
    assert len(every) == size
    assert set(rows[:size]) == set(rows[size:]) == every
    assert rows[:size] != rows[size:]


def test_seeds_give_unrelated_orders(corpus) -> None:
    orders = [
        [
            batch["tokens"][0].tobytes()
            for batch in take(dataclasses.replace(corpus, seed=seed), 200, global_batch_size=1)
        ]
        for seed in (0, 1, 2**40)
    ]
    size = corpus.train_rows.full
    assert orders[0][:size] != orders[1][:size] != orders[2][:size]
    assert orders[0][size : 2 * size] != orders[1][:size]  # not the same an epoch later


def test_the_order_is_frozen() -> None:
    """The order is part of saved cursors: when this fails, raise `cursor.FORMAT`."""
    corpus = open_corpus(sequence_length=128, seed=0)
    (batch,) = take(corpus, 1)
    assert corpus.fingerprint == {
        "format": 1,
        "corpus": "328c15b66c8bc060bc7f7dab49d71f0b",
        "tokenizer": "byte",
        "seed": 0,
        "sequence_length": 128,
        "tokens": 4784858,
    }
    assert digest(batch)[:16] == "446336e7c0fd55b2"


def test_check_cursor_names_every_differing_field(corpus) -> None:
    good = {"next_sample": 8, "fingerprint": dict(corpus.fingerprint)}
    check_cursor(json.loads(json.dumps(good)), corpus)
    other = {
        "format": 0,
        "corpus": "ab12",
        "tokenizer": "sentencepiece:1",
        "seed": 9,
        "sequence_length": 64,
        "tokens": 5,
    }
    with pytest.raises(DataError) as caught:
        check_cursor({"next_sample": 8, "fingerprint": other}, corpus)
    message = str(caught.value)
    assert "data.tokenizer (saved sentencepiece:1, now byte)" in message
    assert "data.seed (saved 9, now 3)" in message
    assert "data.sequence_length (saved 64, now 600)" in message
    assert f"data.corpus digest (saved ab12, now {corpus.fingerprint['corpus']})" in message
    assert f"training tokens (saved 5, now {corpus.train.num_tokens})" in message
    assert "data format (saved 0, now 1)" in message
    assert "\n" not in message
    for field in other:
        changed = {**corpus.fingerprint, field: "changed"}
        with pytest.raises(DataError, match=r"saved changed, now") as caught:
            batches(corpus, global_batch_size=8, cursor={"next_sample": 0, "fingerprint": changed})
        assert str(caught.value).count("saved changed") == 1
    with pytest.raises(DataError, match=r"mixture \(saved 2, now nothing\)"):
        check_cursor(
            {"next_sample": 0, "fingerprint": {**corpus.fingerprint, "mixture": 2}}, corpus
        )
    for broken in (None, 5, {}, {"next_sample": -1, "fingerprint": corpus.fingerprint}):
        with pytest.raises(DataError, match="is not one"):
            check_cursor(broken, corpus)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"global_batch_size": 9, "num_hosts": 2}, r"global_batch_size=9 .* hosts=2; use 8"),
        ({"global_batch_size": 1, "num_hosts": 2}, r"global_batch_size=1 .* use 2"),
        ({"global_batch_size": 0}, r"global_batch_size=0 must be a positive"),
        ({"global_batch_size": 8, "host": 2, "num_hosts": 2}, r"host=2 is not one of num_hosts=2"),
        ({"global_batch_size": 8, "read_threads": -1}, r"data.read_threads=-1"),
        ({"global_batch_size": 8, "prefetch_batches": 0}, r"data.prefetch_batches=0"),
    ],
)
def test_sizes_that_do_not_fit(corpus, settings, message) -> None:
    with pytest.raises(DataError, match=message):
        batches(corpus, **settings)
    if "read_threads" not in settings and "prefetch_batches" not in settings:
        with pytest.raises(DataError, match=message):
            validation_batches(corpus, **settings)
    with pytest.raises(DataError, match="max_batches=-1"):
        validation_batches(corpus, global_batch_size=8, max_batches=-1)


def reading_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("grain-prefetch")]


def test_a_hundred_loaders_leave_no_threads(corpus, undisturbed) -> None:
    for _ in range(100):
        iterator = batches(corpus, global_batch_size=BATCH, read_threads=2)
        assert digest(next(iterator)) == undisturbed[0]
        iterator.close()
        iterator.close()
        with pytest.raises(ValueError, match="closed"):
            next(iterator)
    for thread in reading_threads():
        thread.join(timeout=60)
    assert reading_threads() == []


@pytest.mark.parametrize("ending", ["raise SystemExit(7)", "raise RuntimeError('broken')", "pass"])
def test_leaving_without_close_does_not_hang(ending) -> None:
    program = f"""
from spark_dist.pipelines import batches, open_corpus
iterator = batches(open_corpus(), global_batch_size=8, read_threads=3, prefetch_batches=8)
next(iterator)
{ending}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    expected = {"raise SystemExit(7)": 7, "raise RuntimeError('broken')": 1, "pass": 0}[ending]
    assert done.returncode == expected, done.stderr
    assert ("RuntimeError: broken" in done.stderr) == ("broken" in ending)
