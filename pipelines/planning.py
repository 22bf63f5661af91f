"""What a set of files becomes: units in order, their hold-out rules, the corpus digest.

Shared by `open_corpus`, which keeps the tokens in memory, and `prepare`, which writes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from . import holdout
from .errors import DataError
from .sources import Unit, expand, plan_units
from .tokenise import Tokenised


def plan_files(
    corpus: Sequence[str], validation: Sequence[str], text_field: str
) -> tuple[list[Unit], list[str]]:
    """The units of all files, corpus first, and the first hold-out rule of each.

    Raises DataError as `expand` and `plan_units` do, and for a file named on both sides.
    """
    files = expand(corpus, field="data.corpus")
    held = expand(validation, field="data.validation")
    both = {path.resolve() for path in files} & {path.resolve() for path in held}
    if both:
        raise DataError(
            f"{min(both)} is in data.corpus and in data.validation; name it in one of them"
        )
    units = plan_units(files, text_field=text_field)
    rules = [holdout.TRAIN if held else holdout.HASH] * len(units)
    units += plan_units(held, text_field=text_field)
    return units, rules + [holdout.VALIDATION] * (len(units) - len(rules))


def rules_again(
    units: Sequence[Unit], rules: Sequence[str], made: Sequence[Tokenised]
) -> dict[int, str]:
    """Unit number -> new rule for those to tokenise again (`holdout.second_pass`).

    `made` holds what tokenising gave, one a unit. Raises DataError for a file without documents.
    """
    counts: dict[str, int] = {}
    for unit, result in zip(units, made, strict=True):
        counts[unit.path] = counts.get(unit.path, 0) + result.documents
    for path, count in counts.items():
        if count == 0:
            raise DataError(f"{path}: no text from byte 0 on; remove the file from the corpus")
    if holdout.HASH not in rules:
        return {}
    return holdout.second_pass(
        [holdout.Outcome(each.documents, each.validation.documents, each.smallest) for each in made]
    )


def check_split(made: Sequence[Tokenised]) -> None:
    """Raises DataError when nothing is held out, or nothing is left to train on."""
    if not sum(each.validation.documents for each in made):
        raise DataError("data.corpus is too small to hold anything out; name --data.validation")
    if not sum(each.train.documents for each in made):
        raise DataError(
            "data.corpus is held out entirely, its documents being alike; name --data.validation"
        )


def corpus_digest(made: Sequence[Tokenised]) -> str:
    """32 hex digits over all documents, their order and their split."""
    lines = [f"{each.train.digest} {each.validation.digest}\n" for each in made]
    return hashlib.sha256("".join(lines).encode("ascii")).hexdigest()[:32]
