"""The import rules: which wing may import what, and that importing stays cheap.

Source files are read with `ast`, so imports inside functions count as well.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
WINGS = ("kernels", "sharding", "pipelines", "cluster")

# What each wing may import beside the standard library and itself, anywhere in it.
ALLOWED = {
    "kernels": {"jax", "jaxlib", "numpy"},
    "sharding": {"jax", "numpy", "flax"},
    "pipelines": {
        "etils",
        "fsspec",
        "grain",
        "numpy",
        "pyarrow",
        "sentencepiece",
        "tokenizers",
    },
    "cluster": {"psutil", "ray"},
}
# What loads JAX, and so may only be imported inside functions of modules that must stay light.
LOADS_JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "grain"}
LIGHT = ("__init__.py", "cli", "cli.py", "config.py", "errors.py", "presets.py")
HEAVY = ("jax", "flax", "ray", "grain", "orbax", "pyarrow", "numpy", "pydantic", "tyro", "torch")


def sources(folder: str) -> list[Path]:
    """Python files of a top-level folder; the links inside spark_dist/ are left out."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT).parts
        if not (inside[0] == "spark_dist" and inside[1] in WINGS):
            found.append(path)
    return found


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(absolute module name, line, whether outside functions) of each import in `path`.

    Names under `if TYPE_CHECKING` count: they are dependencies of the text too.
    """
    inside = path.relative_to(ROOT).with_suffix("").parts
    package = inside[:-1] if inside[0] == "spark_dist" else ("spark_dist", *inside[:-1])

    def walk(node: ast.AST, outside: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, outside
            elif isinstance(child, ast.ImportFrom):
                parts = list(package[: len(package) + 1 - child.level]) if child.level else []
                base = ".".join([*parts, *([child.module] if child.module else [])])
                yield base, child.lineno, outside
                for alias in child.names:
                    yield f"{base}.{alias.name}", child.lineno, outside
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                yield from walk(child, False)
            else:
                yield from walk(child, outside)

    yield from walk(ast.parse(path.read_text()), True)


def wing_of(name: str) -> str | None:
    """The wing that a module name `spark_dist.<wing>...` belongs to."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "spark_dist" and parts[1] in WINGS else None


def where(path: Path, line: int, name: str) -> str:
    return f"{path.relative_to(ROOT)}:{line} imports {name}"


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_imports_only_what_it_may(wing: str) -> None:
    wrong = []
    for path in sources(wing):
        for name, line, _ in imports(path):
            top = name.split(".")[0]
            fine = (
                name == "spark_dist"  # the first half of a relative import
                or wing_of(name) == wing
                or top in sys.stdlib_module_names
                or top in ALLOWED[wing]
            )
            if not fine:
                wrong.append(where(path, line, name))
    assert wrong == []


@pytest.mark.parametrize("folder", [*WINGS, "spark_dist", "tests", "benchmarks"])
def test_no_wing_is_imported_by_its_bare_name(folder: str) -> None:
    wrong = [
        where(path, line, name)
        for path in sources(folder)
        for name, line, _ in imports(path)
        if name.split(".")[0] in WINGS
    ]
    assert wrong == []


def test_cluster_and_the_light_modules_load_no_jax() -> None:
    """`cluster` at no depth; the configuration and command line only inside functions."""
    wrong = []
    for path in sources("spark_dist"):
        first = path.relative_to(ROOT / "spark_dist").parts[0]
        for name, line, outside in imports(path):
            loads = name.split(".")[0] in LOADS_JAX or wing_of(name) in ("kernels", "sharding")
            if first in LIGHT and outside and loads:
                wrong.append(where(path, line, name))
    assert wrong == []
    assert not ALLOWED["cluster"] & LOADS_JAX


def test_pipelines_imports_grain_only_inside_functions() -> None:
    wrong = [
        where(path, line, name)
        for path in sources("pipelines")
        for name, line, outside in imports(path)
        if outside and name.split(".")[0] in LOADS_JAX
    ]
    assert wrong == []


@pytest.mark.parametrize("wing", WINGS)
def test_a_wing_has_one_face_without_logic(wing: str) -> None:
    """`__init__.py` holds a docstring, imports, `__all__` and nothing else."""
    face = ast.parse((ROOT / wing / "__init__.py").read_text())
    for node in face.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        listing = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        assert text or listing or isinstance(node, ast.Import | ast.ImportFrom), ast.unparse(node)
    assert any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for node in face.body
    )


@pytest.mark.parametrize("wing", WINGS)
def test_other_code_reaches_a_wing_through_its_face(wing: str) -> None:
    """The product imports `spark_dist.<wing>` and a name of its face, no module inside it."""
    face = ast.parse((ROOT / wing / "__init__.py").read_text())
    names = {
        alias.asname or alias.name
        for node in face.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    wrong = []
    for path in sources("spark_dist"):
        for name, line, _ in imports(path):
            rest = name.split(".")[2:]
            if wing_of(name) == wing and rest and (len(rest) > 1 or rest[0] not in names):
                wrong.append(where(path, line, name))
    assert wrong == []


def loaded_by(statement: str) -> set[str]:
    """Names in `sys.modules` after `statement` in a fresh interpreter."""
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("wing", WINGS)
def test_importing_a_wing_loads_no_other(wing: str) -> None:
    loaded = loaded_by(f"import spark_dist.{wing}")
    others = [w for w in WINGS if w != wing]
    assert not [w for w in others if f"spark_dist.{w}" in loaded]
    assert not [name for name in loaded if name.split(".")[0] in WINGS]
    product = {"spark_dist.config", "spark_dist.model", "spark_dist.api", "spark_dist.training"}
    assert not product & loaded
    if wing in ("pipelines", "cluster"):
        assert "jax" not in loaded
    if wing != "cluster":
        assert "ray" not in loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = loaded_by("import spark_dist")
    assert [name for name in HEAVY if name in loaded] == []
    assert [name for name in loaded if name.startswith("spark_dist.")] == []


def test_configuration_needs_no_jax() -> None:
    loaded = loaded_by("import spark_dist\nspark_dist.presets()\nspark_dist.RunConfig()")
    assert "jax" not in loaded
    assert "ray" not in loaded


def test_the_lazy_names_are_the_listed_ones() -> None:
    import spark_dist

    assert set(spark_dist.__all__) <= set(dir(spark_dist))
    for name in spark_dist.__all__:
        assert callable(getattr(spark_dist, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spark_dist.nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("folder", [*WINGS, "spark_dist", "tests", "benchmarks"])
def test_no_file_is_long(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in sources(folder)
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert long == {}


def test_no_module_hides_a_public_function() -> None:
    """Importing a submodule binds its name in the package, over a lazy function of that name."""
    import spark_dist

    modules = {p.stem for p in (ROOT / "spark_dist").iterdir() if p.suffix in ("", ".py")}
    assert sorted(modules & set(spark_dist.__all__)) == [], "rename the module"
