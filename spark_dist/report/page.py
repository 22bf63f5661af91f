"""Puts the page together and writes it whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from . import sections
from .record import Record, ReportError, read_record
from .style import STYLE

# Nothing may be loaded and no script may run, whatever a corpus or a model put into the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

PARTS = (
    sections.header,
    sections.summary,
    sections.learning,
    sections.speed,
    sections.sparsity,
    sections.time_spent,
    sections.warnings,
    sections.sample,
    sections.configuration,
)


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Writes `run_dir`/report.html and returns its path. The same files give the same page.

    Raises ReportError naming the file when `run_dir` is no run, has logged nothing yet, or is
    damaged, and when the page cannot be written.
    """
    folder = Path(run_dir)
    page = render(read_record(folder))
    path = folder / "report.html"
    scratch = folder / "report.html.tmp"
    try:
        scratch.write_text(page, encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise ReportError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def render(record: Record) -> str:
    """The whole page."""
    body = "\n".join(part(record) for part in PARTS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{sections.text(record.name)}: spark-dist report</title>\n"
        f"<style>{STYLE}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
    )
