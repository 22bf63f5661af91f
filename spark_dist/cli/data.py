"""`spark-dist data prepare FILES... --out DIR`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tyro

from spark_dist.pipelines import Progress, prepare

from ..console import Console
from ..errors import UserError
from .parse import parse

ACTIONS = ("prepare",)


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """Options of `data prepare`."""

    corpus: tyro.conf.Positional[tuple[str, ...]]
    """Text, JSONL or Parquet files, globs or folders."""
    out: str
    """Folder for the tokens; give it to `train --data.corpus`."""
    validation: tuple[str, ...] = ()
    """Held-out files; every hundredth document of the corpus when not given."""
    text_field: str = "text"
    """Field or column that holds the text of JSONL and Parquet documents."""
    tokenizer: str = "byte"
    """"byte", or a SentencePiece (.model) or tokenizers (.json) file."""
    jobs: int = 0
    """Processes; 0: one a CPU."""
    json: bool = False
    """Print nothing but one JSON line at the end."""


def main(args: Sequence[str]) -> int:
    """Tokenises a corpus once, in parallel; a second call goes on where the first was ended."""
    if not args or args[0] in ("-h", "--help"):
        print("usage: spark-dist data {prepare} [OPTIONS]\n\n  prepare  tokenise a corpus once")
        return 0 if args else 2
    if args[0] not in ACTIONS:
        raise UserError(f"unknown action {args[0]!r}; choose from {', '.join(ACTIONS)}")
    options = parse(
        PrepareOptions,
        args[1:],
        prog="spark-dist data prepare",
        description="Tokenises a corpus of any size once, in parallel, to rows read at random.",
    )
    console = Console(json=options.json)

    def tell(progress: Progress) -> None:
        console.note(
            f"shard {progress.done} of {progress.total}: {progress.documents:,} documents, "
            f"{progress.tokens:,} tokens"
        )

    made = prepare(
        corpus=options.corpus,
        out=options.out,
        validation=options.validation,
        text_field=options.text_field,
        tokenizer=options.tokenizer,
        jobs=options.jobs,
        on_progress=tell,
    )
    if options.json:
        console.print_json(asdict(made))
        return 0
    console.note(
        f"{made.train_tokens:,} training and {made.validation_tokens:,} held-out tokens in "
        f"{made.out}; train on them with: spark-dist train --data.corpus {made.out}"
    )
    return 0
