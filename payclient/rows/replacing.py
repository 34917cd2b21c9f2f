"""A file written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file beside `path`, which is on disk and in its place when this ends, and gone where this fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "xb", opener=partial(os.open, mode=mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
