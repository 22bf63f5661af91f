"""One unit tokenised into the files of one shard; runs in the processes of `prepare`."""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .atomic import written
from .errors import DataError
from .prepared import FORMAT, KIND, read_json, shard_file
from .sources import Unit, documents, source_digest
from .tokenise import SPLITS, Share, Tokenised, tokenise
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Task:
    """Shard `number` of the folder `out`: `unit` under a hold-out rule."""

    out: str
    number: int
    unit: Unit
    rule: str
    text_field: str


@dataclass(frozen=True)
class Shard:
    """A finished shard. `record` is its JSON file."""

    tokenised: Tokenised
    record: dict[str, Any]
    reused: bool
    """It was there and its files are intact."""


def make_shard(task: Task, tokenizer: Tokenizer) -> Shard:
    """Verify the shard if it is finished, else make it.

    Raises DataError when the input changed since the shard was made, and as `documents` does.
    """
    found = _finished(task)
    if found is not None:
        return found
    folder, number = Path(task.out), task.number
    source = source_digest(task.unit)
    sums = {split: hashlib.sha256() for split in SPLITS}
    with ExitStack() as stack:
        files = {
            split: stack.enter_context(written(shard_file(folder, number, f"{split}.tokens")))
            for split in SPLITS
        }

        def write(split: str, ids: np.ndarray) -> None:
            raw = ids.tobytes()
            sums[split].update(raw)
            files[split].write(raw)

        texts = documents(task.unit, text_field=task.text_field)
        made = tokenise(texts, tokenizer, task.rule, write)
    record: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "unit": asdict(task.unit),
        "rule": task.rule,
        "source": source,
        "documents": made.documents,
        "smallest": made.smallest,
    }
    for split in SPLITS:
        share = made.share(split)
        raw = share.fixes.tobytes()
        fixes = shard_file(folder, number, f"{split}.fixes")
        if raw:
            with written(fixes) as stream:
                stream.write(raw)
        else:
            fixes.unlink(missing_ok=True)
        record[split] = {
            "tokens": share.tokens,
            "documents": share.documents,
            "bytes": share.bytes,
            "digest": share.digest,
            "fixes": len(share.fixes),
            "sha256": {"tokens": sums[split].hexdigest(), "fixes": _sha256(raw)},
        }
    with written(shard_file(folder, number, "json")) as stream:
        stream.write(json.dumps(record, indent=1).encode("utf-8"))
    return Shard(made, record, reused=False)


def _finished(task: Task) -> Shard | None:
    """The shard on the disk; None when there is none, it is damaged or of another rule."""
    folder, number = Path(task.out), task.number
    path = shard_file(folder, number, "json")
    if not path.exists():
        return None
    record = read_json(path)
    unit = task.unit
    if record["unit"] != asdict(unit) or record["source"] != source_digest(unit):
        raise DataError(
            f"{unit.path}: changed since {task.out} was begun (shard {number}); "
            "restore the file, or prepare into a new folder"
        )
    if record["rule"] != task.rule or not _intact(folder, number, record):
        return None
    shares = {
        split: Share(
            record[split]["tokens"],
            record[split]["documents"],
            record[split]["bytes"],
            record[split]["digest"],
        )
        for split in SPLITS
    }
    return Shard(
        Tokenised(**shares, documents=record["documents"], smallest=record["smallest"]),
        record,
        reused=True,
    )


def _intact(folder: Path, number: int, record: dict[str, Any]) -> bool:
    for split in SPLITS:
        for kind, expected in record[split]["sha256"].items():
            path = shard_file(folder, number, f"{split}.{kind}")
            if kind == "fixes" and not record[split]["fixes"]:
                continue
            try:
                with path.open("rb") as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError:
                return False
            if found != expected:
                return False
    return True


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
