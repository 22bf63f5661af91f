"""Digests by which hosts tell that they run the same thing. No JAX here."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from .config import RunConfig


@functools.cache
def code_digest() -> str:
    """SHA-256 over the names and bytes of the package's Python files, the wings included."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    names = []
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        names += [Path(folder) / f for f in files if f.endswith(".py")]
    for path in sorted(names):
        digest.update(str(path.relative_to(root)).encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def config_digest(config: RunConfig) -> str:
    """SHA-256 of the configuration's canonical JSON."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()
