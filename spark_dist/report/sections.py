"""The parts of the page, top to bottom. Each takes the record and gives HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..wording import count, duration, percent
from ..wording import number as fixed
from .charts import Series, heat_map, line_chart
from .markup import section, table, text
from .record import Record, layers, number
from .scale import Point, mean
from .times import attempts, intervals, phases, wait_share

LAST = 20
"""Logged steps at the end over which the table of layers averages."""
COLORS = {
    "start-up": "var(--c)",
    "compile": "color-mix(in oklab,var(--c) 45%,var(--card))",
    "training step": "var(--a)",
    "data wait": "var(--b)",
    "evaluation": "color-mix(in oklab,var(--a) 50%,var(--card))",
    "save": "color-mix(in oklab,var(--b) 50%,var(--card))",
    "sample": "var(--last)",
    "other": "var(--rule)",
}


def header(record: Record) -> str:
    """The run's name, how it stands and what it reads."""
    preset = record.config.get("preset")
    said = f"preset {preset}" if preset else ""
    corpus = str(record.header.get("corpus") or "")
    word, kind, detail = state(record)
    return (
        f"<header><h1>{text(record.name)}</h1>"
        f'<span class="state {kind}">{text(word)}</span>'
        f"<p>{text(' · '.join(part for part in (said, corpus, detail) if part))}</p></header>"
    )


def state(record: Record) -> tuple[str, str, str]:
    """In a word, the class of its colour, and the detail that the ledger gives."""
    tries = attempts(record)
    if not tries or tries[-1].cause is None:
        return "still going, or cut off", "open", ""
    last = tries[-1]
    if last.cause == "finished":
        return "finished", "good", ""
    if last.cause == "preempted":
        return "stopped early, saved", "open", last.detail
    return f"failed: {last.cause}".replace("_", " "), "bad", last.detail


def summary(record: Record) -> str:
    """The figures that one looks for first."""
    last = record.metrics[-1] if record.metrics else {}
    known = [row for row in record.validation if number(row.get("loss")) is not None]
    best = min(known, key=lambda row: row["loss"], default=None)
    final = known[-1] if known else None
    planned, rows = record.setting("trainer", "steps"), record.header
    length = record.setting("data", "sequence_length")
    batch = record.setting("trainer", "global_batch_size")
    step = last.get("step", 0)
    tiles: list[tuple[str, str, str]] = []
    for name, row in (("bits per byte, held out", final), ("bits per byte, best", best)):
        if row is not None:
            tiles.append((name, fixed(number(row.get("bits_per_byte")), 3), _where(row)))
    tiles += [
        ("training loss", fixed(number(last.get("loss")), 4), "nats a token, last logged step"),
        ("steps", f"{step:,}", f"of {planned:,}" if planned else ""),
    ]
    if length and batch:
        tiles.append(("tokens seen", count(step * length * batch), f"{length} x {batch} a step"))
    if rows.get("parameters"):
        active = rows.get("active_parameters")
        said = f"{count(active)} active for a token" if active else ""
        tiles.append(("parameters", count(rows["parameters"]), said))
    speeds = [number(row.get("tokens_per_second")) for row in record.metrics[-LAST:]]
    tiles.append(("tokens a second", count(mean(speeds)), f"mean of the last {len(speeds)} logged"))
    mfu = mean([number(row.get("mfu_executed")) for row in record.metrics[-LAST:]])
    if mfu is not None:
        tiles.append(("MFU, executed", percent(mfu), "of the devices' peak"))
    tiles.append(
        ("time", duration(sum(a.seconds for a in attempts(record)) or None), _tries(record))
    )
    skipped = number(last.get("skipped_steps"))
    if skipped:
        tiles.append(("skipped steps", f"{skipped:,.0f}", "loss or gradient not finite"))
    if rows.get("devices"):
        kind = rows.get("device_kind") or rows.get("platform") or ""
        mesh = rows.get("mesh")
        axes = ", ".join(f"{k} {v}" for k, v in mesh.items()) if isinstance(mesh, dict) else ""
        tiles.append(("devices", f"{rows['devices']} x {kind}", axes))
    if rows.get("backend"):
        tiles.append(("kernels", str(rows["backend"]), ""))
    body = "".join(
        f'<div class="tile"><small>{text(name)}</small><b>{text(value)}</b>'
        f"<small>{text(note)}</small></div>"
        for name, value, note in tiles
    )
    return section("Summary", f'<div class="tiles">{body}</div>{gaps(record)}')


def gaps(record: Record) -> str:
    """What the report lacks, in words."""
    if not record.gaps:
        return ""
    return "".join(f'<p class="none">{text(gap)}</p>' for gap in record.gaps)


def learning(record: Record) -> str:
    """Loss, training and held out, and what drives it."""
    rows = record.metrics
    held_out = [(float(r["step"]), number(r.get("loss"))) for r in record.validation]
    loss = line_chart(
        "Loss",
        [
            Series("training", _points(rows, "loss"), "var(--a)", noisy=True),
            Series("held out", held_out, "var(--b)", dots=len(held_out) <= 60),
        ],
        unit="nats a token, by step",
        show=lambda y: f"{y:.4g}",
    )
    rate = line_chart(
        "Learning rate",
        [Series("", _points(rows, "learning_rate"), "var(--c)")],
        include=(0,),
    )
    norm = line_chart(
        "Gradient norm",
        [Series("", _points(rows, "grad_norm"), "var(--c)", noisy=True)],
        unit="before clipping",
        include=(0,),
        show=lambda y: f"{y:.3g}",
    )
    return section("Loss", f'<div class="charts"><div class="wide">{loss}</div>{rate}{norm}</div>')


def speed(record: Record) -> str:
    """Throughput and how much of the time is spent waiting for data."""
    rows = record.metrics
    waits: list[Point] = [
        (float(row["step"]), wait_share(row, steps))
        for row, steps in zip(rows, intervals(rows), strict=True)
    ]
    rate = line_chart(
        "Throughput",
        [Series("", _points(rows, "tokens_per_second"), "var(--a)", noisy=True)],
        unit="tokens a second",
        include=(0,),
    )
    wait = line_chart(
        "Data wait",
        [Series("", waits, "var(--b)", noisy=True)],
        unit="part of the step time",
        include=(0,),
        show=lambda y: f"{100 * y:.3g} %",
    )
    return section("Throughput", f'<div class="charts">{rate}{wait}</div>')


def sparsity(record: Record) -> str:
    """Realised sparsity, layer by step, beside its target."""
    rows, steps = record.metrics, [row["step"] for row in record.metrics]
    parts = []
    if record.ffn_target is not None:
        parts.append(
            heat_map(
                "FFN active fraction",
                steps,
                [layers(row, "ffn_active_fraction") for row in rows],
                record.ffn_target,
                show=percent,
                unit="neurons that survive, by step",
            )
        )
    if record.attention_target:
        parts.append(
            heat_map(
                "Attention survivors",
                steps,
                [layers(row, "attention_active_mean") for row in rows],
                record.attention_target,
                show=lambda value: f"{value:.3g} keys",
                unit="keys a query attends to, in rows longer than twice the target",
            )
        )
    if not parts:
        dense = "The model is dense: every neuron and every key is used."
        return section("Sparsity", f'<p class="none">{dense}</p>')
    if record.ffn_target is not None:
        parts.append(_offsets(record))
    parts.append(_layer_table(record))
    return section(
        "Sparsity", f'<div class="charts"><div class="wide">{"".join(parts)}</div></div>'
    )


def time_spent(record: Record) -> str:
    """Where the time went, and the attempts."""
    spent = phases(record)
    total = sum(spent.values())
    if not total:
        return section("Time", '<p class="none">No times in events.jsonl yet.</p>')
    bar = "".join(
        f'<span style="flex:{seconds / total:.4f};background:{COLORS[name]}"'
        f' title="{text(f"{name}: {duration(seconds)}")}"></span>'
        for name, seconds in spent.items()
    )
    rows = [
        (
            f'<i style="background:{COLORS[name]}"></i>{text(name)}',
            text(duration(seconds)),
            text(percent(seconds / total)),
        )
        for name, seconds in spent.items()
    ]
    body = (
        f'<div class="card"><div class="bar">{bar}</div>'
        + table(("phase", "time", "part"), rows, right=(1, 2))
        + "</div>"
    )
    tries = attempts(record)
    if tries:
        listed = [
            (
                text(a.index),
                text(duration(a.seconds)),
                text("-" if a.step is None else f"{a.step:,}"),
                text((a.cause or "not ended").replace("_", " ")),
                text(a.detail),
            )
            for a in tries
        ]
        names = ("attempt", "time", "last step", "ended", "detail")
        body += f'<h2>Attempts</h2><div class="card">{table(names, listed, right=(1, 2))}</div>'
    return section("Time", body)


def warnings(record: Record) -> str:
    """The last warnings; nothing when there were none."""
    found = [str(e.get("detail")) for e in record.events if e.get("event") == "warning"]
    distinct = list(dict.fromkeys(found))
    if not distinct:
        return ""
    more = (
        f"<p class='none'>{len(distinct) - LAST} earlier ones</p>" if len(distinct) > LAST else ""
    )
    items = "".join(f"<li>{text(line)}</li>" for line in distinct[-LAST:])
    return section("Warnings", f'<div class="card">{more}<ul>{items}</ul></div>')


def sample(record: Record) -> str:
    """What the model writes."""
    if not record.sample:
        return section("Sample", '<p class="none">No sample yet: one is made at the end.</p>')
    return section("Sample", f'<div class="card"><pre>{text(record.sample)}</pre></div>')


def configuration(record: Record) -> str:
    """The resolved configuration, folded."""
    top = {k: v for k, v in record.config.items() if not isinstance(v, dict)}
    groups = {"run": top} | {k: v for k, v in record.config.items() if isinstance(v, dict)}
    body = "".join(
        f"<div><h3>{text(name)}</h3>{_settings(values)}</div>" for name, values in groups.items()
    )
    return section(
        "Configuration",
        '<details class="card"><summary>all settings</summary>'
        f'<div class="settings">{body}</div></details>',
    )


def _offsets(record: Record) -> str:
    depth = max((len(layers(row, "ffn_offset")) for row in record.metrics), default=0)
    lines = []
    for layer in range(depth):
        points: list[Point] = []
        for row in record.metrics:
            values = layers(row, "ffn_offset")
            points.append((float(row["step"]), values[layer] if layer < len(values) else None))
        part = 100 if depth == 1 else round(100 - 100 * layer / (depth - 1))
        color = f"color-mix(in oklch,var(--first) {part}%,var(--last))"
        shown = depth <= 12 or layer in (0, depth - 1)
        lines.append(Series(f"layer {layer}" if shown else "", points, color))
    return line_chart(
        "Threshold offset",
        lines,
        unit="ffn_offset: what calibration adds to the Gaussian quantile",
        include=(0,),
        show=lambda y: f"{y:.3g}",
    )


def _layer_table(record: Record) -> str:
    rows = record.metrics[-LAST:]
    depth = max((len(layers(row, "ffn_active_fraction")) for row in rows), default=0)
    pattern = record.setting("model", "attention_pattern") or ["-"]

    def average(name: str, layer: int) -> float | None:
        values = [layers(row, name) for row in rows]
        return mean([found[layer] if layer < len(found) else None for found in values])

    def ratio(value: float | None, target: float | None) -> str:
        return "-" if value is None or not target else f"{value / target:.2f}"

    lines = []
    for layer in range(depth):
        active, keys = (average(n, layer) for n in ("ffn_active_fraction", "attention_active_mean"))
        cells = [str(layer), str(pattern[layer % len(pattern)])]
        cells += [percent(active), ratio(active, record.ffn_target)]
        cells += [fixed(average("ffn_offset", layer), 3)]
        cells += [fixed(keys, 1), ratio(keys, record.attention_target)]
        lines.append([text(cell) for cell in cells])
    names = ("layer", "attention", "FFN active", "x target", "offset", "keys", "x target")
    return (
        f"<figure><figcaption>By layer <small>mean of the last {len(rows)} logged steps"
        f"</small></figcaption>{table(names, lines, right=(2, 3, 4, 5, 6))}</figure>"
    )


def _settings(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th>{text(name)}</th><td class="any">{text(_value(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<table>{rows}</table>"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> list[Point]:
    return [(float(row["step"]), number(row.get(name))) for row in rows]


def _where(row: Mapping[str, Any]) -> str:
    return f"loss {fixed(number(row.get('loss')), 4)}, step {row['step']:,}"


def _tries(record: Record) -> str:
    number_of = len(attempts(record))
    return f"{number_of} attempts" if number_of > 1 else ""
