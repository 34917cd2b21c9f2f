"""Files that options name: checks of their places, and writing them whole."""

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from payclient.errors import ConfigurationError
from payclient.validation import file_fault


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for its owner only. At the end it replaces the one at `path`; after an error it is removed."""
    # A random name: one by the process id may be there already, from a process that was killed. Containers reuse ids.
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


@contextmanager
def option_file(option: str, path: Path) -> Iterator[BinaryIO]:
    """Open a file that an option names, as `atomic_write`. Raises `ConfigurationError` where it cannot be written."""
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"{option} {path.name}: cannot be written: {error.strerror}") from None


def write_file(option: str, path: Path, content: bytes) -> None:
    """Write a whole file that an option names. Raises `ConfigurationError` where it cannot be written."""
    with option_file(option, path) as file:
        file.write(content)


def unfit(option: str, path: Path, words: str) -> ConfigurationError:
    """Return the error of a file that an option names and that is not fit for it, found before anything is sent."""
    return ConfigurationError(f"{option} {path.name}: {words}; nothing was sent")


def check_regular(option: str, path: Path) -> None:
    """Raise `ConfigurationError` for a directory, a pipe or a device."""
    if fault := file_fault(path):
        raise unfit(option, path, fault)


def check_output(option: str, path: Path, *endings: str, mark: bytes | None = None) -> None:
    """Raise `ConfigurationError` where a file cannot be written later, or has none of the endings.

    With a `mark`, also where a file is there that is not empty and begins without that: somebody else wrote it.
    """
    if endings and path.suffix.lower() not in endings:
        raise unfit(option, path, f"must end in {' or '.join(endings)}")
    check_regular(option, path)
    if not path.parent.is_dir():
        raise unfit(option, path, "its directory does not exist")
    if not os.access(path.parent, os.W_OK):  # the file is made beside, and takes the place of an earlier one
        raise unfit(option, path, f"cannot be written: {os.strerror(errno.EACCES)}")
    if mark is not None and path.exists() and mark not in (path.read_bytes()[:400] or mark):
        raise unfit(option, path, "is there already, and payclient did not write it")


def check_apart(named: Mapping[str, Path | None]) -> None:
    """Raise `ConfigurationError` where one file is named for two things."""
    seen: dict[object, str] = {}
    for option, path in named.items():
        if path is None:
            continue
        found = path.stat() if path.exists() else None
        key = os.path.realpath(path) if found is None else (found.st_dev, found.st_ino)
        if seen.setdefault(key, option) != option:
            raise unfit(option, path, f"is the same file as {seen[key]}; each must have its own")
