"""Ray workers whose own environment lacks the package get it from the driver."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .conftest import ROOT, Environment, run

pytestmark = [pytest.mark.packaging, pytest.mark.cluster]

# Ray stays on the loopback interface, in the head and in whoever joins it.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

DRIVER = """
import json, sys
from spark_dist.cluster import RayLauncher

def payload(config, worker):
    import sys
    import spark_dist, spark_dist.kernels, spark_dist.pipelines, spark_dist.sharding
    return {
        "prefix": sys.prefix,
        "file": spark_dist.__file__,
        "wings": [m.__file__ for m in (spark_dist.kernels, spark_dist.pipelines)],
        "backend": spark_dist.kernels.backend(),
        "rank": worker.rank,
        "world_size": worker.world_size,
    }

outcome = RayLauncher(address=sys.argv[1]).run(payload, None, run_dir=sys.argv[2], hosts=2)
print(json.dumps([outcome.cause, outcome.detail, outcome.result]))
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def workers(make_environment) -> Environment:
    """The workers' environment: every dependency, no spark-dist."""
    environment = make_environment("workers", dependencies=True)
    code = "import importlib.util as u; print(u.find_spec('spark_dist'), u.find_spec('ray').name)"
    assert environment.evaluate(code, cwd=environment.root) == "None ray"
    return environment


@pytest.fixture(scope="module")
def head(workers: Environment) -> Iterator[str]:
    """Address of a Ray head that runs in the workers' environment, on the loopback interface."""
    port = free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "RAY_"))}
    with tempfile.TemporaryDirectory(prefix="sd-") as folder:  # socket paths must be short
        command = [
            *(workers.python, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *(f"--port={port}", "--num-cpus=2", "--include-dashboard=false"),
            *("--disable-usage-stats", f"--temp-dir={folder}", "--object-store-memory=100000000"),
        ]
        with open(Path(folder) / "head.log", "w+") as log:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**clean, **LOOPBACK},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + 120
                while not answers(port):
                    log.seek(0)
                    assert process.poll() is None, log.read()
                    assert time.monotonic() < deadline, log.read()
                    time.sleep(0.2)
                yield f"127.0.0.1:{port}"
            finally:
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the head and the processes that it started, by their ids."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, left = psutil.wait_procs([psutil.Process(process.pid), *started], timeout=15)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait(30)


def test_the_package_is_shipped_to_workers_without_it(
    head: str, workers: Environment, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    command = [sys.executable, driver, head, tmp_path / "run"]
    out = run(command, cwd=tmp_path, timeout=300, env=LOOPBACK)
    cause, detail, seen = json.loads(out.splitlines()[-1])
    assert (cause, detail) == ("finished", "")
    assert Path(seen["prefix"]) == workers.root
    # From the folder into which Ray unpacked what the driver sent.
    for file in (seen["file"], *seen["wings"]):
        assert "runtime_resources/py_modules_files" in file
        assert not Path(file).is_relative_to(ROOT)
    assert (
        seen["backend"]
        == run(
            [sys.executable, "-c", "import spark_dist.kernels as k; print(k.backend())"],
            cwd=tmp_path,
        ).strip()
    )
    assert (seen["rank"], seen["world_size"]) == (0, 2)


def test_a_run_trains_on_workers_without_the_package(head: str, tmp_path: Path) -> None:
    """Data files travel too: the workers read the embedded corpus from what was shipped."""
    program = Path(sys.executable).with_name("spark-dist")
    out = run(
        [
            *(program, "train", "tiny", "--launcher", "ray", "--address", head, "--hosts", "2"),
            *("--trainer.steps", "2", "--trainer.eval-batches", "1"),
            *("--run-dir", tmp_path / "run", "--json"),
        ],
        cwd=tmp_path,
        timeout=400,
        env=LOOPBACK,
    )
    result = json.loads(out.splitlines()[-1])
    assert (result["step"], result["exit"]) == (2, 0)
