"""What is read: corpora, tokenizers, packed rows, the data cursor. Nothing here loads JAX
before `batches` is called."""

from .corpora import Corpus, check_cursor, open_corpus
from .errors import DataError, WorkerDied
from .loader import BatchIterator, batches, validation_batches
from .preparation import PreparedReport, Progress, prepare
from .rows import Rows
from .stream import TokenStream
from .tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "BatchIterator",
    "Corpus",
    "DataError",
    "PreparedReport",
    "Progress",
    "Rows",
    "TokenStream",
    "Tokenizer",
    "WorkerDied",
    "batches",
    "check_cursor",
    "load_tokenizer",
    "open_corpus",
    "prepare",
    "validation_batches",
]
