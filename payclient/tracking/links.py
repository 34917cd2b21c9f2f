"""The links of forms in the ledger while they live: secrets, which are in no log and no `repr`."""

from __future__ import annotations

import asyncio
import math

import orjson

from payclient.clock import Timer, start
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
        self._timer: Timer | None = None
        self._timer_at = math.inf
        self._dropping: asyncio.Task[None] | None = None
        self._again = False
        asks.form_decided = self.drop

    async def keep(self, record: Record, result: PrepareResult, prepared_at: float) -> None:
        """Keep a form's links while they live. Where the ledger fails it is a form all the same."""
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
            self._drop_in(self._lifetime)

    def drop(self) -> None:
        """Delete what is dead, in a task of its own."""
        self._again = True
        if self._dropping is None and not self._asks.closed:
            self._dropping = start(self._drop())

    async def _drop(self) -> None:
        try:
            while self._again:
                self._again = False
                until = await self.drop_now()
                if until is not None:
                    self._drop_in(until - self._asks.clock.time())
        except LedgerError as error:
            self._asks.late.failed(error)
            self._drop_in(AGAIN)
        finally:
            self._dropping = None

    async def drop_now(self) -> float | None:
        """Delete what is dead; when the next links are, in UTC seconds."""
        return await self._asks.ledger.drop_links(self._asks.clock.time())

    def _drop_in(self, seconds: float) -> None:
        clock = self._asks.clock
        when = clock.monotonic() + max(seconds, 0.0)
        if when < self._timer_at and not self._asks.closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = clock.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.drop()

    async def aclose(self) -> None:
        """Delete nothing more: the next process does."""
        if self._timer is not None:
            self._timer.cancel()
        if self._dropping is not None:
            self._dropping.cancel()
            await asyncio.gather(self._dropping, return_exceptions=True)


def read_links(text: str, wallet_link_field: str | None) -> tuple[PrepareResult, float]:
    """Return the form that was kept, and when it was prepared (UTC seconds)."""
    kept = orjson.loads(text)
    links = FormLinks(kept["links"])
    result = PrepareResult(payment_id=kept["payment_id"], links=links, wallet_link_field=wallet_link_field)
    return result, kept["prepared_at"]
