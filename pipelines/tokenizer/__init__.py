"""Text to token ids and back, behind one interface."""

from .base import Tokenizer
from .load import load_tokenizer

__all__ = ["Tokenizer", "load_tokenizer"]
