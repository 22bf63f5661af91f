"""The folder that `prepare` makes, and how it is read.

    job.json              what is being prepared: written first
    shards/00000.json     one unit finished: counts and digests, written after its files
    shards/00000.train.tokens, .validation.tokens     ids, uint16 or uint32
    shards/00000.train.fixes, .validation.fixes       byte fixes (`tokenise.FIX`), where any
    index.json            the whole: written last; without it the folder is unfinished

The ids are those of `doc eos doc eos ...`; nothing depends on a sequence length.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError
from .stream import Part, Streams, TokenStream
from .tokenise import FIX, SPLITS, TRAIN, VALIDATION
from .tokenizer import Tokenizer

#: Raised whenever the files change their meaning.
FORMAT = 1
KIND = "spark-dist tokens"

JOB, INDEX, SHARDS = "job.json", "index.json", "shards"


def is_prepared(name: str) -> bool:
    """Whether `name` is a folder that `prepare` made or began."""
    folder = Path(name).expanduser()
    return (folder / JOB).is_file() and (folder / SHARDS).is_dir()


def shard_file(folder: Path, number: int, ending: str) -> Path:
    """Path of a file of shard `number`; `ending` as in "json" or "train.tokens"."""
    return folder / SHARDS / f"{number:05d}.{ending}"


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`. Raises DataError when it cannot be read or is not this format."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the corpus again") from error
    if not isinstance(found, dict) or found.get("kind") != KIND or found.get("format") != FORMAT:
        raise DataError(f"{path}: not format {FORMAT} of {KIND}; prepare the corpus again")
    return found


def open_prepared(name: str, tokenizer: Tokenizer) -> Streams:
    """Map the folder `name`; sizes are checked, contents not (run `prepare` again for that).

    Raises DataError when it is unfinished, incomplete or made with another tokenizer.
    """
    folder = Path(name).expanduser()
    if not (folder / INDEX).is_file():
        raise DataError(
            f"data.corpus={name!r} is unfinished; run the same `data prepare` again to finish it"
        )
    index = read_json(folder / INDEX)
    if index["tokenizer"] != tokenizer.fingerprint:
        raise DataError(
            f"data.corpus={name!r} was prepared with tokenizer {index['tokenizer']}, "
            f"data.tokenizer is {tokenizer.fingerprint}; set data.tokenizer to the same file"
        )
    streams = {}
    for split in SPLITS:
        parts = [
            _part(folder, number, split, shard[split], np.dtype(index["dtype"]))
            for number, shard in enumerate(index["shards"])
            if shard[split]["tokens"]
        ]
        streams[split] = TokenStream(parts, tokenizer.eos_id)
    return Streams(streams[TRAIN], streams[VALIDATION], index["corpus"])


def _part(folder: Path, number: int, split: str, share: dict[str, Any], dtype: np.dtype) -> Part:
    ids = shard_file(folder, number, f"{split}.tokens")
    fixes = shard_file(folder, number, f"{split}.fixes")
    _check_size(ids, share["tokens"] * dtype.itemsize)
    if share["fixes"]:
        _check_size(fixes, share["fixes"] * FIX.itemsize)
    return Part(
        share["tokens"],
        share["documents"],
        share["bytes"],
        _mapped(ids, dtype, fixes if share["fixes"] else None),
    )


def _mapped(
    ids: Path, dtype: np.dtype, fixes: Path | None
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    def load() -> tuple[np.ndarray, np.ndarray]:
        none = np.zeros(0, FIX)
        return (
            np.memmap(ids, dtype, "r"),
            none if fixes is None else np.memmap(fixes, FIX, "r"),
        )

    return load


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); run the same `data prepare` again"
        ) from error
    if found != size:
        raise DataError(
            f"{path}: {found} bytes instead of {size}; run the same `data prepare` again"
        )
