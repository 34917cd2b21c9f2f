"""Ways to break the promises, each a patch of named shipped functions. The simulation must see all of them."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import attrs

import payclient
from payclient import State, lifecycle, permits, tracker, wire
from payclient.credentials import Credentials
from payclient.errors import OutcomeUnknownError
from payclient.events import Event, FoundAccepted, NotSent
from payclient.following import Following, driving
from payclient.following.driving import Driver
from payclient.following.entries import Case, Entry
from payclient.following.planning import Planning
from payclient.following.querying import Querying
from payclient.following.turns import Pace
from payclient.lifecycle import Record
from payclient.outcomes import Outcome
from payclient.permits import Attempt, Permits, TakenError
from payclient.sending import Sender
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
    shipped = PaySession._send_once

    async def send(self: PaySession, request: wire.HttpRequest, proof: Any) -> wire.HttpResponse:
        response = await shipped(self, request, proof)
        if response.status in (307, 308):
            return await self._transport(request, None)
        return response

    return [(PaySession, "_send_once", send)]


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


def _believe_a_namesake() -> list[Patch]:
    """What is found is ours, whoever's token found it."""
    shipped = Querying._take

    async def take(self: Querying, entry: Entry, *answer: Any) -> bool:
        with patch.object(Credentials, "may_deny", lambda self, record: True):
            return await shipped(self, entry, *answer)

    return [(Querying, "_take", take)]


def _no_candidates() -> list[Patch]:
    """What an answer or a notification named is never asked for."""
    return [(Case, "candidate", lambda self, record: None), (Case, "all_missing", lambda self, record: True)]


def _refusals_are_proof() -> list[Patch]:
    """What is refused as existing does not exist: 2061 and duplicates are taken at their word."""

    async def find_existing(self: Sender, *_: object) -> None:
        return None

    return [(Sender, "_find_existing", find_existing)]


def _look_alikes_refuse() -> list[Patch]:
    """An error object refuses, whatever transaction id stands beside or within it."""
    return [(wire.Answer, "may_name_a_transaction", False)]


def _one_of_several_decides() -> list[Patch]:
    """A cancelled transaction is the whole story, whatever else its client transaction id has."""

    async def look_at_all(self: Querying, entry: Entry) -> payclient.StatusReport:
        return payclient.StatusReport(state="Cancelado")

    return [(Querying, "_look_at_all", look_at_all)]


def _one_name_mutes_another() -> list[Patch]:
    """Of the transaction ids that were named only the first is kept."""
    return [(lifecycle, "_with_candidate", lambda known, candidate_id: known or (candidate_id,))]


def _slower_without_end() -> list[Patch]:
    """Each 429 doubles the gap, however long it is already, and its pause has no bound."""

    def rate_limited(self: Pace, now: float, made_at: float, retry_after: float | None) -> None:
        if not self.paused(now):
            self._slowness = max(2 * self._slowness, 0.1)
        self._paused_until = max(self._paused_until, now + (5.0 if retry_after is None else retry_after))

    def answered(self: Pace, made_at: float) -> None:
        self._slowness = self._slowness * 0.95 if self._slowness > 0.01 else 0.0

    return [
        (Pace, "rate_limited", rate_limited),
        (Pace, "answered", answered),
        (Planning, "end", lambda self, case, expires: math.inf),
    ]


def _late_news_at_once() -> list[Patch]:
    """A notification of what is decided is asked for past the rate."""

    def look_again(self: Driver, record: Record) -> None:
        if self._querying is not None and record.state is not State.ACCEPTED:
            asyncio.get_running_loop().create_task(self._query_late(Entry(record, 0.0)))

    return [(Driver, "look_again", look_again)]


def _endless_source() -> list[Patch]:
    """A status source of the user's has all the time that it takes."""
    return [(tracker, "bounded_status", lambda source, clock, seconds: source)]


def _memory_says_more() -> list[Patch]:
    """What the ledger could not take is true all the same."""
    return [(permits, "_unwritten", lifecycle.advance)]


def _tasks_begin_at_once() -> list[Patch]:
    """A query's task is stored by its creator, who may be the later one of the two."""
    return [(driving, "start", lambda work: asyncio.get_running_loop().create_task(work))]


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
    "a namesake is believed": Variant(_believe_a_namesake, frozenset({"another account"})),
    "no candidate is asked for": Variant(_no_candidates, frozenset({"names"})),
    "one name mutes another": Variant(_one_name_mutes_another, frozenset({"names"})),
    "look-alikes refuse": Variant(_look_alikes_refuse, frozenset({"names"})),
    "refusals are proof": Variant(_refusals_are_proof, frozenset({"repeats"})),
    "one of several decides": Variant(_one_of_several_decides, frozenset({"twins"})),
    "slower without end": Variant(_slower_without_end, frozenset({"sheds"})),
    "late news at once": Variant(_late_news_at_once, frozenset({"storms"})),
    "endless source": Variant(_endless_source, frozenset({"hangs"})),
    "memory says more": Variant(_memory_says_more, frozenset({"outages"})),
}
if sys.version_info >= (3, 12):
    VARIANTS["tasks begin at once"] = Variant(_tasks_begin_at_once, frozenset({"eager"}))


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
