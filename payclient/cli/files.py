"""Files that options name: checks of their places, and writing them whole."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

from payclient.errors import ConfigurationError
from payclient.validation import file_fault

#: Opens a new file for its owner only.
private: partial[int] = partial(os.open, mode=0o600)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for its owner only. At the end it replaces the one at `path`; after an error it is removed."""
    # A process of the same number, which each container has, may have been killed here: its file is still there.
    number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    beside = Path(name)
    try:
        with open(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_file(option: str, path: Path, content: bytes) -> None:
    """Write a whole file that an option names. Raises `ConfigurationError` where it cannot be written."""
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigurationError(f"{option} {path.name}: cannot be written: {error.strerror}") from None


def check_regular(option: str, path: Path) -> None:
    """Raise `ConfigurationError` for a directory, a pipe or a device."""
    if fault := file_fault(path):
        raise ConfigurationError(f"{option} {path.name}: {fault}; nothing was sent")


def check_output(option: str, path: Path, *endings: str) -> None:
    """Raise `ConfigurationError` where a file cannot be written later, or has none of the endings."""
    if path.suffix.lower() not in endings:
        raise ConfigurationError(
            f"{option} {path.name}: must end in {' or '.join(endings)}; nothing was sent"
        )
    check_regular(option, path)
    if not path.parent.is_dir():
        raise ConfigurationError(f"{option} {path.name}: its directory does not exist; nothing was sent")
    if not os.access(path.parent, os.W_OK):  # the file is made beside, and takes the place of an earlier one
        why = os.strerror(errno.EACCES)
        raise ConfigurationError(f"{option} {path.name}: cannot be written: {why}; nothing was sent")


def check_apart(named: Mapping[str, Path | None]) -> None:
    """Raise `ConfigurationError` where one file is named for two things."""
    seen: dict[object, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        found = path.stat() if path.exists() else None
        key = os.path.realpath(path) if found is None else (found.st_dev, found.st_ino)
        if seen.setdefault(key, option) != option:
            raise ConfigurationError(
                f"{option} {path.name}: is the same file as {seen[key]}; each must have its own; nothing was sent"
            )
