"""Files to documents: text, JSONL and Parquet, read in units that can be worked on apart."""

from .files import expand
from .unit import Document, Unit, documents, plan_units, source_digest

__all__ = ["Document", "Unit", "documents", "expand", "plan_units", "source_digest"]
