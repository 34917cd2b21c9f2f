"""What a ledger's writer is asked for; each has a future for its answer.

Mutable, since attrs makes those four times as fast; nothing changes them but the writer that has them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import attrs

from payclient.events import Event
from payclient.lifecycle import Record

__all__ = ["Apply", "Get", "Operation", "Permit", "Read", "Write"]


@attrs.define(eq=False)
class Permit:
    """Insert the attempt; whether it was granted."""

    future: asyncio.Future[Any]
    record: Record
    row: tuple[Any, ...]


@attrs.define(eq=False)
class Apply:
    """Let the attempt take the event; the record as it is then."""

    future: asyncio.Future[Any]
    record: Record
    event: Event
    #: None where the caller's record does not take the event; the ledger's may.
    after: Record | None = None
    row: tuple[Any, ...] = ()


@attrs.define(eq=False)
class Get:
    """The newest attempts of these ids, by id."""

    future: asyncio.Future[Any]
    ids: Sequence[str]


@attrs.define(eq=False)
class Read:
    """The rows of a query."""

    future: asyncio.Future[Any]
    sql: str
    parameters: tuple[Any, ...]


Write = Permit | Apply
Operation = Write | Get | Read
