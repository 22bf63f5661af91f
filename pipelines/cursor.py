"""The place in the data order, and whether it belongs to this data.

A cursor is `{"next_sample": int, "fingerprint": {...}}`, plain JSON. Samples are numbered over
all epochs and hosts, so that the number of hosts is not part of the place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import DataError

#: Raised whenever the same settings would give another order of samples.
FORMAT = 1

#: Field of a fingerprint -> what to call it.
FIELDS = {
    "format": "data format",
    "corpus": "data.corpus digest",
    "tokenizer": "data.tokenizer",
    "seed": "data.seed",
    "sequence_length": "data.sequence_length",
    "tokens": "training tokens",
}


def check_fingerprint(cursor: Any, fingerprint: Mapping[str, str | int]) -> int:
    """`cursor`'s sample number. Raises DataError, naming each field that differs."""
    saved = cursor.get("fingerprint") if isinstance(cursor, Mapping) else None
    sample = cursor.get("next_sample") if isinstance(cursor, Mapping) else None
    if not isinstance(saved, Mapping) or not isinstance(sample, int) or sample < 0:
        raise DataError(
            f"data cursor {cursor!r} is not one; it needs next_sample and fingerprint: "
            "restore another checkpoint"
        )
    differing = [
        f"{FIELDS.get(name, name)} (saved {saved.get(name, 'nothing')}, "
        f"now {fingerprint.get(name, 'nothing')})"
        for name in dict.fromkeys([*FIELDS, *saved, *fingerprint])
        if saved.get(name) != fingerprint.get(name)
    ]
    if differing:
        raise DataError(
            f"the saved place in the data belongs to other data: {'; '.join(differing)}; "
            "restore these settings, or start a new run"
        )
    return sample
