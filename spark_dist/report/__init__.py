"""One self-contained HTML page about a run: no script, no network, nothing beside it."""

from .page import write_report
from .record import ReportError

__all__ = ["ReportError", "write_report"]
