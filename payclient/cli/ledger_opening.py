"""A ledger that must be there already, for one thing to be done with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

from cyclopts import Parameter

from payclient.errors import ConfigurationError
from payclient.ledger import Ledger, open_ledger
from payclient.lifecycle import Record

__all__: list[str] = []

T = TypeVar("T")

Identifier = Annotated[str, Parameter(help="The client transaction id.")]


def with_ledger(url: str | None, work: Callable[[Ledger], Awaitable[T]]) -> T:
    """Do one thing with the ledger of a URL, which must be there already."""

    async def run() -> T:
        async with opened(url) as book:
            return await work(book)

    return asyncio.run(run())


@asynccontextmanager
async def opened(url: str | None) -> AsyncIterator[Ledger]:
    """The ledger of a URL, which must be there already."""
    if not url:
        raise ConfigurationError("give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER")
    if url.startswith("memory:"):
        raise ConfigurationError("a memory: ledger ended with its process; there is nothing to read")
    # Making one here would let a mistyped path look like a clean sheet.
    book = await open_ledger(url, create=False)
    try:
        yield book
    finally:
        await book.aclose()


async def newest(book: Ledger, identifier: str) -> Record:
    """The newest attempt of a sale. Raises `ConfigurationError` where there is none."""
    record = await book.get(identifier)
    if record is None:
        raise ConfigurationError(f"the ledger has no sale {identifier!r}")
    return record
