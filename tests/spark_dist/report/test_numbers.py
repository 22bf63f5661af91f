"""The arithmetic behind the charts, and where the time of a run went."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_dist.report.charts import Series, heat_map, line_chart
from spark_dist.report.record import read_record
from spark_dist.report.scale import bounds, label, labels, stretches, thin, ticks
from spark_dist.report.times import attempts, phases, wait_share

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(numbers, numbers, st.integers(1, 9), st.booleans())
def test_ticks_are_few_round_and_inside(a: float, b: float, most: int, whole: bool) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, most, whole=whole)
    assert 1 <= len(found) <= most
    margin = (high - low) * 1e-6 + 1e-9
    assert all(low - margin <= tick <= high + margin for tick in found)
    assert found == sorted(set(found))


def test_ticks_of_common_ranges() -> None:
    assert ticks(0, 530, 5, whole=True) == [0, 200, 400]
    assert ticks(10, 530, 6, whole=True) == [100, 200, 300, 400, 500]
    assert ticks(1.6, 5.4, 5) == [2, 3, 4, 5]
    assert ticks(0, 0.0041, 5) == [0, 0.001, 0.002, 0.003, 0.004]
    assert ticks(3, 3, 5) == [3]


def test_labels_share_one_unit() -> None:
    assert labels([0, 5000, 10_000]) == ["0", "5,000", "10,000"]
    assert labels([0, 50_000, 100_000]) == ["0", "50 K", "100 K"]
    assert labels([5e5, 1e6]) == ["0.5 M", "1 M"]
    assert [label(v) for v in (0, 0.002, 1e-5, 12.5, 3210.4)] == [
        "0",
        "0.002",
        "1e-05",
        "12.5",
        "3,210",
    ]


@given(st.lists(numbers, max_size=20))
def test_bounds_hold_every_value(values: list[float]) -> None:
    low, high = bounds(values)
    assert low < high or not values
    assert all(low <= value <= high for value in values)


@given(st.lists(st.none() | numbers, min_size=1, max_size=400), st.integers(4, 100))
def test_thinning_keeps_ends_and_extremes(values: list[float | None], most: int) -> None:
    points = [(float(i), value) for i, value in enumerate(values)]
    found = thin(points, most)
    assert len(found) <= most + 4
    assert [x for x, _ in found] == sorted({x for x, _ in found})
    assert set(found) <= set(points)
    known = [value for value in values if value is not None]
    if known:
        assert {min(known), max(known)} <= {y for _, y in found}


@given(st.integers(1, 500), st.integers(1, 60))
def test_stretches_cover_everything_once(count: int, most: int) -> None:
    runs = stretches(count, most)
    assert [i for run in runs for i in run] == list(range(count))
    assert len(runs) == min(count, most)
    assert max(map(len, runs)) - min(map(len, runs)) <= 1


def test_a_cell_is_coloured_by_its_ratio_to_the_target() -> None:
    rows = [[0.08, 0.04, 0.16], [0.083, 0.01, 0.5], [None, 0.0, 0.1]]
    html = heat_map("t", [10, 20, 30], rows, 0.08, show=lambda v: f"{v:g}")
    shades = [part.split('"')[0] for part in html.split('rect class="')[1:]]
    assert shades == ["h6", "h0", "h12", "h6", "h0", "h12", "blank", "h0", "h8"]
    assert "step 10, layer 1: 0.04, 0.50 x target" in html


def test_a_chart_of_nothing_says_so() -> None:
    assert "nothing to show yet" in line_chart("t", [Series("a", [(1.0, None)], "red")])
    assert "nothing to show yet" in heat_map("t", [], [], 1.0, show=str)


def test_time_is_accounted_for(make_run: Callable[..., Path]) -> None:
    record = read_record(make_run(steps=400))
    tries = attempts(record)
    assert [(a.index, a.cause, a.step) for a in tries] == [
        (0, "preempted", 400),
        (1, "finished", 400),
    ]
    spent = phases(record)
    # launch to the end of "startup" (6 s of the launcher, 3 s of the ranks, 0.5 s between), then
    # the corpus and the weights; twice.
    assert spent["start-up"] == pytest.approx(2 * (9.5 + 0.4 + 1.5))
    assert spent["compile"] == pytest.approx(22.0)
    assert spent["evaluation"] == pytest.approx(12.0)
    assert spent["save"] == pytest.approx(0.6)
    waited = sum(row["data_wait_seconds"] for row in record.metrics)
    stepped = sum(row["step_seconds"] * 10 for row in record.metrics)
    assert spent["data wait"] == pytest.approx(waited)
    assert spent["training step"] == pytest.approx(stepped - waited)
    assert sum(spent.values()) == pytest.approx(sum(a.seconds for a in tries))


def test_other_hosts_do_not_count_twice(make_run: Callable[..., Path]) -> None:
    run = make_run(steps=20)
    before = phases(read_record(run))
    with (run / "events.jsonl").open("a") as file:
        file.write(
            '{"time": 1.8e9, "attempt": 0, "rank": 1, "event": "compile", "seconds": 11.0}\n'
        )
    assert phases(read_record(run)) == before


def test_the_part_of_the_time_spent_waiting() -> None:
    assert wait_share({"step_seconds": 0.5, "data_wait_seconds": 1.0}, 10) == 0.2
    assert wait_share({"step_seconds": 0.5, "data_wait_seconds": None}, 10) is None
    assert wait_share({"step_seconds": math.nan, "data_wait_seconds": 1.0}, 10) is None
