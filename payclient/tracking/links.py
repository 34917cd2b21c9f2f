"""The links of forms in the ledger while they live: secrets, which are in no log and no `repr`."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import orjson

from payclient.clock import cancel_all, start, within
from payclient.errors import LedgerError
from payclient.lifecycle import Record
from payclient.models import FormLinks, PrepareResult
from payclient.tracking.asks import OpenAsks

__all__: list[str] = []

#: Seconds after which the ledger is asked again to delete what it could not.
AGAIN = 60.0


class KeptLinks:
    """Keeps links where other processes and the next one find them, and deletes them once they are dead."""

    def __init__(self, asks: OpenAsks, lifetime: float, *, keeps: bool) -> None:
        self._asks = asks
        self._lifetime = lifetime
        self._keeps = keeps
        #: Set where links may be dead.
        self._died = asyncio.Event()
        #: Whether some links are known to die.
        self._waits = False
        self._dropping: asyncio.Task[None] | None = None
        asks.on_form_decided = self.drop

    async def keep(self, record: Record, result: PrepareResult, prepared_at: float) -> None:
        """Keep a form's links in the ledger while they live. Without them only this process can hand the form out."""
        if not self._keeps:
            return
        kept = {"payment_id": result.payment_id, "prepared_at": prepared_at, "links": dict(result.links)}
        try:
            await self._asks.ledger.keep_links(
                record, orjson.dumps(kept).decode(), prepared_at + self._lifetime
            )
        except LedgerError as error:
            self._asks.late.failed(error)
        else:
            if not self._waits:
                self.drop()  # now, and when these die

    def drop(self) -> None:
        """Delete what is dead, in a task of its own."""
        self._died.set()
        if self._dropping is None and not self._asks.closed:
            self._dropping = start(self._drop())

    async def _drop(self) -> None:
        clock = self._asks.clock
        while True:
            self._died.clear()
            try:
                until = await self._asks.ledger.drop_links(clock.time())
            except LedgerError as error:
                self._asks.late.failed(error)
                until = clock.time() + AGAIN
            self._waits = until is not None
            if until is None:
                await self._died.wait()
            else:
                with suppress(TimeoutError):
                    await within(clock, max(until - clock.time(), 0.0), self._died.wait())

    async def aclose(self) -> None:
        """Stop deleting; the next process goes on."""
        if self._dropping is not None:
            await cancel_all([self._dropping])


def read_links(text: str, wallet_link_field: str | None) -> tuple[PrepareResult, float]:
    """Return the form that was kept, and when it was prepared (UTC seconds)."""
    kept = orjson.loads(text)
    links = FormLinks(kept["links"])
    result = PrepareResult(payment_id=kept["payment_id"], links=links, wallet_link_field=wallet_link_field)
    return result, kept["prepared_at"]
