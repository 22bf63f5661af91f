"""Tokenise a corpus of any size once, in several processes, to a folder that `open_corpus` maps.

    prepare(corpus=["texts/*.jsonl"], out="prepared")

Each process holds one document and its ids, so memory does not grow with the corpus. A shard
appears only when it is whole; after a kill the same call verifies the finished shards and makes
the rest. The result gives the same rows as `open_corpus` on the same files.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import remove_leftovers, written
from .errors import DataError
from .planning import check_split, corpus_digest, plan_files, rules_again
from .prepared import FORMAT, INDEX, JOB, KIND, SHARDS, read_json
from .shard import Shard, Task
from .sources import Unit
from .tokenise import SPLITS, TRAIN, VALIDATION, token_dtype
from .tokenizer import Tokenizer, load_tokenizer
from .workers import run_tasks

LOCK = "lock"


@dataclass(frozen=True)
class Progress:
    """Shards done so far."""

    done: int
    total: int
    reused: int
    """Of `done`, those that were there before and are intact."""
    documents: int
    tokens: int


@dataclass(frozen=True)
class PreparedReport:
    """What `prepare` made."""

    out: str
    shards: int
    reused: int
    train_tokens: int
    train_documents: int
    train_bytes: int
    validation_tokens: int
    validation_documents: int
    validation_bytes: int


def prepare(
    *,
    corpus: Sequence[str],
    out: str,
    validation: Sequence[str] = (),
    text_field: str = "text",
    tokenizer: str = "byte",
    jobs: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> PreparedReport:
    """Write the tokens of `corpus` and its held-out part to the folder `out`.

    corpus, validation, text_field, tokenizer: as in `open_corpus`. jobs: processes; 0: one a
    CPU that this process may use. on_progress: called in this process after each shard. The
    processes are spawned: a script must call this below `if __name__ == "__main__":`.

    Raises DataError for input that cannot be used, for a folder that holds something else,
    other input or another tokenizer (named), or that another process prepares; WorkerDied when
    a process ends abruptly; OSError when the disk is full.
    """
    if not corpus:
        raise DataError("data.corpus is empty; name the files to prepare")
    if jobs < 0:
        raise DataError(f"jobs={jobs} must not be negative; use 0 for one a CPU")
    encoder = load_tokenizer(tokenizer)
    units, rules = plan_files(corpus, validation, text_field)
    folder = Path(out).expanduser()
    job = _job(units, rules, text_field, encoder)
    with _locked(folder):
        _begin(folder, job)
        finished = (folder / INDEX).is_file()
        if finished:  # verify, and mend what is damaged
            rules = [shard["rule"] for shard in read_json(folder / INDEX)["shards"]]
        tasks = [
            Task(str(folder), number, unit, rule, text_field)
            for number, (unit, rule) in enumerate(zip(units, rules, strict=True))
        ]
        counter = _Counter(len(tasks), on_progress)
        jobs = jobs or len(os.sched_getaffinity(0))
        shards = run_tasks(tasks, tokenizer, jobs, counter)
        again = {} if finished else rules_again(units, rules, [each.tokenised for each in shards])
        if again:
            redo = [Task(str(folder), n, units[n], rule, text_field) for n, rule in again.items()]
            for number, shard in zip(again, run_tasks(redo, tokenizer, jobs, None), strict=True):
                shards[number] = shard
        made = [each.tokenised for each in shards]
        check_split(made)
        index = {
            **{name: job[name] for name in ("kind", "format", "tokenizer")},
            "corpus": corpus_digest(made),
            "dtype": token_dtype(encoder.vocab_size).str,
            "shards": [_summary(each) for each in shards],
        }
        if not finished or read_json(folder / INDEX) != index:
            with written(folder / INDEX) as stream:
                stream.write(json.dumps(index, indent=1).encode("utf-8"))
    train, held = [each.train for each in made], [each.validation for each in made]
    return PreparedReport(
        out=out,
        shards=len(shards),
        reused=counter.reused,
        train_tokens=1 + sum(each.tokens for each in train),
        train_documents=sum(each.documents for each in train),
        train_bytes=sum(each.bytes for each in train),
        validation_tokens=1 + sum(each.tokens for each in held),
        validation_documents=sum(each.documents for each in held),
        validation_bytes=sum(each.bytes for each in held),
    )


def _summary(shard: Shard) -> dict[str, Any]:
    """What the index tells about a shard."""
    fields = ("tokens", "documents", "bytes", "fixes")
    return {
        "rule": shard.record["rule"],
        **{split: {name: shard.record[split][name] for name in fields} for split in SPLITS},
    }


class _Counter:
    """Adds up finished shards and tells about them."""

    def __init__(self, total: int, tell: Callable[[Progress], None] | None) -> None:
        self._total, self._tell = total, tell
        self._done = self._documents = self._tokens = 0
        self.reused = 0

    def __call__(self, shard: Shard) -> None:
        self._done += 1
        self.reused += shard.reused
        made = shard.tokenised
        self._documents += made.documents
        self._tokens += made.train.tokens + made.validation.tokens
        if self._tell:
            self._tell(
                Progress(self._done, self._total, self.reused, self._documents, self._tokens)
            )


def _job(
    units: Sequence[Unit], rules: Sequence[str], text_field: str, tokenizer: Tokenizer
) -> dict[str, Any]:
    """What is to be prepared, as JSON: a folder is continued only by the same job."""
    inputs: dict[str, dict[str, Any]] = {}
    for unit, rule in zip(units, rules, strict=True):
        path = str(Path(unit.path).resolve())
        side = VALIDATION if rule == VALIDATION else TRAIN
        size = Path(unit.path).stat().st_size
        inputs.setdefault(path, {"path": path, "side": side, "bytes": size, "units": []})
        inputs[path]["units"].append([unit.start, unit.stop])
    return {
        "kind": KIND,
        "format": FORMAT,
        "tokenizer": tokenizer.fingerprint,
        "text_field": text_field,
        "inputs": list(inputs.values()),
    }


def _begin(folder: Path, job: dict[str, Any]) -> None:
    """Write the job down, or see that the folder was begun with the same one. Raises DataError."""
    if (folder / JOB).exists():
        _check_same(folder, read_json(folder / JOB), job)
    else:
        (folder / SHARDS).mkdir(exist_ok=True)
        with written(folder / JOB) as stream:
            stream.write(json.dumps(job, indent=1).encode("utf-8"))


def _check_same(folder: Path, before: dict[str, Any], job: dict[str, Any]) -> None:
    begun = f"out={str(folder)!r} was begun with"
    fix = "use the same settings and files, or prepare into a new folder"
    for name in ("tokenizer", "text_field"):
        if before[name] != job[name]:
            raise DataError(f"{begun} {name} {before[name]}, now {job[name]}; {fix}")
    old = {each["path"]: each for each in before["inputs"]}
    new = {each["path"]: each for each in job["inputs"]}
    for path in dict.fromkeys([*old, *new]):
        if path not in new:
            raise DataError(f"{begun} the file {path}, which is no longer named; {fix}")
        if path not in old:
            raise DataError(f"{begun} other files, without {path}; {fix}")
        for name, value in old[path].items():
            if new[path][name] != value:
                raise DataError(
                    f"{begun} other input: {path} changed ({name} {value}, "
                    f"now {new[path][name]}); {fix}"
                )
    if list(old) != list(new):
        raise DataError(f"{begun} its input in another order; {fix}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Make the folder and hold it; the system lets go when this process ends, however it does."""
    name = f"out={str(folder)!r}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / JOB).exists():
            others = [each.name for each in folder.iterdir() if not _own(each.name)]
            if others:
                raise DataError(
                    f"{name} holds other files ({min(others)}); name a new or empty folder"
                )
        stream = (folder / LOCK).open("w")
    except OSError as error:
        raise DataError(
            f"{name} cannot be made a folder ({error.strerror}); name another"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(f"{name} is being prepared by another process; wait for it") from error
        _clear(folder)
        try:
            yield
        finally:
            _clear(folder)


def _own(name: str) -> bool:
    """Whether a prepare that died before its job file can have left `name`."""
    return name in (SHARDS, LOCK) or name.startswith(JOB)


def _clear(folder: Path) -> None:
    remove_leftovers(folder)
    remove_leftovers(folder / SHARDS)
