"""The report: what it shows, that nothing foreign gets through, and runs of every kind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spark_dist.errors import UserError
from spark_dist.report import ReportError, write_report

MakeRun = Callable[..., Path]
SECTIONS = ["summary", "loss", "throughput", "sparsity", "time", "warnings", "sample"]
VOID = {"meta", "br"}


class Page(HTMLParser):
    """The page as a browser sees it: tags, attributes, text; it must be balanced."""

    def __init__(self, path: Path):
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        named = {name: value or "" for name, value in attrs}
        self.attributes += named.items()
        self.classes.update(named.get("class", "").split())
        if "id" in named:
            self.ids.append(named["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def assert_self_contained(page: Page) -> None:
    assert not {"script", "link", "img", "iframe", "object", "embed", "a"} & set(page.tags)
    assert not {"src", "href", "xlink:href", "srcset", "data", "action"} & {
        name for name, _ in page.attributes
    }
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not re.search(r"https?:|url\(|@import|javascript:", page.source)
    assert "default-src 'none'" in page.source


def test_a_finished_run(make_run: MakeRun) -> None:
    run = make_run()
    path = write_report(run)
    assert path == run / "report.html"
    page = Page(path)
    assert_self_contained(page)
    assert page.ids == [*SECTIONS, "configuration"]
    for words in (
        "tiny finished",
        "1.34 M 760 K active for a token",
        "2 x cpu data 2, fsdp 1, tensor 1",
        "530 of 530",
        "Loss nats a token",
        "Data wait part of the step time",
        "middle: the target, 8.0 %",
        "middle: the target, 32 keys",
        "layer 3",
        "Threshold offset",
        "0 local 8.",
        "start-up",
        "What, shall we <b>march</b> & go?",
        "layer 2: FFN active fraction 0.02 has been outside",
        "attention_predictor_dim",
        "1 2 min 38 s 530 finished",
    ):
        assert words in page.text, words
    assert page.tags["svg"] == 8
    assert page.classes["h6"] > 100  # most cells are on target
    assert page.classes["h0"] > 3  # and the first ones far below it, or above
    assert page.classes["h12"] > 3
    assert page.classes["blank"] == 5  # layer 0 had no row that was long enough, at first
    assert sorted(p.name for p in run.iterdir()) == [
        *("config.json", "events.jsonl", "metrics.jsonl", "report.html", "validation.jsonl")
    ]


def test_the_same_files_give_the_same_page(make_run: MakeRun) -> None:
    run = make_run(steps=100)
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_a_single_point_is_a_dot(make_run: MakeRun) -> None:
    page = Page(write_report(make_run(steps=10, ended="died")))
    assert_self_contained(page)
    assert "tiny failed: died" in page.text
    assert page.classes["dot"] == 5 + 1 + 4  # charts, held out, offsets of four layers
    assert "h.01" in page.source


def test_a_dense_run_still_going(make_run: MakeRun) -> None:
    run = make_run("tiny-dense", ended=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 540, "lo')  # a line being written
    page = Page(write_report(run))
    assert_self_contained(page)
    assert "tiny-dense still going, or cut off" in page.text
    assert "The model is dense: every neuron and every key is used." in page.text
    assert "Threshold offset" not in page.text
    assert page.classes["cells"] == 0
    assert "1 2 min 34 s 265 not ended" in page.text


def test_a_long_run_of_a_deep_model_stays_small(make_run: MakeRun) -> None:
    path = write_report(make_run("spark-2b", steps=20_000))
    page = Page(path)
    assert_self_contained(page)
    assert path.stat().st_size < 1_500_000
    assert page.classes["faint"] == 4
    assert "20,000 of 480,000" in page.text
    assert "25 global" in page.text


def test_foreign_text_never_becomes_markup(make_run: MakeRun) -> None:
    bad = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b]0;\u202e"
    run = make_run(steps=20)
    config = json.loads((run / "config.json").read_text())
    config["preset"] = bad
    config[bad] = {bad: [bad]}
    config["model"]["attention_pattern"] = [bad]
    (run / "config.json").write_text(json.dumps(config))
    header = {"devices": bad, "platform": bad, "mesh": {bad: bad}}
    events = [
        {"event": "sample", "detail": bad},
        {"event": "warning", "detail": bad},
        {"event": "header", "detail": json.dumps(header)},
        {"event": "end", "attempt": 1, "cause": bad, "detail": bad, "seconds": 5.0},
    ]
    with (run / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    moved = run.with_name("<b onclick=alert(3)>")
    run.rename(moved)
    page = Page(write_report(moved))
    assert_self_contained(page)
    assert page.tags["b"] == page.source.count("<b>")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", page.source)
    assert page.text.count("<script>alert(1)</script>") >= 8


def test_without_ledger_and_held_out_results_it_says_so(make_run: MakeRun) -> None:
    run = make_run(steps=50)
    (run / "events.jsonl").unlink()
    (run / "validation.jsonl").unlink()
    (run / "sample.txt").write_text("from a file")
    page = Page(write_report(run))
    assert "events.jsonl is missing or empty" in page.text
    assert "No held-out result yet (validation.jsonl)" in page.text
    assert "from a file" in page.text
    assert "warnings" not in page.ids
    assert "training step" in page.text  # known from metrics.jsonl


def test_before_the_first_logged_step(make_run: MakeRun) -> None:
    run = make_run(steps=10, ended=None)
    for name in ("metrics.jsonl", "validation.jsonl"):
        (run / name).write_text("")
    page = Page(write_report(run))
    assert "metrics.jsonl is empty: no step was logged yet." in page.text
    assert "nothing to show yet" in page.text


def test_gaps_in_the_measurements(make_run: MakeRun) -> None:
    run = make_run(steps=50)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    lines[2] = json.dumps(dict.fromkeys(row) | {"step": row["step"]})
    lines.append(lines[1].replace('"loss": ', '"loss": 1'))  # a step twice: the later line counts
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = Page(write_report(run))
    loss = re.search(r'aria-label="Loss">(.*?)</svg>', page.source, re.S)
    assert loss is not None
    path = re.search(r'class="line"[^>]*d="([^"]*)"', loss[1])
    assert path is not None
    assert path[1].count("M") == 2  # the line is broken at the gap


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: [p.unlink() for p in run.iterdir()], r"config\.json: missing; it is no run"),
        (lambda run: (run / "config.json").write_text("{"), r"config\.json: not a JSON object"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics\.jsonl: missing; no step was"),
        (
            lambda run: (run / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n'),
            r"metrics\.jsonl:2: not a JSON object",
        ),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), r"metrics\.jsonl:1: has no step"),
        (lambda run: (run / "report.html.tmp").mkdir(), r"report\.html: cannot be written"),
        (lambda run: run.rename(run.with_name("elsewhere")), "no such folder"),
    ],
)
def test_what_is_missing_or_damaged_is_named(
    make_run: MakeRun, damage: Callable[[Path], object], message: str
) -> None:
    run = make_run(steps=20)
    damage(run)
    with pytest.raises(ReportError, match=message) as caught:
        write_report(run)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert not (run / "report.html").exists()


def test_importing_the_report_loads_no_jax() -> None:
    code = "import sys, spark_dist.report\nprint('jax' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"
