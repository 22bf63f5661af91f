"""What every tokenizer offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Tokenizer(Protocol):
    """Text to ids and back. `encode` never yields `eos_id`: documents are joined by it."""

    @property
    def vocab_size(self) -> int:
        """Number of ids; every id is below it."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills rows. Padding is told from text by segment 0, so this may equal `eos_id`."""
        ...

    @property
    def bos_id(self) -> int:
        """`eos_id` where the file defines none. The packed rows do not use it."""
        ...

    @property
    def eos_id(self) -> int:
        """Stands before, between and after documents; a prompt starts with it, too."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal exactly when the ids mean the same: kind and digest of the file."""
        ...

    @property
    def token_bytes(self) -> np.ndarray:
        """int32[vocab_size]: UTF-8 bytes of the text that each id stands for; special ids 0."""
        ...

    def encode(self, text: str) -> np.ndarray:
        """int32[n]: the ids of `text` alone, no special ids added or recognised in it."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`; special ids are left out, broken UTF-8 becomes U+FFFD."""
        ...
