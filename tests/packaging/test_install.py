"""The package installs from a checkout, as a wheel, and beside the index's own `kernels`."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from .conftest import ROOT, run, tracked

pytestmark = pytest.mark.packaging

WINGS = ("kernels", "sharding", "pipelines", "cluster")
WHERE = """
import json, sys, spark_dist
import spark_dist.kernels, spark_dist.sharding, spark_dist.pipelines, spark_dist.cluster
wings = [spark_dist.kernels, spark_dist.sharding, spark_dist.pipelines, spark_dist.cluster]
print(json.dumps({
    "file": spark_dist.__file__,
    "paths": list(spark_dist.__path__),
    "wings": [wing.__file__ for wing in wings],
    "backend": str(spark_dist.kernels.backend()),
    "bare": [name for name in ("kernels", "sharding", "pipelines", "cluster")
             if name in sys.modules],
}))
"""


def shipped() -> set[str]:
    """Paths inside the wheel that the project's files must have."""
    result = set()
    for name in tracked():
        top = name.split("/")[0]
        if top in WINGS:
            result.add(f"spark_dist/{name}")
        elif top == "spark_dist" and not (ROOT / name).is_symlink():
            result.add(name)
    return result


def test_the_wheel_holds_every_file_once_under_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    files = {name for name in names if ".dist-info/" not in name}
    assert files == shipped()
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_the_source_distribution_holds_each_wing_once(distributions: Path) -> None:
    (path,) = distributions.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames()]
    assert not [n for n in names if n.startswith(tuple(f"spark_dist/{w}" for w in WINGS))]
    for name in ("kernels/__init__.py", "requirements.lock", "Makefile", "tests/conftest.py"):
        assert name in names


def test_editable_install_in_a_fresh_environment(checkout, make_environment, tmp_path) -> None:
    environment = make_environment("editable", dependencies=True)
    environment.pip("install", "--no-deps", "--editable", checkout)
    seen = json.loads(environment.evaluate(WHERE, cwd=tmp_path))
    assert seen["paths"] == [str(checkout / "spark_dist")]
    for wing, file in zip(WINGS, seen["wings"], strict=True):
        assert Path(file).resolve() == checkout / wing / "__init__.py"
    assert seen["bare"] == []
    # A module written after the install is found, in a wing too.
    (checkout / "sharding" / "written_later.py").write_text("VALUE = 1\n")
    try:
        code = "from spark_dist.sharding import written_later; print(written_later.VALUE)"
        assert environment.evaluate(code, cwd=tmp_path) == "1"
    finally:
        (checkout / "sharding" / "written_later.py").unlink()


def test_the_wheel_brings_all_it_needs_into_an_empty_environment(
    wheel, make_environment, tmp_path
) -> None:
    environment = make_environment("empty", dependencies=False)
    environment.pip("install", "--constraint", ROOT / "requirements.lock", wheel)
    seen = json.loads(environment.evaluate(WHERE, cwd=tmp_path, safe_path=False))
    assert seen["file"] == str(environment.site / "spark_dist" / "__init__.py")
    program = environment.root / "bin" / "spark-dist"
    assert "train" in run([program, "--help"], cwd=tmp_path, safe_path=False)
    last = run(
        [
            program,
            *("train", "tiny", "--launcher", "local"),
            *("--trainer.steps", "2", "--trainer.eval-batches", "1"),
            *("--run-dir", tmp_path / "run", "--json"),
        ],
        cwd=tmp_path,
        safe_path=False,
    ).splitlines()[-1]
    result = json.loads(last)
    assert result["step"] == 2
    assert result["exit"] == 0


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_life_beside_the_package_kernels(how, wheel, checkout, make_environment, tmp_path) -> None:
    """Whichever is installed last or removed, each finds its own files."""
    environment = make_environment(f"beside-{how}", dependencies=True)
    environment.pip("install", "kernels==0.17.2")
    ours = [wheel] if how == "wheel" else ["--editable", checkout]
    environment.pip("install", "--no-deps", *ours)
    theirs = "import kernels; print(kernels.get_kernel.__module__, kernels.__file__)"
    both = f"{WHERE}\n{theirs}"
    for cwd, safe_path in ((tmp_path, False), (tmp_path, True), (checkout, True)):
        ours_seen, theirs_seen = environment.evaluate(
            both, cwd=cwd, safe_path=safe_path
        ).splitlines()
        seen = json.loads(ours_seen)
        assert Path(seen["wings"][0]).parent.name == "kernels"
        assert Path(seen["wings"][0]).parent.parent.name == "spark_dist"
        assert seen["bare"] == []
        assert seen["backend"]
        assert theirs_seen.endswith(str(environment.site / "kernels" / "__init__.py"))
    environment.pip("uninstall", "--yes", "spark-dist")
    assert environment.evaluate(theirs, cwd=tmp_path).startswith("kernels.")


def test_the_lock_installs_what_the_package_asks_for() -> None:
    """In the environment of the lock, pip finds no requirement unmet."""
    run([sys.executable, "-m", "pip", "check"], cwd=ROOT)
