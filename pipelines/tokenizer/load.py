"""From the name in `data.tokenizer` to a tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..errors import DataError
from .base import Tokenizer
from .byte import ByteTokenizer


def load_tokenizer(name_or_path: str) -> Tokenizer:
    """ "byte", a SentencePiece model (*.model) or a `tokenizers` file (*.json).

    Raises DataError for another name, an unreadable or broken file, or one without an
    end-of-text token.
    """
    if name_or_path == "byte":
        return ByteTokenizer()
    suffix = Path(name_or_path).suffix
    if suffix not in (".model", ".json"):
        raise DataError(
            f"data.tokenizer={name_or_path!r} is unknown; use byte, "
            "a SentencePiece file (*.model) or a tokenizers file (*.json)"
        )
    try:
        content = Path(name_or_path).expanduser().read_bytes()
    except OSError as error:
        raise DataError(
            f"data.tokenizer={name_or_path!r} cannot be read ({error.strerror}); name a file"
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    # Each library is loaded only when a file asks for it.
    if suffix == ".model":
        from .sentencepiece_file import SentencePieceTokenizer

        return SentencePieceTokenizer(content, name_or_path, f"sentencepiece:{digest}")
    from .json_file import JsonTokenizer

    return JsonTokenizer(content, name_or_path, f"tokenizers:{digest}")
