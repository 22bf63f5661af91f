"""Which text is held out from training.

With validation files given, exactly those. Otherwise every hundredth document by hash: a
document and its copies always land on the same side, wherever they stand. Small corpora:

* fewer than ten documents: the last tenth of each, cut after a blank line, a line or a word;
* none hit by the hash: the document with the smallest hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

EVERY = 100
FEW = 10

#: Rules of a unit: HASH as above; TRAIN and VALIDATION take everything; TAILS the last tenths;
#: "only:<digest>" that one document.
HASH, TRAIN, VALIDATION, TAILS, ONLY = "hash", "train", "validation", "tails", "only:"

BREAKS = (re.compile(r"\n\s*\n"), re.compile(r"\n"), re.compile(r"\s"), re.compile(r""))


def document_digest(text: str) -> bytes:
    """16 bytes that identify `text`."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).digest()


def divide(text: str, digest: bytes, rule: str) -> tuple[str, str]:
    """(training text, held-out text) of one document under `rule`; together they are `text`."""
    if rule == TAILS:
        cut = _tail(text)
        return text[:cut], text[cut:]
    if rule == HASH:
        held = int.from_bytes(digest[:8], "little") % EVERY == 0
    elif rule.startswith(ONLY):
        held = digest.hex() == rule.removeprefix(ONLY)
    else:
        held = rule == VALIDATION
    return ("", text) if held else (text, "")


def _tail(text: str) -> int:
    """Where the last tenth begins, at the best break behind nine tenths."""
    size = len(text)
    nine_tenths = max(1, size * 9 // 10)
    for pattern in BREAKS:
        found = pattern.search(text, nine_tenths)
        if found and found.end() < size:
            return found.end()
    return size


@dataclass(frozen=True)
class Outcome:
    """What the rule HASH made of one unit."""

    documents: int
    held_out: int
    smallest: str | None
    """Hex digest of the document with the smallest one; None for a unit without documents."""


def second_pass(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Unit number -> rule for the units to read again because the corpus is small."""
    if sum(each.documents for each in outcomes) < FEW:
        return dict.fromkeys(range(len(outcomes)), TAILS)
    if any(each.held_out for each in outcomes):
        return {}
    smallest = min(each.smallest for each in outcomes if each.smallest is not None)
    return {
        number: ONLY + smallest for number, each in enumerate(outcomes) if each.smallest == smallest
    }
