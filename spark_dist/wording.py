"""Numbers, times and foreign text as a person reads them, on the screen and in the report."""

from __future__ import annotations

import math
import unicodedata


def count(number: float | None) -> str:
    """About three digits and a unit: 950, 12.3 K, 1.34 M, 2.6 B, 1.2 T."""
    if number is None or not math.isfinite(number):
        return "-"
    size, unit = float(number), ""
    for unit in ("", " K", " M", " B", " T"):
        if abs(size) < 999.5 or unit == " T":
            break
        size /= 1000
    if not unit:
        return f"{size:.0f}" if size == int(size) else f"{size:.3g}"
    return f"{size:.0f}{unit}" if size >= 100 else f"{size:.3g}{unit}"


def duration(seconds: float | None) -> str:
    """0.25 s, 12 s, 2 min 05 s, 3 h 07 min, 2 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def percent(fraction: float | None) -> str:
    """A fraction as 8.1 %."""
    if fraction is None or not math.isfinite(fraction):
        return "-"
    return f"{100 * fraction:.1f} %"


def number(value: float | None, digits: int = 4) -> str:
    """A fixed number of digits after the point; a dash for what is not there."""
    return "-" if value is None else f"{value:.{digits}f}"


def printable(text: str) -> str:
    """`text` without characters that steer a terminal: each becomes U+FFFD.

    A model writes any byte it likes, escape sequences among them. Line ends and tabs stay.
    """
    text = text.replace("\r\n", "\n")
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn") else "�"
        for c in text
    )
