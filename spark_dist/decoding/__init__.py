"""Text from a checkpoint."""

from .generator import Generation, Generator, continue_text

__all__ = ["Generation", "Generator", "continue_text"]
