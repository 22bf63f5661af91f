"""A corpus, and the command line called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # spine; Ray gives its workers the driver's path

import spine  # noqa: E402


@dataclass(frozen=True)
class Said:
    """What a command returned and wrote."""

    code: int
    out: str
    err: str

    def refused(self, *words: str, code: int = 2) -> None:
        """Checks for one line on standard error that holds `words`, and the exit code."""
        assert self.err.startswith("spark-dist: error: "), self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        assert self.code == code, self
        for word in words:
            assert word in self.err, self


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """call("train", ...): the command line in this process."""
    from spark_dist.cli.main import main

    def run(*args: str | Path) -> Said:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return spine.write_corpus(tmp_path_factory.mktemp("corpus") / "words.txt")
