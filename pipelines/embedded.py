"""The corpus that comes with the package: 42 works of Shakespeare, one document each."""

from __future__ import annotations

import hashlib
import json
import lzma
from pathlib import Path

from .errors import DataError

FOLDER = Path(__file__).parent / "corpus"

#: Plays that are never trained on. Everything else is.
HELD_OUT = ("hamlet", "tempest")


def shakespeare() -> dict[str, str]:
    """Name -> text of every work, in order of the names (5,057,198 bytes of ASCII in all).

    Raises DataError when the file is missing or its SHA-256 is not the recorded one.
    """
    try:
        index = json.loads((FOLDER / "shakespeare.json").read_text(encoding="utf-8"))
        whole = lzma.decompress((FOLDER / "shakespeare.txt.xz").read_bytes())
    except (OSError, ValueError, lzma.LZMAError) as error:
        raise DataError(
            f"the embedded corpus in {FOLDER} cannot be read ({error}); reinstall the package"
        ) from error
    digest = hashlib.sha256(whole).hexdigest()
    if digest != index["sha256"]:
        raise DataError(
            f"the embedded corpus in {FOLDER} is damaged: SHA-256 is {digest[:16]}, "
            f"not {index['sha256'][:16]}; reinstall the package"
        )
    return {
        work["name"]: whole[work["offset"] : work["offset"] + work["bytes"]].decode("ascii")
        for work in index["works"]
    }
