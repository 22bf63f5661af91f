"""From values to places on a chart: ticks, thinning, bins. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float | None]


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """At most `most` round values within [low, high], at least one. whole: integers only."""
    if not high > low:
        return [low]
    start = math.floor(math.log10(max((high - low) / most, 1e-300)))
    for exponent in range(start, 309):
        for factor in (1, 2, 5):
            step = factor * 10.0**exponent
            if whole and step < 1:
                continue
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first + 1 <= most:
                # Twelve digits: 0.3, not 0.30000000000000004.
                found = [float(f"{i * step:.12g}") for i in range(first, last + 1)]
                return list(dict.fromkeys(found)) or [low]
    return [low]


def bounds(values: Sequence[float], *, include: Sequence[float] = ()) -> tuple[float, float]:
    """A range with a margin of a twentieth; one around the value when there is only one."""
    every = [*values, *include]
    if not every:
        return 0.0, 1.0
    low, high = min(every), max(every)
    if low == high:
        margin = abs(low) * 0.1 or 1.0
        return low - margin, high + margin
    margin = (high - low) / 20
    return low - margin if low not in include else low, high + margin


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most about `most` points that look the same: of each stretch its lowest and highest."""
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    stretches = max(most // 2, 1)
    for index in range(stretches):
        begin = len(points) * index // stretches
        part = points[begin : len(points) * (index + 1) // stretches]
        known = [p for p in part if p[1] is not None]
        if not known:
            kept.append(part[0])
            continue
        ends = {min(known, key=_height), max(known, key=_height)}
        if index == 0:
            ends.add(points[0])
        if index == stretches - 1:
            ends.add(points[-1])
        kept += sorted(ends, key=lambda p: p[0])
    return kept


def stretches(count: int, most: int) -> list[range]:
    """`count` items in at most `most` runs of nearly equal length, in order."""
    runs = min(count, most)
    return [range(count * i // runs, count * (i + 1) // runs) for i in range(runs)]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def labels(values: Sequence[float]) -> list[str]:
    """The ticks of an axis in few characters and one unit: 0.002, 12, 5,000, 150 K."""
    size = max((abs(value) for value in values), default=0.0)
    for least, factor, unit in ((1e9, 1e9, " B"), (1e6, 1e6, " M"), (1e5, 1e3, " K")):
        if size >= least:
            return [f"{value / factor:g}{unit}" if value else "0" for value in values]
    return [label(value) for value in values]


def label(value: float) -> str:
    """One value: 0.00215, 12.5, 3,210."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _height(point: Point) -> float:
    return point[1] if point[1] is not None else 0.0
