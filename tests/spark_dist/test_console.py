"""What a person sees: plain lines, a terminal's live line, and silence with --json."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_dist.console import Console
from spark_dist.next_commands import next_commands
from spark_dist.wording import count, duration, percent, printable

HEADER = {
    "kind": "header",
    "preset": "tiny",
    "devices": 2,
    "platform": "cpu",
    "processes": 2,
    "mesh": {"data": 2, "fsdp": 1, "tensor": 1},
    "backend": "xla",
    "parameters": 1_340_000,
    "active_parameters": 760_000,
    "tokens_planned": 814_080,
    "corpus": "Shakespeare [embedded]",
    "steps": 530,
    "step": 0,
}


@dataclass(frozen=True)
class Result:
    run_dir: str
    step: int | None = 530
    loss: float | None = 1.81
    bits_per_byte: float | None = 2.61
    exit: int = 0
    detail: str = ""
    ffn_active_fraction: tuple[float, ...] | None = (0.08, 0.084)
    sample: str | None = "KING:\nA [bold]line\x1b[31m\u202e"


def progress(step: int, **other: Any) -> dict[str, Any]:
    return {
        "kind": "progress",
        "step": step,
        "steps": 530,
        "loss": 50.0 / step,
        "tokens_per_second": 3210.4,
        "ffn_active_fraction": 0.081,
        "eta_seconds": 125.0,
    } | other


def run(console: Console, run_dir: Path, result: Result | None = None) -> None:
    """The messages of a short run, with a rank that repeats them."""
    with console:
        for message in [
            {"kind": "phase", "phase": "compile"},
            HEADER | {"run_dir": str(run_dir)},
            progress(10),
            {"kind": "phase", "phase": "evaluate", "step": 20},
            {"kind": "evaluation", "step": 20, "loss": 2.5, "bits_per_byte": 3.6},
            {"kind": "warning", "step": 20, "message": "layer 2: too few"},
            {"kind": "event", "event": "save"},
            progress(530, loss=math.nan, ffn_active_fraction=None, eta_seconds=0.0),
            {"kind": "note", "message": "a note"},
            {"kind": "of another version"},
        ]:
            for rank in (0, 1):
                console.on_message(rank, message)
        console.on_message(1, {"kind": "warning", "message": "only here"})
        console.end(result or Result(str(run_dir)), str(run_dir / "report.html"))


def test_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/my run/tensorboard").mkdir(parents=True)
    out = io.StringIO()
    run(Console(out=out, err=out), tmp_path / "runs/my run")
    assert out.getvalue().splitlines() == [
        "compiling ...",
        "spark-dist tiny",
        "  devices     2 x cpu in 2 processes",
        "  mesh        data 2, fsdp 1, tensor 1",
        "  kernels     xla",
        "  parameters  1.34 M in all, 760 K active for a token",
        "  training    530 steps, 814 K tokens",
        "  corpus      Shakespeare [embedded]",
        "  files       runs/my run",
        "              config.json, metrics.jsonl, events.jsonl, checkpoints/, report.html",
        "",
        "step  10/530  loss 5.0000  3,210 tokens/s  active 8.1 %  2 min 05 s left",
        "step  20/530  held-out loss 2.5000, 3.6000 bits per byte",
        "warning: layer 2: too few",
        "step 530/530  loss nan  3,210 tokens/s",
        "a note",
        "warning: rank 1: only here",
        "",
        "finished at step 530",
        "  held-out loss  1.8100 nats a token",
        "  bits per byte  2.6100",
        "  FFN active     8.0 % to 8.4 % of the neurons, by layer",
        "  report         runs/my run/report.html",
        "",
        "sample",
        "  KING:",
        "  A [bold]line\ufffd[31m\ufffd",
        "",
        "next",
        *[f"  {command}" for command in next_commands(Result(str(tmp_path / "runs/my run")))],
    ]
    commands = next_commands(Result(str(tmp_path / "runs/my run")))
    assert any(line.endswith("spark-dist evaluate 'runs/my run'") for line in commands)
    assert any(line.endswith("--logdir 'runs/my run/tensorboard'") for line in commands)


@pytest.mark.parametrize("width", [40, 80, 140])
def test_a_terminal_gets_one_live_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    run(Console(out=out, err=out, terminal=True, width=width), tmp_path)
    text = out.getvalue()
    assert "\x1b[?25l" in text  # the cursor is hidden for the live line
    assert "\x1b[?25h" in text  # and given back
    assert "\x1b[2K" in text  # the line is drawn anew
    assert "\x1b[33mwarning: layer 2: too few" in text
    assert "\x1b[31m" not in text.split("sample\x1b[0m")[1]  # the sample's own escape is gone
    live = [part for part in text.split("\x1b[2K") if "step  10/530" in part]
    assert live
    assert ("━" in live[-1]) == (width == 140)
    assert ("left" in live[0]) == (width >= 80)
    assert "evaluating" in text or width == 40


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    run(Console(out=out, err=out, terminal=True, width=80), tmp_path)
    assert "\x1b" not in out.getvalue()


def test_json_is_quiet_but_for_the_last_line(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(json=True, out=out, err=err, terminal=True)
    run(console, tmp_path)
    console.table("title", {"a": "b"})
    assert out.getvalue() == ""
    assert err.getvalue().splitlines() == [
        "warning: layer 2: too few",
        "warning: rank 1: only here",
    ]
    console.print_json({"loss": math.nan, "steps": [1, math.inf], "run_dir": "ü"})
    assert json.loads(out.getvalue()) == {"loss": None, "steps": [1, None], "run_dir": "ü"}
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "spark-dist: error: rank 1 raised: a long story\n"),
        (2, "spark-dist: error: rank 1 raised: a long story\n"),
        (4, ""),
    ],
)
def test_other_ends(tmp_path: Path, code: int, said: str) -> None:
    (tmp_path / "attempts").mkdir()
    out, err = io.StringIO(), io.StringIO()
    console = Console(out=out, err=err)
    result = Result(str(tmp_path), 40, None, None, code, "rank 1 raised:\n  a long story")
    console.end(result)
    assert err.getvalue() == said
    text = out.getvalue()
    assert ("train --run-dir" in text) == (code != 2)
    assert ("stopped early at step 40; everything is saved" in text) == (code == 4)
    assert (f"ls {tmp_path}/attempts" in text) == (code == 1)
    assert "held-out" not in text


def test_a_narrow_encoding_does_not_stop_the_run(tmp_path: Path) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(out=out, err=out)
    console.note("Prüfung")
    run(console, tmp_path, Result(str(tmp_path), sample="“Wort”"))
    console.warning("größer")
    out.flush()
    assert b"Pr?fung" in raw.getvalue()
    assert b"?Wort?" in raw.getvalue()


def test_a_reader_that_goes_away_does_not_stop_the_run() -> None:
    code = (
        "import sys\nfrom spark_dist.console import Console\nconsole = Console()\n"
        "for _ in range(5000): console.note('x' * 80)\n"
        "sys.stderr.write('survived')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == "survived"
        assert child.wait(60) == 0


def test_importing_the_console_loads_no_jax() -> None:
    code = "import sys, spark_dist.console\nprint('jax' in sys.modules, 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_wording() -> None:
    assert [count(n) for n in (0, 950, 999.6, 12_345, 63_700_992, 2.6e9, 1.2e16, None)] == [
        *("0", "950", "1 K", "12.3 K", "63.7 M", "2.6 B", "12000 T", "-")
    ]
    times = (0.25, 4.04, 12, 59.7, 125, 3600, 11_220, 187_200, math.nan, None)
    assert [duration(s) for s in times] == [
        *("0.25 s", "4.0 s", "12 s", "1 min 00 s", "2 min 05 s", "1 h 00 min", "3 h 07 min"),
        *("2 d 4 h", "-", "-"),
    ]
    assert [percent(f) for f in (0.0812, 1.0, math.nan, None)] == ["8.1 %", "100.0 %", "-", "-"]
    assert printable("a\tb\r\nc\x07\x9b\u200e\ud800é") == "a\tb\nc\ufffd\ufffd\ufffd\ufffdé"
