"""Fresh copies of the project, its built distributions and throw-away environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(
    command: list[str | Path],
    *,
    cwd: Path,
    safe_path: bool = True,
    timeout: float = 900,
    env: dict[str, str] | None = None,
) -> str:
    """Standard output of `command`, which must succeed. `safe_path`: set PYTHONSAFEPATH."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    if safe_path:
        clean["PYTHONSAFEPATH"] = "1"
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def site(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.root / "lib" / version / "site-packages"

    def pip(self, *arguments: str | Path) -> None:
        command = [self.python, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
        run(command, cwd=self.root)

    def evaluate(self, code: str, *, cwd: Path, safe_path: bool = True) -> str:
        """Standard output of a piece of Python run with `cwd` as the working directory."""
        return run([self.python, "-W", "error", "-c", code], cwd=cwd, safe_path=safe_path).strip()


def tracked() -> list[str]:
    """Files of the project as git sees them, with new ones that are not ignored."""
    listing = run(["git", "ls-files", "-co", "--exclude-standard", "--deduplicate"], cwd=ROOT)
    return [name for name in listing.splitlines() if os.path.lexists(ROOT / name)]


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project as a clone would have it, links as links."""
    copy = tmp_path_factory.mktemp("checkout") / "project"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="session")
def distributions(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the source distribution and the wheel built from it."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout], cwd=out)
    return out


@pytest.fixture(scope="session")
def wheel(distributions: Path) -> Path:
    (path,) = distributions.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def make_environment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Environment]]:
    """Make an environment; `dependencies` lends it this one's packages, without spark-dist.

    They are lent by one line in a .pth file: the .pth files of the lending folder, and with them
    its editable installs, are not read.
    """

    made: list[Environment] = []

    def make(name: str, *, dependencies: bool) -> Environment:
        environment = Environment(tmp_path_factory.mktemp(name) / "env")
        made.append(environment)
        run([sys.executable, "-m", "venv", environment.root], cwd=ROOT)
        if dependencies:
            (environment.site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        return environment

    yield make
    for environment in made:  # with its dependencies one takes more than a gigabyte
        shutil.rmtree(environment.root, ignore_errors=True)
