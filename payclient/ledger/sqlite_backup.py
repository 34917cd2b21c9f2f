"""A copy of a SQLite ledger, made beside its owner by a connection that only reads."""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing, suppress
from urllib.parse import quote

from payclient.errors import ConfigurationError, LedgerMissingError, LedgerUnavailableError, PayError
from payclient.ledger.sqlite_files import BUSY, unavailable
from payclient.ledger.sqlite_schema import APPLICATION_ID, VERSION

__all__ = ["back_up"]


def back_up(source: str, target: str) -> None:
    """Copy the ledger at `source`, as of one commit, to `target`: a new file of mode 0600, whole or not there.

    Raises `ConfigurationError` where `target` is there already or `source` is not a ledger of this version,
    `LedgerMissingError`, `LedgerUnavailableError`.
    """
    source, target = os.path.realpath(source), os.path.abspath(target)
    if not os.path.isfile(source):
        raise LedgerMissingError(f"the ledger must exist, and there is no ledger at {source}")
    unfinished = f"{target}.{secrets.token_hex(8)}.part"
    fault: PayError
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        try:
            _copy(source, unfinished)
            _sync(unfinished)
            # Fails where the name is taken, as a rename does not.
            os.link(unfinished, target)
        finally:
            for leftover in (unfinished, f"{unfinished}-journal", f"{unfinished}-wal", f"{unfinished}-shm"):
                with suppress(FileNotFoundError):
                    os.unlink(leftover)
        _sync(os.path.dirname(target))
    except FileExistsError:
        fault = ConfigurationError(
            f"the backup must be a new file; {target} is there already and stays as it is"
        )
    except (OSError, sqlite3.Error) as error:
        fault = unavailable(error, "backed up")
    else:
        return
    raise fault


def _copy(source: str, target: str) -> None:
    address = f"file:{quote(os.fsencode(source))}?mode=ro"
    with (
        closing(sqlite3.connect(address, uri=True, timeout=BUSY, isolation_level=None)) as ledger,
        closing(sqlite3.connect(target, isolation_level=None)) as copy,
    ):
        found = [
            ledger.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        ]
        if found != [APPLICATION_ID, VERSION]:
            raise ConfigurationError(
                f"the file must be a ledger of schema version {VERSION}: nothing was copied"
            )
        # In one step: a snapshot of one commit, while the owner goes on writing.
        ledger.backup(copy)
        # One file, without a write-ahead log that would have to go with it.
        copy.execute("PRAGMA journal_mode = DELETE")
        if copy.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise LedgerUnavailableError(
                "the copy of the ledger is damaged, and perhaps the ledger: nothing was kept"
            )


def _sync(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
