"""Ways to break the promises, each a patch of named shipped functions. The simulation must see all of them."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import attrs

import payclient
from payclient import State, answers, clock, lifecycle, wire
from payclient.errors import OutcomeUnknownError
from payclient.events import Event, FoundAccepted, NotSent
from payclient.ledger.sqlite_files import STATEMENTS
from payclient.lifecycle import Record
from payclient.session import Call, PaySession
from payclient.tracking import attempts, forms, late_writes, purchases, queries, tracker
from payclient.tracking.arrivals import Arrivals
from payclient.tracking.asks import OpenAsks
from payclient.tracking.attempts import Attempt, Attempts, PermitDeniedError
from payclient.tracking.evidence import AnswerReader, Credentials, Reading
from payclient.tracking.followup import Followed, Policy
from payclient.tracking.forms import Forms
from payclient.tracking.late_writes import LateWrites
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller
from payclient.tracking.rate_limit import RateLimit
from payclient.tracking.refusals import Refusals
from worlds import store

__all__ = ["VARIANTS", "broken"]

#: (class or module, name of its function, what stands in its place)
Patch = tuple[Any, str, Any]


def _resend_after_crash() -> list[Patch]:
    """Whatever a crash left SENDING was not sent."""

    async def take_over(poller: Poller, records: Sequence[Record]) -> None:
        for record in records:
            if record.state is State.SENDING:
                record = await poller.asks.ledger.apply(record, NotSent(at=poller.clock.time()))
            poller.asks.follow(record)

    return [(tracker, "take_over", take_over)]


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


def _follow_redirects() -> list[Patch]:
    """307 and 308 repeat the POST."""
    shipped = PaySession._send_once

    async def send(self: PaySession, call: Call) -> wire.HttpResponse:
        response = await shipped(self, call)
        if response.status in (307, 308):
            return await self._transport(call.request, None)
        return response

    return [(PaySession, "_send_once", send)]


async def _no_insert(self: Attempts, attempt: Attempt) -> None:
    attempt.record, attempt.granted = self._record(attempt), True


def _record_after_send() -> list[Patch]:
    """The row is written with the answer."""
    shipped = LateWrites.write

    async def write(self: LateWrites, record: Record, event: Event) -> Record:
        await self._ledger.permit(record)
        return await shipped(self, record, event)

    return [(Attempts, "_permit", _no_insert), (LateWrites, "write", write)]


def _no_clock_check() -> list[Patch]:
    """A permit is good for ever."""

    async def permit(self: Attempts, attempt: Attempt) -> None:
        record = self._record(attempt)
        if not await self._ledger.permit(record):
            raise PermitDeniedError
        attempt.record, attempt.granted = record, True

    return [(Attempts, "_permit", permit)]


def _trust_the_notification() -> list[Patch]:
    """Who is notified was paid."""
    shipped = Arrivals.notify

    async def notify(self: Arrivals, notification: payclient.Notification) -> payclient.Receipt:
        receipt = await shipped(self, notification)
        ask = self._poller.asks.find(notification.client_transaction_id)
        if receipt is payclient.Receipt.MATCHED and ask is not None:
            event = FoundAccepted(at=self._clock.time(), transaction_id=notification.transaction_id)
            await self._poller.asks.apply(ask, event)
        return receipt

    return [(Arrivals, "notify", notify)]


def _unmapped_word() -> list[Patch]:
    """A state that the profile does not name is a good one."""
    shipped = wire._read_report

    def read_report(entry: dict[str, Any], profile: payclient.ServiceProfile) -> payclient.StatusReport:
        report = shipped(entry, profile)
        return report if report.state is not None else attrs.evolve(report, state="Aceptado")

    return [(wire, "_read_report", read_report)]


def _busy_clears() -> list[Patch]:
    """Code 2061 in its lane says that the unknown sale is not there."""

    async def suspect(self: OpenAsks, lane: bytes) -> None:
        for ask in self.all():
            if ask.record.state is State.UNKNOWN and ask.record.lane == lane:
                await self.apply(ask, NotSent(at=self.clock.time()))

    return [(OpenAsks, "suspect", suspect)]


def _resend_at_five_minutes() -> list[Patch]:
    """An unknown sale is over with its window."""
    shipped = Poller._follow_up

    async def follow_up(self: Poller, ask: Followed, *, queries: bool) -> payclient.StatusReport | None:
        if ask.record.state is State.UNKNOWN and self.clock.monotonic() >= ask.expires:
            await self.asks.apply(ask, NotSent(at=self.clock.time()))
        return await shipped(self, ask, queries=queries)

    return [(Poller, "_follow_up", follow_up)]


@attrs.frozen
class Variant:
    """One way; `kinds` are those of the worlds in which it shows."""

    patches: Callable[[], list[Patch]]
    kinds: frozenset[str] = frozenset()


def _take_copies() -> list[Patch]:
    """Whatever transaction an answer names is its Sale's."""
    unguarded = STATEMENTS["schema"].replace("new.event = 'Created'", "false")
    return [(Attempts, "_check_new", lambda self, identifier, result: None), _of_schema(unguarded)]


def _of_schema(schema: str) -> Patch:
    """Ledgers of the worlds that begin with another schema than the shipped one."""
    with patch.dict(STATEMENTS, schema=schema):
        image = store._empty.__wrapped__()
    return (store, "_empty", lambda: image)


def _believe_a_namesake() -> list[Patch]:
    """What is found is ours, whoever's token found it."""
    shipped = AnswerReader.report

    def read(self: AnswerReader, report: payclient.StatusReport) -> Reading:
        with patch.object(Credentials, "can_see", _always):
            return shipped(self, report)

    return [(AnswerReader, "report", read)]


def _one_of_several_decides() -> list[Patch]:
    """A cancelled transaction is the whole story, whatever else its client transaction id has."""
    shipped = AnswerReader.report

    def read(self: AnswerReader, report: payclient.StatusReport) -> Reading:
        reading = shipped(self, report)
        if not reading.needs_second_query:
            return reading
        queried_id = self.query.transaction_id or self.query.candidate_id
        return self._verdict(attrs.evolve(report, transaction_id=queried_id))

    return [(AnswerReader, "report", read)]


def _slower_without_end() -> list[Patch]:
    """Each 429 doubles the gap, however long it is already, and its pause has no bound."""

    def rate_limited(self: RateLimit, now: float, made_at: float, retry_after: float | None) -> None:
        if not self.is_paused(now):
            self._slowdown = max(2 * self._slowdown, 0.1)
        self._paused_until = max(self._paused_until, now + (5.0 if retry_after is None else retry_after))

    def note_success(self: RateLimit, made_at: float) -> None:
        self._slowdown = self._slowdown * 0.95 if self._slowdown > 0.01 else 0.0

    return [
        (RateLimit, "rate_limited", rate_limited),
        (RateLimit, "note_success", note_success),
        (Policy, "latest_end", lambda self, ask: math.inf),
    ]


def _late_news_at_once() -> list[Patch]:
    """A notification of what is decided is queried past the rate."""

    def recheck(self: Poller, record: Record, *, after: float = 0.0) -> None:
        if self.policy.can_query and record.state is not State.ACCEPTED:
            ask = Followed(record, 0.0, 0.0)
            query = self.policy.begin_query(ask, self.clock.monotonic())
            asyncio.get_running_loop().create_task(self.queries.query(ask, query))

    return [(Poller, "recheck", recheck)]


def _unguarded(change: Callable[[str], str]) -> Patch:
    """The shipped schema with another guard of permits."""
    whole = STATEMENTS["schema"]
    begin = whole.index("WHERE purchase = new.purchase")
    end = whole.index("\n)\nBEGIN SELECT RAISE(ABORT, 'not a permit')", begin)
    return _of_schema(f"{whole[:begin]}{change(whole[begin:end])}{whole[end:]}")


def _forms_forgotten() -> list[Patch]:
    """A form that another process or an earlier life of this one prepared is not known."""
    mine: WeakKeyDictionary[Poller, set[str]] = WeakKeyDictionary()
    prepare, find, living = Forms.prepare, purchases.find_holder, Forms._find_live

    def known(poller: Poller, records: Iterable[Record]) -> list[Record]:
        own = mine.get(poller, ())
        return [each for each in records if each.kind != "form" or each.client_transaction_id in own]

    async def prepare_and_remember(
        self: Forms, request: payclient.PrepareRequest, purchase: str | None = None
    ) -> Any:
        mine.setdefault(self._poller, set()).add(request.client_transaction_id)
        return await prepare(self, request, purchase)

    def find_holder(poller: Poller, asks: Iterable[Record], **options: Any) -> Record | None:
        return find(poller, known(poller, asks), **options)

    async def find_living(self: Forms, key: str, asks: list[Record], margin: float) -> Any:
        return await living(self, key, known(self._poller, asks), margin)

    return [
        _unguarded(lambda rule: f"{rule} AND kind <> 'form'"),
        (Forms, "prepare", prepare_and_remember),
        (Forms, "_find_live", find_living),
        (forms, "find_holder", find_holder),
        (attempts, "find_holder", find_holder),
    ]


def _no_answer_is_the_last() -> list[Patch]:
    """The last query counts though no answer to it came."""
    shipped = Policy.exhausts_now

    def exhausts_now(self: Policy, ask: Followed, now: float) -> bool:
        ask.is_answered = True
        return shipped(self, ask, now)

    return [(Policy, "exhausts_now", exhausts_now)]


def _not_found_frees() -> list[Patch]:
    """The last query of an expired push counts though it was not found."""
    shipped = AnswerReader.not_found

    def not_found(self: AnswerReader) -> Reading:
        reading = shipped(self)
        reading.is_about_ask = True
        return reading

    return [(AnswerReader, "not_found", not_found)]


async def _itself(self: Refusals, record: Record) -> list[Record]:
    return [record]


async def _begun_or_not(self: Attempts, attempt: Attempt) -> Record:
    """Send, and believe whoever is said to send this id already."""
    identifier = attempt.request.client_transaction_id
    if identifier in self._in_flight:
        return await self._in_flight[identifier][1]
    return await _SEND(self, attempt)


_SEND = Attempts.send


def _always(*_: object) -> bool:
    return True


async def _nothing(*_: object) -> None:
    return None


#: Name -> how it is broken.
VARIANTS = {
    "resend after crash": Variant(_resend_after_crash),
    # A reset or a time-out is sent again.
    "retry the ambiguous": Variant(lambda: _retrying(lambda error: error.http_status is None)),
    "record after send": Variant(_record_after_send),
    "trust the notification": Variant(_trust_the_notification),
    "an unmapped word is accepted": Variant(_unmapped_word),
    "no clock check": Variant(_no_clock_check),
    "2061 clears": Variant(_busy_clears),
    "5xx retried": Variant(lambda: _retrying(lambda error: (error.http_status or 0) >= 500)),
    "follow redirects": Variant(_follow_redirects),
    # Who did not answer in time did not pay.
    "expiry says unpaid": Variant(
        lambda: [
            (Outcome, "paid", property(lambda self: self.state is not State.EXPIRED and self.state.paid))
        ]
    ),
    "resend at five minutes": Variant(_resend_at_five_minutes),
    # Nothing is written before the send.
    "no permit": Variant(lambda: [(Attempts, "_permit", _no_insert)]),
    # Whoever says "not found" is believed.
    "another account is believed": Variant(
        lambda: [(Credentials, "can_see", _always)], frozenset({"another account"})
    ),
    "copies are taken": Variant(_take_copies, frozenset({"copies"})),
    "a namesake is believed": Variant(_believe_a_namesake, frozenset({"another account"})),
    # What an answer or a notification named is never asked for.
    "no candidate is asked for": Variant(
        lambda: [(Followed, "next_candidate", lambda self: None), (Followed, "all_missing", _always)],
        frozenset({"names"}),
    ),
    # Of the transaction ids that were named only the first is kept.
    "one name mutes another": Variant(
        lambda: [(lifecycle, "_with_candidate", lambda known, candidate_id: known or (candidate_id,))],
        frozenset({"names"}),
    ),
    # An error object refuses, whatever transaction id stands beside or within it.
    "look-alikes refuse": Variant(
        lambda: [(answers.Answer, "may_name_a_transaction", False)], frozenset({"names"})
    ),
    # What is refused as existing does not exist: 2061 and duplicates are taken at their word.
    "refusals are proof": Variant(lambda: [(Refusals, "find_existing", _nothing)], frozenset({"repeats"})),
    "one of several decides": Variant(_one_of_several_decides, frozenset({"twins"})),
    "slower without end": Variant(_slower_without_end, frozenset({"sheds"})),
    "late news at once": Variant(_late_news_at_once, frozenset({"storms"})),
    # A status source of the user's has all the time that it takes.
    "endless source": Variant(
        lambda: [(queries, "within", lambda clock, seconds, work: work)], frozenset({"hangs"})
    ),
    # Whether a purchase is free is read before the permit, and not in its transaction.
    "guard outside the permit": Variant(
        lambda: [_unguarded(lambda rule: f"{rule} AND false")], frozenset({"purchases"})
    ),
    "forms are forgotten": Variant(_forms_forgotten, frozenset({"purchases"})),
    "no answer is the last": Variant(_no_answer_is_the_last, frozenset({"purchases", "silence"})),
    # What the ledger could not take is true all the same.
    "memory says more": Variant(
        lambda: [(late_writes, "unwritten", lambda record, event: lifecycle.advance(record, event))],
        frozenset({"outages"}),
    ),
    # Of several attempts of an id only the newest is looked at before the next.
    "the newest attempt alone": Variant(lambda: [(Refusals, "_attempts", _itself)], frozenset({"again"})),
    # What is cancelled under our id decides an attempt that may not be listed yet.
    "an earlier attempt decides": Variant(
        lambda: [(AnswerReader, "_may_be_of_an_earlier_attempt", lambda self: False)], frozenset({"again"})
    ),
    "not found frees": Variant(_not_found_frees, frozenset({"hidden"})),
    "sent before it began": Variant(lambda: [(Attempts, "send", _begun_or_not)], frozenset({"endings"})),
    # A transaction id that no transaction has is taken from whoever makes a notification by hand.
    "impossible ids": Variant(lambda: [(tracker, "is_id", _always)], frozenset({"again"})),
}
if sys.version_info >= (3, 12):
    # A query's task is stored by its creator, who may be the later one of the two.
    VARIANTS["tasks begin at once"] = Variant(
        lambda: [(clock, "_later", lambda work: work)], frozenset({"eager"})
    )


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
