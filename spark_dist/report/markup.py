"""Sections, tables and text as HTML. Everything foreign passes through `text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..wording import printable


def section(title: str, body: str) -> str:
    name = title.lower().replace(" ", "-")
    return f'<section id="{name}"><h2>{text(title)}</h2>{body}</section>'


def table(names: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already. right: columns of numbers."""
    kinds = [' class="n"' if i in right else ' class="any"' for i in range(len(names))]
    head = "".join(f"<th{k}>{text(n)}</th>" for n, k in zip(names, kinds, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{k}>{cell}</td>' for cell, k in zip(row, kinds, strict=True))}</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def text(value: object) -> str:
    """Anything as text that is safe inside HTML and attributes."""
    return escape(printable(str(value)))
