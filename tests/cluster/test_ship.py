"""The copy of the package for workers that lack it."""

from __future__ import annotations

from pathlib import Path

import spark_dist
from spark_dist.cluster.ship import staged

ROOT = Path(spark_dist.__file__).resolve().parents[1]


def test_the_copy_is_whole_and_without_links(tmp_path: Path) -> None:
    extra = str(tmp_path / "more")
    with staged((extra,)) as modules:
        package = Path(modules[0])
        assert package.name == "spark_dist"
        assert modules[1:] == [extra]
        files = [path for path in package.rglob("*") if not path.is_dir()]
        assert not any(path.is_symlink() for path in package.rglob("*"))
        assert not any("__pycache__" in path.parts for path in files)
        copied = {path.relative_to(package).as_posix() for path in files}
        for wing in ("kernels", "sharding", "pipelines", "cluster"):
            real = {
                f"{wing}/{path.relative_to(ROOT / wing).as_posix()}"
                for path in (ROOT / wing).rglob("*")
                if path.is_file()
                and not any(part == "__pycache__" or part[0] == "." for part in path.parts)
            }
            assert real, f"{wing} has files"
            assert real <= copied
        assert "config.py" in copied
    assert not package.exists()
