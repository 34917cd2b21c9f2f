"""Ways to break the promises, each a patch of named shipped functions. The simulation must see all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs

import payclient
from payclient import State, wire
from payclient.credentials import Credentials
from payclient.errors import OutcomeUnknownError
from payclient.events import Event, FoundAccepted, NotSent
from payclient.exchanging import Exchanges
from payclient.following import Following
from payclient.following.driving import Driver
from payclient.following.entries import Case, Entry
from payclient.lifecycle import Record
from payclient.outcomes import Outcome
from payclient.permits import Attempt, Permits, TakenError
from payclient.session import PaySession
from payclient.tracker import Tracker

__all__ = ["VARIANTS", "broken"]

#: (class or module, name of its function, what stands in its place)
Patch = tuple[Any, str, Any]


def _resend_after_crash() -> list[Patch]:
    """Whatever a crash left SENDING was not sent."""

    async def recover(self: Tracker) -> None:
        async for record in self._ledger.unfinished():
            if record.state is State.SENDING:
                record = await self._ledger.apply(record, NotSent(at=self._clock.time()))
            self._follow(record)

    return [(Tracker, "_recover", recover)]


def _retrying(good: Callable[[OutcomeUnknownError], bool]) -> list[Patch]:
    shipped = PaySession.send_sale

    async def send_sale(
        self: PaySession, request: wire.HttpRequest, before_send: Any = None, **options: Any
    ) -> payclient.SaleResult:
        try:
            return await shipped(self, request, before_send, **options)
        except OutcomeUnknownError as error:
            if not good(error):
                raise
        return await shipped(self, request, None, **options)

    return [(PaySession, "send_sale", send_sale)]


def _retry_the_ambiguous() -> list[Patch]:
    """A reset or a time-out is sent again."""
    return _retrying(lambda error: error.http_status is None)


def _retry_5xx() -> list[Patch]:
    """A 5xx is sent again."""
    return _retrying(lambda error: (error.http_status or 0) >= 500)


def _follow_redirects() -> list[Patch]:
    """307 and 308 repeat the POST."""
    shipped = Exchanges._send

    async def send(self: Exchanges, request: wire.HttpRequest, gate: Any) -> wire.HttpResponse:
        response = await shipped(self, request, gate)
        if response.status in (307, 308):
            return await self._transport(request, None)
        return response

    return [(Exchanges, "_send", send)]


async def _no_insert(self: Attempt) -> None:
    self.record = attrs.evolve(self.record, created_at=self._permits.clock.time())
    self.asked = self.granted = True


def _no_permit() -> list[Patch]:
    """Nothing is written before the send."""
    return [(Attempt, "permit", _no_insert)]


def _record_after_send() -> list[Patch]:
    """The row is written with the answer."""
    shipped = Permits.write

    async def write(self: Permits, record: Record, event: Event) -> Record:
        await self.ledger.permit(record)
        return await shipped(self, record, event)

    return [(Attempt, "permit", _no_insert), (Permits, "write", write)]


def _no_clock_check() -> list[Patch]:
    """A permit is good for ever."""

    async def permit(self: Attempt) -> None:
        self.record = attrs.evolve(self.record, created_at=self._permits.clock.time())
        self.asked = True
        if not await self._permits.ledger.permit(self.record):
            self.asked = False
            raise TakenError
        self.granted = True

    return [(Attempt, "permit", permit)]


def _trust_the_notification() -> list[Patch]:
    """Who is notified was paid."""
    shipped = Following.notify

    async def notify(self: Following, notification: payclient.Notification) -> payclient.Receipt:
        receipt = await shipped(self, notification)
        entry = self._entries.get(notification.client_transaction_id)
        if receipt is payclient.Receipt.MATCHED and entry is not None:
            event = FoundAccepted(at=self._clock.time(), transaction_id=notification.transaction_id)
            await self._entries.apply(entry, event)
        return receipt

    return [(Following, "notify", notify)]


def _unmapped_word() -> list[Patch]:
    """A state that the profile does not name is a good one."""
    shipped = wire._read_report

    def read_report(entry: dict[str, Any], profile: payclient.ServiceProfile) -> payclient.StatusReport:
        report = shipped(entry, profile)
        return report if report.state is not None else attrs.evolve(report, state="Aceptado")

    return [(wire, "_read_report", read_report)]


def _busy_clears() -> list[Patch]:
    """Code 2061 in its lane says that the unknown sale is not there."""

    async def suspect(self: Following, lane: bytes) -> None:
        for entry in self._entries.values():
            if entry.record.state is State.UNKNOWN and entry.record.lane == lane:
                await self._entries.apply(entry, NotSent(at=self._clock.time()))

    return [(Following, "suspect", suspect)]


def _expiry_says_unpaid() -> list[Patch]:
    """Who did not answer in time did not pay."""

    def paid(self: Outcome) -> bool | None:
        return False if self.state is State.EXPIRED else self.state.paid

    return [(Outcome, "paid", property(paid))]


def _resend_at_five_minutes() -> list[Patch]:
    """An unknown sale is over with its window."""
    shipped = Driver._query

    async def query(self: Driver, entry: Entry) -> None:
        if entry.record.state is State.UNKNOWN and self._clock.monotonic() >= entry.expires:
            await self._entries.apply(entry, NotSent(at=self._clock.time()))
        await shipped(self, entry)

    return [(Driver, "_query", query)]


@attrs.frozen
class Variant:
    """One way; `kinds` are those of the worlds in which it shows."""

    patches: Callable[[], list[Patch]]
    kinds: frozenset[str] = frozenset()


def _believe_another_account() -> list[Patch]:
    """Whoever says "not found" is believed."""
    return [(Credentials, "may_deny", lambda self, record: True)]


def _no_candidates() -> list[Patch]:
    """What an answer or a notification named is never asked for."""
    return [(Case, "candidate", lambda self, record: None), (Case, "all_missing", lambda self, record: True)]


#: Name -> how it is broken.
VARIANTS = {
    "resend after crash": Variant(_resend_after_crash),
    "retry the ambiguous": Variant(_retry_the_ambiguous),
    "record after send": Variant(_record_after_send),
    "trust the notification": Variant(_trust_the_notification),
    "an unmapped word is accepted": Variant(_unmapped_word),
    "no clock check": Variant(_no_clock_check),
    "2061 clears": Variant(_busy_clears),
    "5xx retried": Variant(_retry_5xx),
    "follow redirects": Variant(_follow_redirects),
    "expiry says unpaid": Variant(_expiry_says_unpaid),
    "resend at five minutes": Variant(_resend_at_five_minutes),
    "no permit": Variant(_no_permit),
    "another account is believed": Variant(_believe_another_account, frozenset({"another account"})),
    "no candidate is asked for": Variant(_no_candidates, frozenset({"names"})),
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """The shipped modules with one promise broken, for as long as this lasts."""
    patches = [patch.object(*each) for each in VARIANTS[name].patches()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()
