"""tyro, with its complaints folded into one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import TypeVar

import tyro

from ..errors import UserError

Options = TypeVar("Options")


def parse(
    kind: type[Options],
    args: Sequence[str],
    *,
    prog: str,
    description: str,
    default: Options | None = None,
) -> Options:
    """Options of type `kind` from the arguments. `--help` prints and exits.

    Raises UserError for arguments that do not fit.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(
                kind,
                args=list(args),
                prog=prog,
                description=description,
                default=tyro.MISSING_NONPROP if default is None else default,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as end:
        if not end.code:
            raise
    raise UserError(f"{_fold(complaint.getvalue())}; see {prog} --help")


def _fold(box: str) -> str:
    """The first paragraph of tyro's framed message, and its nearest suggestion, as one line.

    Where the encoding has no lines to draw, the frame's title is a paragraph of its own.
    """
    lines = [line.strip(" │") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    paragraphs = re.split(r"(?:^|\n)[─-]{9,}\n", "\n".join(lines))
    if "╭" not in box:
        paragraphs = paragraphs[1:] or paragraphs
    text = " ".join(paragraphs[0].split())
    text = re.sub(r"^Error parsing ([^:]+): ", r"\1: ", text)
    for paragraph in paragraphs[1:]:
        if paragraph.startswith("Perhaps you meant"):
            found = re.search(r"--[\w.-]+", paragraph)
            if found:
                text += f"; did you mean {found.group()}?"
    return text.rstrip(".").replace("Unrecognized options", "unknown option")
