"""What a person sees of a command: header, live line, warnings, result.

A terminal gets colour and one line that moves; anything else gets plain lines; with --json
standard output holds the final JSON line and nothing more. No JAX here.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

import rich.console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .next_commands import Ended, near, next_commands
from .trackers import json_value
from .wording import count, duration, number, percent, printable

PHASES = {
    "startup": "connecting",
    "data": "opening the corpus",
    "init": "making the weights",
    "restore": "restoring the checkpoint",
    "compile": "compiling",
    "evaluate": "evaluating",
    "save": "saving",
    "commit": "saving",
    "sample": "writing a sample",
}
"""What is said while a phase lasts; an unknown one is said by its name."""


class _Patient(rich.console.Console):
    """A reader that has gone away (`| head`) silences the output and does not end the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # no descriptor: nothing to do
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.file.fileno())  # what is still buffered goes there at exit
            os.close(nowhere)


class Console:
    """Prints what it is told. json: be quiet on standard output but for `print_json`.

    out, err: streams in place of the standard ones. terminal: None asks `out`.
    width: columns; None asks the terminal. Use it as a context so that the live line ends.
    """

    def __init__(
        self,
        json: bool = False,
        *,
        out: TextIO | None = None,
        err: TextIO | None = None,
        terminal: bool | None = None,
        width: int | None = None,
    ):
        self.json = json
        self._stream = out
        self._out = _Patient(
            file=out, force_terminal=terminal, width=width, highlight=False, markup=False
        )
        self._err = _Patient(file=err, stderr=True, highlight=False, markup=False)
        self._out.quiet = json
        self._moving = self._out.is_terminal and not self._out.is_dumb_terminal and not json
        self._live: Live | None = None
        self._progress: Mapping[str, Any] | None = None
        self._phase: str | None = None
        self._steps: int | None = None
        self._warned: dict[str, int] = {}

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the live line; what it showed last stays."""
        if self._live is not None:
            self._phase = None
            self._refresh()
            live, self._live = self._live, None
            live.stop()

    # -- messages of a run -------------------------------------------------------------------

    def on_message(self, rank: int, message: Mapping[str, Any]) -> None:
        """Shows a message of a rank. All ranks say the same but for warnings: rank 0 is heard."""
        kind = message.get("kind")
        if kind == "warning":
            self._warn_once(rank, str(message["message"]))
        elif rank != 0:
            return
        elif kind == "header":
            self.header(message)
        elif kind == "progress":
            self.progress(message)
        elif kind == "evaluation":
            self.evaluation(message)
        elif kind == "phase":
            self.phase(str(message["phase"]))
        elif kind == "note":
            self.note(str(message["message"]))

    def header(self, info: Mapping[str, Any]) -> None:
        """What runs, on what, for how long and where its files go.

        info: the keys that are there of preset, devices, platform, device_kind, processes, mesh
        (axis to size), backend, parameters, active_parameters, tokens_planned, steps, step
        (already done), corpus, run_dir.
        """
        self._steps = info.get("steps")
        rows: dict[str, str] = {}
        if "devices" in info:
            kind = info.get("device_kind") or info.get("platform") or "device"
            rows["devices"] = f"{info['devices']} x {kind}"
            if info.get("processes"):
                rows["devices"] += f" in {_plural(info['processes'], 'process', 'processes')}"
        if info.get("mesh"):
            mesh = info["mesh"]
            if isinstance(mesh, Mapping):
                mesh = ", ".join(f"{axis} {size}" for axis, size in mesh.items())
            rows["mesh"] = str(mesh)
        if info.get("backend"):
            rows["kernels"] = str(info["backend"])
        if "parameters" in info:
            rows["parameters"] = f"{count(info['parameters'])} in all"
            if info.get("active_parameters") is not None:
                rows["parameters"] += f", {count(info['active_parameters'])} active for a token"
        if info.get("steps") is not None:
            rows["training"] = f"{info['steps']:,} steps"
            if info.get("tokens_planned") is not None:
                rows["training"] += f", {count(info['tokens_planned'])} tokens"
            if info.get("step"):
                rows["training"] += f"; goes on after step {info['step']:,}"
        if info.get("corpus"):
            rows["corpus"] = str(info["corpus"])
        if info.get("run_dir"):
            rows["files"] = near(info["run_dir"])
            rows[""] = "config.json, metrics.jsonl, events.jsonl, checkpoints/, report.html"
        self.table(f"spark-dist {info.get('preset', '')}".strip(), rows)
        self._print("")

    def progress(self, message: Mapping[str, Any]) -> None:
        """The live line, or a plain one: step, loss, tokens/s, active fraction, time left."""
        self._progress, self._phase = message, None
        if self._moving:
            self._refresh()
        else:
            self._print(self._progress_text(message))

    def evaluation(self, message: Mapping[str, Any]) -> None:
        """The held-out result of a step, a line that stays."""
        self._phase = None
        self._print(
            f"{self._step(message['step'])}  held-out loss {number(message['loss'])}, "
            f"{number(message['bits_per_byte'])} bits per byte",
            style="cyan",
        )
        self._refresh()

    def phase(self, name: str) -> None:
        """What the run is busy with when it is not training."""
        self._phase = PHASES.get(name, printable(name))
        if self._moving:
            self._refresh()
        elif self._progress is None:
            self._print(f"{self._phase} ...")

    # -- single lines ------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A line that tells, to nobody with --json."""
        self._print(text)

    def warning(self, text: str) -> None:
        """A line that should be seen; with --json on standard error."""
        line = f"warning: {printable(text)}"
        if self.json:
            self._write(self._err, line, "yellow")
        else:
            self._write(self._out, line, "yellow")

    def error(self, text: str) -> None:
        """One line on standard error."""
        self.close()
        line = " ".join(printable(text).split())
        self._write(self._err, f"spark-dist: error: {line}", "bold red")

    def _warn_once(self, rank: int, text: str) -> None:
        """Ranks that see the same thing warn alike: the first one is shown."""
        if self._warned.setdefault(text, rank) == rank:
            self.warning(text if rank == 0 else f"rank {rank}: {text}")

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        """A title and named values below it."""
        self._print(title, style="bold")
        width = max((len(name) for name in rows), default=0)
        for name, value in rows.items():
            line = Text(f"  {printable(name):<{width}}  ", style="dim")
            line.append(self._safe(value), style="not dim")
            self._print(line)

    def print_json(self, values: Mapping[str, Any]) -> None:
        """One line of strict JSON on standard output; what JSON cannot say (NaN) is null."""
        stream = self._stream or sys.stdout
        stream.write(json.dumps(json_value(dict(values)), allow_nan=False) + "\n")
        stream.flush()

    # -- the end -----------------------------------------------------------------------------

    def end(self, result: Ended, page: str | None = None) -> None:
        """How the run ended: held-out result, a sample, and what to do next.

        page: path of the report. Failures are one line on standard error, also with --json.
        """
        self.close()
        if result.exit not in (0, 4):
            self.error(result.detail or f"the run ended with exit code {result.exit}")
        if result.exit == 2:
            return
        if result.exit == 0:
            self._print("")
            rows = {
                "held-out loss": f"{number(result.loss)} nats a token",
                "bits per byte": number(result.bits_per_byte),
            }
            fractions = [f for f in result.ffn_active_fraction or () if f == f]
            if fractions and min(fractions) < 1:
                low, high = percent(min(fractions)), percent(max(fractions))
                rows["FFN active"] = f"{low} to {high} of the neurons, by layer"
            if page:
                rows["report"] = near(page)
            self.table(f"finished at step {result.step:,}", rows)
            if result.sample:
                self._print("")
                self._print("sample", style="bold")
                for line in _first_lines(printable(result.sample)):
                    self._print(f"  {line}", style="italic")
        elif result.exit == 4:
            self._print("")
            self._print(f"stopped early at step {result.step}; everything is saved", style="bold")
        self._print("")
        self._print("next", style="bold")
        for command in next_commands(result):
            self._print(f"  {command}")

    # -- inside ------------------------------------------------------------------------------

    def _step(self, step: int) -> str:
        if self._steps is None:
            return f"step {step}"
        return f"step {step:>{len(str(self._steps))}}/{self._steps}"

    def _progress_text(self, message: Mapping[str, Any]) -> str:
        self._steps = message.get("steps", self._steps)
        parts = [self._step(message["step"]), f"loss {number(message.get('loss'))}"]
        if message.get("tokens_per_second") is not None:
            parts.append(f"{message['tokens_per_second']:,.0f} tokens/s")
        if message.get("ffn_active_fraction") is not None:
            parts.append(f"active {percent(message['ffn_active_fraction'])}")
        if message.get("eta_seconds"):
            parts.append(f"{duration(message['eta_seconds'])} left")
        return "  ".join(parts)

    def _refresh(self) -> None:
        """Draws the live line. It moves when there is news: no thread draws it."""
        if not self._moving:
            return
        if self._live is None:
            if self._progress is None and self._phase is None:
                return
            self._live = Live(console=self._out, auto_refresh=False)
            self._live.start()
        grid = Table.grid(padding=(0, 2, 0, 0))
        cells: list[Any] = []
        if self._progress is not None:
            text = self._progress_text(self._progress)
            room = self._out.width - len(text) - len(self._phase or "")
            if self._steps and room >= 24:
                bar = ProgressBar(
                    self._steps, self._progress["step"], width=16, complete_style="cyan"
                )
                cells.append(bar)
            cells.append(Text(text, no_wrap=True, overflow="ellipsis"))
        if self._phase is not None:
            cells.append(Text(self._phase, style="dim", no_wrap=True, overflow="ellipsis"))
        grid.add_row(*cells)
        self._live.update(grid, refresh=True)

    def _print(self, line: str | Text, style: str = "") -> None:
        if isinstance(line, str):
            line = Text(self._safe(line), style=style)
        self._out.print(line, soft_wrap=True)

    def _write(self, console: rich.console.Console, line: str, style: str) -> None:
        safe = line.encode(console.encoding, "replace").decode(console.encoding)
        console.print(Text(safe, style=style), soft_wrap=True)

    def _safe(self, text: str) -> str:
        """`text` as the stream can hold it."""
        return printable(text).encode(self._out.encoding, "replace").decode(self._out.encoding)


def _plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _first_lines(text: str, lines: int = 12, columns: int = 100) -> list[str]:
    """The beginning of a text, short enough for a screen."""
    found = text.strip("\n").expandtabs(4).split("\n")
    shown = [
        line if len(line) <= columns else line[: columns - 3] + "..." for line in found[:lines]
    ]
    return [*shown, "..."] if len(found) > lines else shown
