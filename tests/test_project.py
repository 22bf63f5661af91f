"""The project's own files agree: lock, metadata, Makefile, README, CI script."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = [
    Requirement(line)
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if line and not line.startswith("#")
]
PYTHONS = ("3.11", "3.12", "3.13")


def locked(python: str) -> dict[str, str]:
    """Name and version of each line of the lock that holds for `python`."""
    return {
        canonicalize_name(need.name): str(need.specifier).removeprefix("==")
        for need in LOCK
        if need.marker is None or need.marker.evaluate({"python_version": python})
    }


def direct(*extras: str) -> list[Requirement]:
    """What the metadata asks for, with these extras."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [need for line in lines if (need := Requirement(line)).name != "spark-dist"]


def git_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return [p for name in done.stdout.splitlines() if (p := ROOT / name).is_file()]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_holds_every_dependency_in_its_range(python: str) -> None:
    versions = locked(python)
    for need in direct("test", "dev"):
        assert versions[canonicalize_name(need.name)] in need.specifier, need


def test_the_lock_has_exact_versions_and_only_python_markers() -> None:
    for need in LOCK:
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(need.specifier)), need
        assert need.url is None
        if need.marker:
            assert re.fullmatch(r'python_version (<|>=) "3\.12"', str(need.marker)), need


def test_jax_is_held_at_0_10_on_python_3_11_only() -> None:
    assert locked("3.11")["jax"].startswith("0.10.")
    assert locked("3.12")["jax"].startswith("0.12.")
    assert locked("3.12")["jax"] == locked("3.13")["jax"]


def test_every_package_that_is_imported_is_declared() -> None:
    homes = metadata.packages_distributions()
    declared = {canonicalize_name(need.name) for need in direct("test", "dev")}
    optional = {"wandb", "mlflow", "trackio", "torch", "transformers", "kernels"}
    # Whoever installs JAX has its data types, and the test runner brings `packaging`.
    declared |= {"ml-dtypes", "fsspec", "packaging"}
    helpers = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    own = {*sys.stdlib_module_names, *helpers, *optional, "spark_dist"}
    missing = set()
    for folder in ("kernels", "sharding", "pipelines", "cluster", "spark_dist", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                    names = [node.module]
                for top in {name.split(".")[0] for name in names}:
                    if (
                        top not in own
                        and not {canonicalize_name(d) for d in homes.get(top, [])} & declared
                    ):
                        missing.add(f"{path.relative_to(ROOT)}: {top}")
    assert missing == set()


def test_the_version_is_written_the_same_everywhere() -> None:
    import spark_dist

    assert spark_dist.__version__ == PROJECT["version"] == metadata.version("spark-dist")


def test_no_file_names_a_package_index_or_a_path_of_the_machine_it_was_written_on() -> None:
    # Split so that this file does not hold what it looks for.
    unwanted = re.compile(
        "|".join(
            [
                "/wor" + "k/",
                "/roo" + "t/",
                "/ho" + "me/",
                r"--(extra-)?index-" + "url",
                "--find-" + "links",
                "/opt/(pypi|whe" + "els)",
                "file:/" + "//",
                r"pypi\.org/sim" + "ple",
            ]
        )
    )
    found = []
    for path in git_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if unwanted.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_makefile_has_the_promised_targets() -> None:
    wanted = {"venv", "train", "test", "test-all", "study", "lint", "bench"}
    assert wanted <= make_targets()
    env = {**os.environ, "MAKEFLAGS": ""}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", *sorted(wanted)],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "spark-dist train tiny --launcher ray --hosts 2 --run-dir runs/tiny" in done.stdout
    assert done.stdout.index("-m venv .venv") < done.stdout.index("-m pytest")


def test_the_ci_script_is_sound_and_calls_the_makefile() -> None:
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    text = script.read_text()
    assert "set -euo pipefail" in text
    for target in re.findall(r"^\s*make ([a-z-]+)", text, re.MULTILINE):
        assert target in make_targets()


def readme_commands() -> list[str]:
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def test_the_readme_names_only_make_targets_that_exist() -> None:
    targets = [line.split()[1] for line in readme_commands() if line.startswith("make ")]
    assert {"train", "test"} <= set(targets) <= make_targets()


def test_the_readme_names_only_commands_and_options_that_exist() -> None:
    program = Path(sys.executable).with_name("spark-dist")
    env = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    helps: dict[str, str] = {}
    commands = [line for line in readme_commands() if re.match(r"(\.venv/bin/)?spark-dist ", line)]
    assert commands
    for line in commands:
        words = line.split()
        if words[1] not in helps:
            done = subprocess.run(
                [program, words[1], "--help"], env=env, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{line}: {done.stderr}"
            helps[words[1]] = done.stdout
        for word in words[2:]:
            if word.startswith("--"):
                flag = word.split("=")[0]
                assert flag in helps[words[1]], f"{line}: {flag} is no option of {words[1]}"


def test_the_readme_links_to_files_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target
