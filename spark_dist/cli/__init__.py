"""The command line: `spark-dist COMMAND ...`."""

from .main import main

__all__ = ["main"]
