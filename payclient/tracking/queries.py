"""Status queries: made, their answers read and written.

A query that fails raises in no wait: the ask is queried again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from payclient.answers import is_id
from payclient.auth import SIGNED_WITH
from payclient.clock import within
from payclient.errors import LedgerError, RateLimitedError, UnauthorizedError
from payclient.events import Conflicted, Event, FoundAccepted
from payclient.lifecycle import APPROVED, Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.profile import STATE_WORDS
from payclient.tracking.evidence import ALARMS, UNDER_ANOTHER, AnswerReader, Credentials, Reading, conflict
from payclient.tracking.followup import LEASE, Followed, StatusSource, TransactionRef
from payclient.tracking.recovery import latest_changes
from payclient.validation import is_personal, sanitize_text
from payclient.wire import kept_fields

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

#: Seconds without queries after a 401 or a 403.
UNAUTHORIZED_PAUSE = 30.0

#: The weight of one query in the share of those that fail, and the share from which a service counts as failing.
WEIGHT, FAILING = 1 / 16, 0.05

#: Fields that are kept of a report of a user's own source, as many as a profile may list.
MOST_FIELDS = 20


class StatusQueries:
    """Queries through one session, or a user's own `source`."""

    def __init__(self, poller: Poller, source: StatusSource | None) -> None:
        self._poller = poller
        self._asks = poller.asks
        self._clock = poller.clock
        self._policy = poller.policy
        self.source: StatusSource | None = source
        self.credentials: Credentials = Credentials(poller.asks.ledger.digest_key)
        #: The share of recent queries that brought no answer.
        self._failed = 0.0
        #: When the first 401 or 403 came after the last answer; infinity: none did.
        self._refused_at = math.inf
        #: When the first query or confirmation after the last answer had none, but for a 429; infinity: none had.
        self._unanswered_since = math.inf
        self._warned: set[str] = set()

    @property
    def is_failing(self) -> bool:
        """Whether the service leaves queries unanswered."""
        return self._failed > FAILING

    @property
    def is_cut_off(self) -> bool:
        """Whether nothing was answered for as long as a lease: the token is refused, or the service out of reach."""
        return self._clock.monotonic() - self._unanswered_since > LEASE

    def note_request(self, made_at: float, *, answered: bool) -> None:
        """Note whether a query or a confirmation had an answer."""
        self._unanswered_since = math.inf if answered else min(self._unanswered_since, made_at)

    async def query(self, ask: Followed, query: TransactionRef) -> StatusReport | None:
        """Query an ask once, write what the answer means, and return the report if it is ours."""
        before = ask.record.state
        answered, report = await self._request(ask, query)
        if not answered or self._is_overtaken(ask, query, before):
            return None
        return await self.take(ask, query, report, before)

    async def take(
        self, ask: Followed, query: TransactionRef, report: StatusReport | None, before: State = State.UNKNOWN
    ) -> StatusReport | None:
        """Write what an answer that came just now means, and return the report if it is ours.

        `before` is the state of the ask as the query was made.
        """
        if report is None:
            reading = self._reader(ask, query).not_found()
        else:
            waits = ask.record.kind == "form" and self._poller.confirmer.confirm_first(ask.record, report)
            if waits:
                report = attrs.evolve(report, state="Pendiente")
            reading = self._reader(ask, query).report(report)
            reading.is_about_ask &= not waits  # a payment that is not confirmed yet settles nothing
        if reading.needs_second_query:
            second_reading = await self._query_second(ask, query, before)
            if second_reading is None:
                return None
            reading = second_reading
        record = ask.record  # the answer was read against this one; another may be written meanwhile
        try:
            if await self.is_anothers(record, reading.report):
                ask.report = None
                reading = conflict("a transaction that is another sale's", self._clock.time())
        except LedgerError as error:
            ask.report = None
            self._asks.note_failure(ask, error)
            return None
        is_written = await self.write(record, reading, ask) is not None
        ask.is_answered = is_written and reading.is_about_ask
        # Refused, and pending by a request that was executed late: query it once its customer has answered.
        late = ask.begun + self._policy.absent_after + self._policy.sale_window
        is_pending = reading.report is not None and reading.report.state == "Pendiente"
        if ask.record.state is State.REFUSED and is_pending and self._clock.monotonic() < late:
            self._poller.recheck(ask.record, after=self._policy.sale_window)
        if not before.decided and self._poller.is_payable_again(ask.record):
            self._poller.recheck(ask.record, after=self._policy.links_life)
        return reading.report

    async def _query_second(self, ask: Followed, query: TransactionRef, before: State) -> Reading | None:
        """Query by client transaction id, too, and return what both answers mean; None: nothing is known yet.

        The first query went by transaction id: another transaction of the ask may be paid, or open.
        """
        second = attrs.evolve(query, transaction_id=None, candidate_id=None)
        if not await self._poller.wait_for_turn():
            return None
        answered, report = await self._request(ask, second)
        if not answered or any(self._is_overtaken(ask, each, before) for each in (query, second)):
            return None
        if report is not None and self._poller.confirmer.confirm_first(ask.record, report):
            return None  # the service may yet give back what was paid beside the confirmed one
        return self._reader(ask, query).second_report(report)

    async def is_anothers(self, record: Record, report: StatusReport | None) -> bool:
        """Return whether a report without a client transaction id is of a transaction that the ledger has for another
        sale: a proxy may give one query the answer to another.
        """
        if report is None or report.client_transaction_id is not None or not record.credentials:
            return False
        number = report.transaction_id
        if number is None or number == record.transaction_id:
            return False
        return await self._asks.ledger.taken_by(record, number) is not None

    def _is_overtaken(self, ask: Followed, query: TransactionRef, before: State) -> bool:
        """Return whether the answer to this query may by now be out of date, or about something else.

        Meanwhile the ask was found paid, bound to another transaction or given back. Or a newer attempt was sent, which
        a query by client transaction id may have found.
        """
        record, bound_to = ask.record, ask.record.transaction_id
        newest = self._asks.find(record.client_transaction_id)
        by_client_id = query.transaction_id is None and query.candidate_id is None
        is_of_another = bound_to is not None and query.candidate_id not in (None, bound_to)
        is_of_a_newer = by_client_id and newest is not None and newest.record.attempt > record.attempt
        is_approved_since = record.state in APPROVED and record.state is not before
        return is_of_another or is_of_a_newer or is_approved_since

    def _reader(self, ask: Followed, query: TransactionRef) -> AnswerReader:
        """Return the reader of an answer that came just now."""
        credentials, clock = self.credentials if self.source is None else None, self._clock
        now, at = clock.monotonic(), clock.time()
        return AnswerReader(self._policy, credentials, ask, query, now, at, SIGNED_WITH.get())

    async def _request(self, ask: Followed, query: TransactionRef) -> tuple[bool, StatusReport | None]:
        """Make one status request. Return whether an answer came, and the report (None: "not found")."""
        made_at, rate = self._clock.monotonic(), self._poller.rate
        try:
            report = await self.status(query)
        except RateLimitedError as limited:
            if ask.final_at == ask.queried_at:
                ask.final_queries -= 1  # a query that met a 429 is not one of the last
            rate.rate_limited(self._clock.monotonic(), made_at, limited.retry_after)
        except UnauthorizedError as refused:
            # The first 401 may only mean that a fresh token is due: the next query is signed with that one.
            if made_at > self._refused_at:
                rate.pause(self._clock.monotonic(), UNAUTHORIZED_PAUSE * self._policy.scale)
                what = f"status queries are refused ({refused.http_status}): is the token still good?"
                self.warn_once("queries_unauthorized", "", what)
            self._refused_at = min(self._refused_at, self._clock.monotonic())
            self.note_request(made_at, answered=False)
        except Exception as error:  # a user's own source may raise anything
            ask.failures += 1
            self.note_request(made_at, answered=False)
            name = type(error).__name__
            self.warn_once("query_failed", query.client_transaction_id, f"a status query failed: {name}")
        else:
            self._failed -= WEIGHT * self._failed
            rate.note_success(made_at)
            self.note_request(made_at, answered=True)
            self._refused_at = math.inf
            ask.failures = 0
            if ask.record.state is State.REFUSED:
                with suppress(LedgerError):  # a newer attempt may be on its way, which the query found
                    await self._asks.reread(ask)
            return True, report
        self._failed += WEIGHT * (1.0 - self._failed)
        ask.note_unanswered(query.candidate_id)
        return False, None

    async def status(self, query: TransactionRef) -> StatusReport | None:
        """Query by a transaction id if possible, else by client transaction id. Raises as its source does."""
        if self.source is not None:
            report = await within(self._clock, self._policy.total_timeout, self.source(query))
            return None if report is None else _storable(report)
        transaction_id = query.transaction_id or query.candidate_id
        if self._policy.by_client_id and (transaction_id is None or not self._policy.by_transaction_id):
            return await self.query_session(client_transaction_id=query.client_transaction_id)
        return await self.query_session(transaction_id=transaction_id)

    async def query_session(self, **ids: Any) -> StatusReport | None:
        """Query the service, whatever the source, by one of the ids of `PaySession.status`. A 429 slows all queries."""
        made_at = self._clock.monotonic()
        try:
            return await self._poller.session.status(**ids, repeat=False)
        except RateLimitedError as limited:
            self._poller.rate.rate_limited(self._clock.monotonic(), made_at, limited.retry_after)
            raise

    async def write(self, record: Record, reading: Reading, ask: Followed | None = None) -> Record | None:
        """Log and write what an answer means, read against `record`; return the record after that.

        None: the ledger has not taken it of an `ask` that is followed, which is queried again.
        """
        if reading.warning is not None:
            self.warn_once("status_strange", record.client_transaction_id, reading.warning)
        with suppress(LedgerError):  # then the write fails as well, or the same is written twice
            if await self.is_known_conflict(record, reading.events):
                return record
        _alarm(record, reading.alarms)
        if reading.conflict is not None:
            key, what = record.client_transaction_id, "a report is not ours: %s"
            if ask is None:  # without a followed ask only an answer about a form has a conflict
                log("error", "confirmation_conflicted", key, what, reading.conflict)
            else:
                log("error", "status_conflicted", key, what, reading.conflict)
        after = record
        for event in reading.events:
            if ask is None:
                after = await self._asks.write(record, event)
            elif not await self._asks.apply(ask, event, record):
                return None
            else:
                after = ask.record
        await self._alarm_if_corrected(record, after, reading)
        return after

    async def is_known_conflict(self, record: Record, events: Sequence[Event]) -> bool:
        """Return whether the events are one conflict that the attempt's history has: it was written and logged before.

        One that drops a candidate is written each time: the candidate may have been named again.
        """
        match events:
            case [Conflicted(candidate_id=None, what=what)]:
                # Only a conflict says `what`.
                history = await latest_changes(self._asks.ledger, record)
                return any(change.facts.get("what") == what for change in history)
        return False

    async def _alarm_if_corrected(self, before: Record, after: Record, reading: Reading) -> None:
        """Raise the alarm of a payment that was found after a person or another process called the ask unpaid."""
        is_payment = bool(reading.events) and isinstance(reading.events[-1], FoundAccepted)
        if not is_payment or after.version <= before.version + len(reading.events):
            return  # nobody else has written anything: `reading` has the alarm
        with suppress(LedgerError):  # the feed has the correction all the same
            history = await latest_changes(self._asks.ledger, after)
            states_before = (each.before for each in history if each.event == FoundAccepted.__name__)
            state_before = next(states_before, None)
            alarm = ALARMS.get((state_before, "Aceptado"))
            if alarm is not None and alarm not in reading.alarms:
                _alarm(after, [alarm])

    def can_see(self, record: Record) -> bool:
        """Return whether "not found" under the token in use is about this attempt; warn once where it is not."""
        if self.credentials.can_see(record, SIGNED_WITH.get()):
            return True
        self.warn_once("credentials_changed", record.client_transaction_id, UNDER_ANOTHER)
        return False

    def warn_once(self, event: str, client_transaction_id: str, message: str) -> None:
        """Log a warning, unless the same message was logged before."""
        if message not in self._warned:
            self._warned.add(message)
            log("warning", event, client_transaction_id, "%s", message)


def _alarm(record: Record, alarms: Sequence[str]) -> None:
    for alarm in alarms:
        log("critical", "outcome_alarm", record.client_transaction_id, "%s", alarm)


def _storable(report: StatusReport) -> StatusReport:
    """Return a report of a user's own source with only what may be kept of it, its transaction id read strictly."""
    names = [name for name in report.receipt if type(name) is str and not is_personal(name)]
    kept = kept_fields(report.receipt, names[:MOST_FIELDS])
    receipt = {sanitize_text(name): value for name, value in kept.items()}
    reason = report.reason if type(report.reason) is str else None
    # A source of one's own has no table of words: any other word decides nothing.
    state = report.state if report.state in STATE_WORDS else None
    is_read = report.transaction_id is None or is_id(report.transaction_id)
    unreadable = report.unreadable if is_read else ("transactionId",)
    return attrs.evolve(report, state=state, receipt=receipt, reason=reason, unreadable=unreadable)
