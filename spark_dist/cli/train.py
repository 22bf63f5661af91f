"""`spark-dist train [PRESET] [options]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from ..config import RunConfig
from ..console import Console
from ..errors import UserError
from ..launch import RunResult, plan, start, write_page
from ..preset_table import presets
from ..run_directory import RunDirectory
from .parse import parse


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of `train` beside the configuration."""

    config: Annotated[RunConfig, tyro.conf.arg(name="")]
    resume: bool = False
    """Go on from the newest committed checkpoint of --run-dir, with its saved settings."""
    json: bool = False
    """Print nothing but one JSON line at the end."""


DESCRIPTION = (
    "Trains a model. PRESET, the first argument, is where the settings start from: "
    f"{', '.join(presets())} (default: {next(iter(presets()))})."
)


def main(args: Sequence[str]) -> int:
    """Parses, checks, trains; returns the exit code."""
    options = read_options(args)
    console = Console(json=options.json)
    request = plan(options.config, resume=options.resume)
    if request is None:
        directory = RunDirectory(options.config.run_dir or "")
        step = directory.committed_steps()[-1]
        console.note(
            f"{directory.root} is finished at step {step}; raise --trainer.steps to go on, "
            "or name another --run-dir"
        )
        if options.json:
            console.print_json(_finished(directory, step))
        return 0
    _own_cpu_devices(request.config)
    with console:
        result = start(request, console.on_message)
        console.end(result, _page(result, console))
    if options.json:
        console.print_json(result.as_json())
    return result.exit


def read_options(args: Sequence[str]) -> TrainOptions:
    """The options; with --resume the saved configuration stands in for the preset."""
    known = presets()
    given, name = list(args), next(iter(known))
    named = bool(given) and not given[0].startswith("-")
    if named:
        name = given.pop(0)
        if name not in known:
            raise UserError(f"unknown preset {name!r}; choose from {', '.join(known)}")
    if "--preset" in given:
        raise UserError("--preset is the first argument: spark-dist train PRESET")
    default = TrainOptions(config=known[name])
    prog = "spark-dist train"
    options = parse(TrainOptions, given, prog=prog, description=DESCRIPTION, default=default)
    if not options.resume:
        return options
    directory = RunDirectory(options.config.run_dir or f"runs/{name}")
    saved = directory.saved_config()
    if named and saved.preset != name:
        raise UserError(
            f"--resume: {directory.root} was started from preset {saved.preset!r}, not {name!r}; "
            "leave the preset out or name the other"
        )
    default = TrainOptions(config=saved)
    options = parse(TrainOptions, given, prog=prog, description=DESCRIPTION, default=default)
    config = options.config.model_copy(update={"run_dir": str(directory.root)})
    return TrainOptions(config=config, resume=True, json=options.json)


def _page(result: RunResult, console: Console) -> str | None:
    """The report's path. The run is saved: a report that fails is only worth a warning."""
    if result.exit not in (0, 4):
        return None
    try:
        return write_page(result.run_dir)
    except (OSError, ValueError) as error:
        console.warning(f"no report: {error}; make it with spark-dist report {result.run_dir}")
        return None


def _finished(directory: RunDirectory, step: int) -> dict[str, object]:
    evaluation = directory.checkpoint_json(step).get("evaluation") or {}
    return {
        "run_dir": str(directory.root),
        "step": step,
        "loss": evaluation.get("loss"),
        "bits_per_byte": evaluation.get("bits_per_byte"),
        "exit": 0,
    }


def _own_cpu_devices(config: RunConfig) -> None:
    """Tells JAX, before it is imported here, how many CPU devices this process has."""
    if config.launcher == "local" and "jax" not in sys.modules:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(config.devices_per_host or 1)
