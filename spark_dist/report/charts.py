"""Line charts and heat maps as SVG inside HTML.

The drawing stretches with the page and its strokes do not; labels are HTML beside it, so that
text has the same size on a phone and on a wide screen. A column under the pointer tells its
values through the browser's own tooltip: there is no script.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from .scale import Point, bounds, label, labels, mean, stretches, thin, ticks

SIZE = 1000
"""Width and height of the drawing's own coordinates."""
MOST_POINTS = 600
MOST_COLUMNS = 120
NOISY = 300
"""Points above which a noisy line is drawn faintly, with its running mean on top."""
OVERLAP = 2
"""By how much cells reach under the next ones, so that rounding leaves no seams."""


@dataclass(frozen=True)
class Series:
    """One line. color: a CSS colour. dots: mark each point, for values far apart.

    noisy: show the running mean when there are many points.
    """

    name: str
    points: Sequence[Point]
    color: str
    dots: bool = False
    noisy: bool = False


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str = "",
    show: Callable[[float], str] | None = None,
    include: Sequence[float] = (),
    legend: bool = True,
) -> str:
    """A chart over steps. include: values the vertical axis must reach, such as 0. show: a value
    as text.

    A series without a single known value is left out; without any series the chart says so.
    """
    drawn = [s for s in series if any(y is not None for _, y in s.points)]
    if not drawn:
        return _figure(title, unit, "", '<p class="none">nothing to show yet</p>')
    xs = [x for s in drawn for x, _ in s.points]
    ys = [y for s in drawn for _, y in s.points if y is not None]
    left, right = (min(xs), max(xs)) if max(xs) > min(xs) else (min(xs) - 1, max(xs) + 1)
    low, high = bounds(ys, include=include)

    def place(x: float, y: float) -> tuple[float, float]:
        across, up = (x - left) / (right - left), (y - low) / (high - low)
        return round(SIZE * across, 1), round(SIZE * (1 - up), 1)

    levels = ticks(low, high, 5)
    lines = "".join(
        f'<path class="grid" d="M0 {place(left, y)[1]}H{SIZE}"/>' for y in levels
    ) + "".join(_line(s, place) for s in drawn)
    svg = _svg(title, lines + _columns(drawn, left, right, show or label))
    marks = labels(levels) if show is None else [show(y) for y in levels]
    y_labels = [
        (100 - place(left, y)[1] / SIZE * 100, m) for y, m in zip(levels, marks, strict=True)
    ]
    at = ticks(left, right, 5, whole=True) if max(xs) > min(xs) else [xs[0]]
    x_labels = [((x - left) / (right - left) * 100, m) for x, m in zip(at, labels(at), strict=True)]
    key = _legend([(s.name, s.color) for s in drawn]) if legend else ""
    return _figure(title, unit, key, _plot(svg, y_labels, x_labels))


def heat_map(
    title: str,
    steps: Sequence[int],
    rows: Sequence[Sequence[float | None]],
    target: float,
    *,
    show: Callable[[float], str],
    unit: str = "",
) -> str:
    """Layers over steps, coloured by value / target from a half (or less) to twice (or more).

    rows: one a step, one value a layer; None is left blank. Many steps are averaged in columns.
    """
    depth = max((len(row) for row in rows), default=0)
    if not depth:
        return _figure(title, unit, "", '<p class="none">nothing to show yet</p>')
    columns = stretches(len(rows), MOST_COLUMNS if depth <= 12 else MOST_COLUMNS // 2)
    wide, tall = SIZE / len(columns), SIZE / depth
    across, down = wide + OVERLAP, tall + OVERLAP
    cells = []
    for index, column in enumerate(columns):
        first, last = steps[column[0]], steps[column[-1]]
        when = f"step {first}" if first == last else f"steps {first} to {last}"
        for layer in range(depth):
            value = mean([rows[i][layer] if layer < len(rows[i]) else None for i in column])
            said = (
                "no reading" if value is None else f"{show(value)}, {value / target:.2f} x target"
            )
            cells.append(
                f'<rect class="{_shade(value, target)}" x="{wide * index:.1f}"'
                f' y="{tall * layer:.1f}" width="{across:.2f}" height="{down:.2f}">'
                f"<title>{escape(f'{when}, layer {layer}: {said}')}</title></rect>"
            )
    every = -(-depth // 14)
    y_labels = [
        (100 - (layer + 0.5) / depth * 100, f"layer {layer}") for layer in range(0, depth, every)
    ]
    at = ticks(steps[0], steps[-1], 5, whole=True)
    x_labels = [
        ((bisect(steps, step) - 0.5) / len(steps) * 100, mark)
        for step, mark in zip(at, labels(at), strict=True)
    ]
    height = depth * (30 if depth <= 8 else 20 if depth <= 26 else 13)
    ramp = "".join(f'<i class="h{i}"></i>' for i in range(13))
    key = (
        f'<div class="legend ramp"><span>{escape(show(target / 2))}</span><span>{ramp}</span>'
        f"<span>{escape(show(2 * target))}</span>"
        f"<span>middle: the target, {escape(show(target))}</span></div>"
    )
    svg = _svg(title, "".join(cells), "cells")
    return _figure(title, unit, key, _plot(svg, y_labels, x_labels, height))


def _shade(value: float | None, target: float) -> str:
    """Class of one of 13 colours, by the logarithm of value / target."""
    if value is None:
        return "blank"
    if value <= 0:
        return "h0"
    # Up to the ratio 2 ** (1 / 12), about 6 %, a cell counts as on target.
    return f"h{round(6 * max(-1.0, min(1.0, math.log2(value / target)))) + 6}"


def _line(series: Series, place: Callable[[float, float], tuple[float, float]]) -> str:
    """The path of a series and, above it, its running mean where there are many points."""
    drawn = _path(thin(series.points, MOST_POINTS), place, series)
    if not series.noisy or len(series.points) <= NOISY:
        return drawn
    smooth: list[Point] = []
    for part in stretches(len(series.points), NOISY // 2):
        value = mean([series.points[i][1] for i in part])
        smooth.append((series.points[part[len(part) // 2]][0], value))
    return f'<g class="faint">{drawn}</g>{_path(smooth, place, series)}'


def _path(
    points: Sequence[Point], place: Callable[[float, float], tuple[float, float]], series: Series
) -> str:
    """A line, broken where a value is not known; its dots are strokes of no length."""
    path, alone, down = [], [], False
    for index, (x, y) in enumerate(points):
        if y is None:
            down = False
            continue
        across, up = place(x, y)
        path.append(f"{'L' if down else 'M'}{across} {up}")
        follows = index + 1 < len(points) and points[index + 1][1] is not None
        if series.dots or not (down or follows):
            alone.append(f"M{across} {up}h.01")
        down = True
    style = f'style="stroke:{series.color}"'
    marks = f'<path class="dot" {style} d="{"".join(alone)}"/>' if alone else ""
    return f'<path class="line" {style} d="{"".join(path)}"/>{marks}'


def _columns(
    series: Sequence[Series], left: float, right: float, show: Callable[[float], str]
) -> str:
    """Invisible columns over the chart, each with the values of one step."""
    if len(series) > 12:
        return ""
    by_step: dict[float, list[str]] = {}
    for one in series:
        for x, y in thin(one.points, MOST_POINTS // 2):
            said = "-" if y is None else show(y)
            by_step.setdefault(x, []).append(f"{one.name}: {said}" if one.name else said)
    steps = sorted(by_step)
    found = []
    for before, x, after in zip([left, *steps], steps, [*steps[1:], right], strict=False):
        begin = SIZE * ((before + x) / 2 - left) / (right - left)
        end = SIZE * ((x + after) / 2 - left) / (right - left)
        text = escape(f"step {x:g}\n" + "\n".join(by_step[x]))
        found.append(
            f'<rect class="hit" x="{begin:.1f}" y="0" width="{max(end - begin, 1):.1f}"'
            f' height="{SIZE}"><title>{text}</title></rect>'
        )
    return "".join(found)


def _svg(title: str, content: str, kind: str = "lines") -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(title)}">{content}</svg>'
    )


def _plot(
    svg: str,
    y_labels: Sequence[tuple[float, str]],
    x_labels: Sequence[tuple[float, str]],
    height: int | None = None,
) -> str:
    """The drawing with its labels; places in per cent from the lower left."""
    widest = max((text for _, text in y_labels), key=len, default="")
    up = "".join(f'<span style="bottom:{at:.1f}%">{escape(text)}</span>' for at, text in y_labels)
    across = "".join(f'<span style="left:{at:.1f}%">{escape(text)}</span>' for at, text in x_labels)
    tall = "" if height is None else f' style="height:{height}px"'
    return (
        f'<div class="plot"><div class="up"><b>{escape(widest)}</b>{up}</div>'
        f'<div class="area"{tall}>{svg}</div><div></div><div class="across">{across}</div></div>'
    )


def _legend(entries: Sequence[tuple[str, str]]) -> str:
    items = "".join(
        f'<span><i style="background:{color}"></i>{escape(name)}</span>'
        for name, color in entries
        if name
    )
    return f'<div class="legend">{items}</div>' if items else ""


def _figure(title: str, unit: str, key: str, body: str) -> str:
    small = f" <small>{escape(unit)}</small>" if unit else ""
    return f"<figure><figcaption>{escape(title)}{small}</figcaption>{key}{body}</figure>"
