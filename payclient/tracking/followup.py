"""The facts about an open ask, when it is queried next, and by which id. Pure: no clock, no I/O, no logging but of a
user's schedule that fails.

Times are seconds of the monotonic clock, except those of records.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from payclient.events import Evidence
from payclient.lifecycle import DROPPED, MOST_CANDIDATES, Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.profile import ServiceProfile
from payclient.schedule import FINAL_QUERY_DELAYS, NORMAL_WINDOW, RECHECK_AGES, Schedule, first_part, phase

__all__ = ["StatusSource", "TransactionRef"]

NEVER = float("-inf")

#: The due time of an ask that is due at once.
AT_ONCE = 0.0

#: Members that are compared for every sale: CPython 3.11 takes ten times as long to find a member of an enum.
PENDING, QUERY = State.PENDING, Evidence.QUERY

#: Candidates of one ask of which it is remembered what was queried.
MOST_REMEMBERED = 4 * MOST_CANDIDATES

#: Seconds from one query to the next after a notification, while the service still reports pending.
NOTIFIED_DELAYS = (0.25, 0.75, 2.0, 5.0)

#: Seconds after the expiry for which a late notification is waited for where nothing can be queried.
LATE_NOTIFICATION = 10.0

#: A form lives longer than a push and its customer comes back by a redirect: it is queried that much less often.
FORM_SLOWNESS = 5

#: Seconds after the expiry at which a wait ends though last queries are due, where the service fails.
MOST_PATIENCE = 500.0

#: Queries of one ask that fail in a row before its wait ends without an answer.
FAILURES = 3

#: Seconds between two queries where a user's schedule gives no such number.
DEFAULT_GAP = 2.0

#: In units of `absent_after`: from one proof of absence to the second, and from the permit to the end of both.
BETWEEN_PROOFS, LONGEST_PROOF = 0.1, 1.2

#: Gaps double with each failure in a row, up to this power of two.
MOST_DOUBLINGS = 5

#: The weight of one answer in the share of those that were notified: news of 50 sales ago hardly counts.
NOTIFIED_WEIGHT = 1 / 16

#: Seconds for which a process holds what it follows, where several share a ledger.
LEASE = 30.0

#: Seconds after which what waits for its query is looked at again.
LOOK_AGAIN = 10.0


@attrs.frozen(kw_only=True)
class TransactionRef:
    """The ids by which a status query may be made.

    - `client_transaction_id`: The merchant's id.
    - `transaction_id`: None while only the client transaction id is known.
    - `candidate_id`: A transaction id that a notification or a broken answer named, not yet proven ours; of several
      each has its turn.
    - `kind`: `sale` or `form`.
    """

    client_transaction_id: str
    transaction_id: int | None
    candidate_id: int | None = None
    kind: str = "sale"


#: Another way to query a status; it returns None for "not found". After any exception the sale is queried again later.
StatusSource = Callable[[TransactionRef], Awaitable[StatusReport | None]]


@attrs.define(eq=False)
class Candidate:
    """The queries of a transaction id that may be ours."""

    queries: int = 0
    queried_at: float = NEVER
    #: When the service last answered that there is no such transaction.
    missing_at: float = NEVER
    #: Whether the service named another sale's client transaction id for it.
    is_anothers: bool = False


@attrs.define(eq=False, weakref_slot=False)
class Scheduled:
    """An item that is looked at when its time comes, and waits in a line for its request."""

    #: Where the due times have it; an item of another slot is stale.
    slot: deque[Any] | None = attrs.field(default=None, init=False)
    #: The line in which it waits for its request; 0: in none.
    line: int = attrs.field(default=0, init=False)
    #: Its request in flight.
    task: asyncio.Future[Any] | None = attrs.field(default=None, init=False)

    @property
    def is_planned(self) -> bool:
        """Whether the due times, or the end of its request, bring the next look."""
        return self.slot is not None or self.task is not None


@attrs.define(eq=False, weakref_slot=False)
class Followed(Scheduled):
    """One open ask, or a decided one that was notified. There may be 100,000."""

    # Which attempt, when its permit was requested, and when the customer can no longer approve: never early
    record: Record
    created: float
    expires: float
    #: When this process first followed the ask, or later saw it found or being given back. Proof of absence and the end
    #: of its life count from here: whatever the wall clock did, the permit of any process was earlier.
    begun: float = 0.0

    # The query before this moment
    #: When its latest query was made, and when the latest by its client transaction id.
    queried_at: float = NEVER
    client_queried_at: float = NEVER
    #: Whether the answer to the latest query was about this ask, and the ledger took what it means.
    is_answered: bool = False
    #: Queries in a row without an answer.
    failures: int = 0

    # The queries that are left
    #: Whether the next query goes by the client transaction id, since the latest one went by a candidate id.
    by_client_id_next: bool = False
    #: Queries made since the latest notification; None: that series is over.
    notified_queries: int | None = None
    #: How many of the `FINAL_QUERY_DELAYS` after the expiry were used, and when the latest of them was.
    final_queries: int = 0
    final_at: float = NEVER
    #: Whether every query that a wait hopes for has been made: each wait ends at once.
    waits_over: bool = False
    #: When a decided ask is queried once more by its client transaction id; infinity: no more.
    recheck_at: float = float("inf")
    #: Whether a decided ask is queried once more at its next turn, by what was named to it.
    recheck_soon: bool = False

    # The facts that answers have shown
    #: The latest report of ours; None if it was `Pendiente` or "not found".
    report: StatusReport | None = None
    #: When the first of two proofs of absence came, and from when on "not found" about a created sale is tolerated.
    absent_at: float | None = None
    missing_since: float | None = None
    #: The queries of each transaction id that may be ours; None: there were none.
    candidates: dict[int, Candidate] | None = None

    # Who follows it, and who waits for it
    #: Whether another process follows it; here it is only waited for.
    followed_elsewhere: bool = False
    #: The futures of those who wait.
    waiters: set[Any] | None = None

    def age(self, now: float) -> float:
        """Return the seconds since its permit, at least 0."""
        return now - self.created if now > self.created else 0.0

    # --- Transaction ids that may be ours

    def next_candidate(self) -> int | None:
        """Return the candidate id of the next query; None: it goes by the client transaction id.

        The two kinds of queries alternate. The least queried candidate comes first, of several the latest. After the
        first proof of absence every candidate is queried once, before the second proof.
        """
        if self.absent_at is None and self.by_client_id_next:
            return None
        return min(reversed(self.candidates_left()), key=lambda each: self.about(each).queries, default=None)

    def candidates_left(self) -> list[int]:
        """Return all candidate ids; after a first proof of absence only those that were not queried since."""
        named = [each for each in self.record.candidate_ids if each != DROPPED]
        absent_at = self.absent_at
        return [each for each in named if absent_at is None or self.about(each).queried_at < absent_at]

    def all_missing(self) -> bool:
        """Return whether every candidate was "not found" since the first proof of absence."""
        first, candidates = self.absent_at, self.record.candidate_ids
        return first is not None and all(self.about(each).missing_at >= first for each in candidates)

    def about(self, candidate_id: int) -> Candidate:
        """Return the queries of this candidate. Those of the latest `MOST_REMEMBERED` candidates are remembered."""
        if self.candidates is None:
            self.candidates = {}
        found = self.candidates.get(candidate_id)
        if found is None:
            if len(self.candidates) >= MOST_REMEMBERED:
                del self.candidates[next(iter(self.candidates))]
            found = self.candidates[candidate_id] = Candidate()
        return found

    def note_unanswered(self, candidate_id: int | None) -> None:
        """Note that the latest query had no answer: it proves nothing, and is made again, also of a decided ask."""
        self.client_queried_at = NEVER
        self.recheck_again()
        if candidate_id is not None:
            self.about(candidate_id).queried_at = NEVER

    def recheck_again(self) -> None:
        """Plan the latest query of a decided ask again, since it came to nothing. One planned for later stays so."""
        went_by_candidate, is_planned = self.by_client_id_next, self.recheck_at < float("inf")
        if self.record.state.decided and (went_by_candidate or is_planned):
            self.recheck_soon = True
        elif self.record.state.decided:
            self.recheck_at = self.queried_at


def awaits_last_query(record: Record) -> bool:
    """Return whether an ask expired by our clock, and its last query was not made yet."""
    return record.state is State.EXPIRED and record.evidence is Evidence.CLOCK


def customer_acted(record: Record) -> bool:
    """Return whether a push was notified, or a payment of a form was named: unless forged, its customer acted."""
    return record.notified_at is not None if record.kind == "sale" else bool(record.candidate_ids)


def may_be_absent(record: Record) -> bool:
    """Return whether "not found" may prove that a sale was not created: it is unknown and was never found.

    The same answer proves nothing about a form: the service may not list a form that nobody has paid yet.
    """
    return record.state is State.UNKNOWN and may_have_candidates(record)


def may_have_candidates(record: Record) -> bool:
    """Return whether queries may go by the candidate ids of an attempt: a sale whose transaction is not known."""
    return record.transaction_id is None and record.kind == "sale"


def backoff(ask: Followed) -> float:
    """Return how many times longer the gaps of an ask are because its queries fail."""
    return float(1 << min(ask.failures, MOST_DOUBLINGS))


class Policy:
    """When one tracker's asks are queried, and by which id."""

    def __init__(
        self, profile: ServiceProfile, schedule: Schedule, total_timeout: float, *, own_source: bool
    ) -> None:
        """`own_source`: a user's status source is queried instead of the service."""
        status = profile.status
        self._schedule = schedule
        self.total_timeout = total_timeout
        self.absent_after: float = profile.absent_after  # seconds; "not found" before then proves nothing
        by_its_id = status is not None and status.by_transaction_id is not None
        #: Whether a query can go by a transaction id.
        self.by_transaction_id: bool = own_source or by_its_id
        #: Whether the service can be queried by client transaction id.
        self.by_client_id: bool = status is not None and status.by_client_transaction_id is not None
        #: Whether a status can be queried at all.
        self.can_query: bool = self.by_transaction_id or self.by_client_id
        #: Whether any attempt can be queried, also without a transaction id: a user's own source chooses the id.
        self.can_query_any: bool = own_source or self.by_client_id
        #: "Not found" counts as proof only from the profile's own query by client transaction id.
        self.proves_absence: bool = self.by_client_id and not own_source
        #: Whether a ledger that others share has compared this machine's clock with theirs. Not once it has jumped.
        self.clocks_agree: bool = False
        #: The share of recent answers of which a notification came.
        self.notified_share: float = 0.0
        self.sale_window: float = profile.sale_window
        self.form_window: float = profile.form_window
        self.scale: float = profile.sale_window / NORMAL_WINDOW  # of the seconds between queries and looks
        #: Seconds between two queries of one ask, at least.
        self.least_gap: float = min(1.0, self.scale)
        #: Seconds in which an ask can be approved, by kind; and from its permit to its end. A form's link may be loaded
        #: as late as it is handed out, and then lives once more.
        self.life: dict[str, float] = {"sale": self.sale_window, "form": 2 * self.form_window}
        self.longest_life: dict[str, float] = {kind: life + total_timeout for kind, life in self.life.items()}
        #: Seconds from its permit after which no link of a form can be paid, or confirmed, any more.
        self.links_life: float = self.longest_life["form"]
        if profile.confirm is not None:
            self.links_life += profile.confirm.window

    def follows(self, record: Record) -> bool:
        """Return whether an ask is followed from its begin: some query can find it, or it is a sale."""
        # Where nothing can be queried a form expires like a push, so that a person can decide it.
        return record.kind == "sale" or self.has_id(record) or not self.can_query

    def can_find(self, record: Record) -> bool:
        """Return whether an id to query by is known of the attempt. An open form's may yet be: from its browser."""
        is_open_form = record.kind == "form" and not record.state.decided
        return self.has_id(record) or (self.by_transaction_id and is_open_form)

    def has_id(self, record: Record) -> bool:
        """Return whether a query can be made now: by client transaction id, or by the id of a transaction."""
        named = record.candidate_ids if record.kind == "sale" else ()
        is_named = record.transaction_id is not None or any(each != DROPPED for each in named)
        return self.can_query_any or (self.by_transaction_id and is_named)

    def closed_until(self, form: Record) -> float:
        """Return until when a form that its customer closed may turn out to be paid, in UTC seconds.

        Until its links are dead; as long again where a transaction was named to it and no answer about that has come.
        """
        dead = form.created_at + self.links_life if form.links_dead_at is None else form.links_dead_at
        return dead + (self.links_life if form.candidate_ids else 0.0)

    def longest_end(self, record: Record) -> float:
        """Return when nobody can approve an attempt any more, in UTC seconds, however late its request arrived."""
        return record.created_at + self.longest_life[record.kind]

    # --- When next

    def expires_now(self, ask: Followed, now: float) -> bool:
        """Return whether the expiry is written now, before any further query; after a failure a query comes first."""
        failing = self.can_query and ask.failures > 0
        return ask.record.state is PENDING and now >= ask.expires and not failing

    def is_final(self, ask: Followed, now: float) -> bool:
        """Return whether a query now is one of the last, which settle an expired ask."""
        return now >= ask.expires + FINAL_QUERY_DELAYS[0] * self.scale

    def _final_due(self, ask: Followed) -> float:
        """Return when the next of the last queries is due: each counts from when the one before was made."""
        begin = ask.expires if ask.final_queries == 0 else max(ask.final_at, ask.expires)
        return begin + FINAL_QUERY_DELAYS[ask.final_queries] * self.scale

    def _had_last_queries(self, ask: Followed) -> bool:
        """Return whether the last queries were made. One that is answered once all are overdue is enough of a form, and
        of a push that freed its purchase before: it was queried to the end, or could not be.
        """
        overdue = ask.expires + sum(FINAL_QUERY_DELAYS) * self.scale
        was_free = ask.record.evidence in (Evidence.LAST_QUERY, Evidence.NO_QUERY)
        is_enough = (ask.record.kind == "form" or was_free) and ask.is_answered and ask.final_at >= overdue
        return is_enough or ask.final_queries >= len(FINAL_QUERY_DELAYS)

    def exhausts_now(self, ask: Followed, now: float) -> bool:
        """Return whether an expired ask is exhausted now: from then on only a form's live links hold its purchase.

        The last query has an answer about this ask that the ledger has taken: a lost one may have been "paid". An
        answer that does not find a sale that was created does not count. Nor does one before the ask's whole life has
        passed in this process: our clock may be ahead of the sender's.
        """
        if ask.record.evidence is Evidence.NO_QUERY:
            # It can be queried by now. An answer from before its end, or from a list that lags, proves nothing.
            return ask.is_answered and self._had_last_queries(ask)
        if not awaits_last_query(ask.record):
            return False
        if not self.follows(ask.record):
            # No query can find this form. A payment that was named to it goes on holding its purchase.
            return not customer_acted(ask.record)
        ended_at = self._surely_ended_at(ask)
        if not self.can_query:
            # Only a person can find out what its customer did, if anything.
            return now >= ended_at and ask.waits_over and not customer_acted(ask.record)
        is_late_enough = ask.queried_at >= ended_at and self.is_final(ask, ask.queried_at)
        return (ask.waits_over or self._had_last_queries(ask)) and ask.is_answered and is_late_enough

    def _surely_ended_at(self, ask: Followed) -> float:
        """Return when nobody can approve the ask any more, whatever wall clocks say: a life after it came here.

        Where they were compared they may say it, too: it may come here whenever another process's customer comes back.
        """
        ended_at, longest = ask.begun + self.life[ask.record.kind], self.longest_life[ask.record.kind]
        return min(ended_at, ask.expires + longest) if self.clocks_agree else ended_at

    def reversal_may_be_on_its_way(self, ask: Followed, now: float) -> bool:
        """Return whether a request to give the payment back may be on its way, whatever wall clocks say."""
        return ask.record.state is State.REVERSING and now < self._reversal_ended_at(ask)

    def _reversal_ended_at(self, ask: Followed) -> float:
        return ask.begun + 2 * self.total_timeout

    def plan_look(self, ask: Followed, now: float) -> float | None:
        """Set `waits_over` where no query is left for a wait, and return when the ask is looked at next; None: no more.

        Counts a query of the series after a notification in `notified_queries`.
        """
        record, expires = ask.record, ask.expires
        can_find = self.can_find(record)
        if record.state.decided:
            return max(ask.queried_at + self.least_gap * backoff(ask), now)
        if ask.followed_elsewhere:
            return self._ended_elsewhere_at(ask, now)
        is_notified = record.notified_at is not None and record.state is PENDING
        if ask.queried_at == NEVER and is_notified and not ask.waits_over:
            # Notified before the answer to our POST: the series of queries after a notification begins.
            ask.notified_queries, ask.waits_over = 0, not can_find
            return AT_ONCE if can_find else expires
        if not can_find:
            # At the expiry, and once later for a late notification.
            end = expires if ask.waits_over else expires + LATE_NOTIFICATION * self.scale
            if now < end:
                return expires if now < expires else end
        elif (when := self._plan_query(ask, now)) is not None:
            return when
        ask.waits_over = True
        return self._background_look(ask, now)

    def _plan_query(self, ask: Followed, now: float) -> float | None:
        """Return when the ask is queried next; None: no query is left for a wait. Counts one after a notification."""
        if (count := ask.notified_queries) is not None:
            if count < len(NOTIFIED_DELAYS):
                ask.notified_queries = count + 1
                return now + NOTIFIED_DELAYS[count] * self.scale
            ask.notified_queries = None  # the series is over
        is_first = ask.queried_at == NEVER
        # The id alone decides the place of the first query here, so that a restart keeps it.
        spread = phase(ask.record.client_transaction_id) if is_first else 0.0
        if now < ask.expires:
            age = ask.age(now)
            if not is_first:
                gap = max(self._gap(ask, age, 1.0) * backoff(ask), self.least_gap)
            elif age < self.least_gap:  # permitted a moment ago
                gap = self._gap(ask, 0.0, first_part(spread)) - age
            else:
                gap = self._gap(ask, age, spread)
            # Not beyond the expiry, which is written as it comes.
            return min(now + gap, ask.expires)
        if not (ask.waits_over or self._had_last_queries(ask)):
            # After a failure of the ledger or the service the ask is not queried again at once.
            soonest = now + (self.least_gap if ask.failures else spread * self.scale)
            return max(soonest, self._final_due(ask))
        if self.reversal_may_be_on_its_way(ask, ask.queried_at):
            return max(now, self._reversal_ended_at(ask))  # "accepted" does not count before
        return self._absence_query_due(ask, now) if may_be_absent(ask.record) else None

    def _absence_query_due(self, ask: Followed, now: float) -> float | None:
        """Return when to query an unknown sale for one of two late "not found"; None: that query was made."""
        due = ask.begun + self.absent_after
        soonest = ask.queried_at + self.least_gap * backoff(ask)
        if ask.absent_at is not None:
            due = self.second_proof_due(ask.absent_at)
        # Queries by candidate ids come first and prove nothing: only one by client transaction id counts.
        return max(now, due, soonest) if ask.client_queried_at < due else None

    def second_proof_due(self, absent_at: float) -> float:
        """Return when a second "not found" proves absence, at the earliest, after a first one at this time."""
        return absent_at + BETWEEN_PROOFS * self.absent_after

    def _background_look(self, ask: Followed, now: float) -> float | None:
        """Return when the ask is queried in the background, after the waits have ended; None: no more."""
        if not self.can_query:
            # The ledger could not take the expiry, or the end after it, yet.
            end_is_unwritten = awaits_last_query(ask.record) and not customer_acted(ask.record)
            is_left = end_is_unwritten or ask.record.state is PENDING
            return now + LATE_NOTIFICATION * self.scale if is_left else None
        later = [ask.expires + age * self.scale for age in RECHECK_AGES]
        if awaits_last_query(ask.record):
            later.append(self._surely_ended_at(ask) + FINAL_QUERY_DELAYS[0] * self.scale)
        if ask.failures and (ask.report is None or ask.report.state is not None):
            # Its latest query came to nothing, here or in the ledger. A word that the profile lacks is an answer.
            later.append(now + min(RECHECK_AGES[0] * backoff(ask), RECHECK_AGES[1]) * self.scale)
        return min((when for when in later if when > now), default=None)

    def look_meanwhile(self, ask: Followed, now: float) -> float | None:
        """Return when an ask that waits for its query is looked at all the same; None where nobody waits for it."""
        again = now + LOOK_AGAIN * self.scale
        if now < ask.expires:
            # Not all at the expiry: most asks are decided long before, and the due times would keep them until then.
            return ask.expires if ask.line else min(again, ask.expires)
        return None if ask.waits_over else max(self.latest_end(ask), again)

    def gives_up(self, ask: Followed, now: float, *, failing: bool) -> bool:
        """Return whether a wait ends though a query is due; `failing`: the service leaves queries unanswered.

        Failures of this ask alone end its wait too, however well the queries of others are answered.
        """
        return not ask.waits_over and now >= self.latest_end(ask) and (failing or ask.failures >= FAILURES)

    def latest_end(self, ask: Followed) -> float:
        """Return when a failing service has been given time enough for the last queries, and for a proof of absence."""
        if ask.record.state is State.UNKNOWN:
            proven = ask.begun + LONGEST_PROOF * self.absent_after
            return max(ask.expires + NORMAL_WINDOW * self.scale, proven)
        return max(ask.expires, ask.begun) + MOST_PATIENCE * self.scale

    def _ended_elsewhere_at(self, ask: Followed, now: float) -> float:
        """Return when another process has surely made its last queries of an ask, though it claimed the ask late."""
        end = ask.expires + 2 * sum(FINAL_QUERY_DELAYS) * self.scale
        if ask.record.state is State.UNKNOWN:
            end = max(end, now - ask.age(now) + LONGEST_PROOF * self.absent_after)
        return max(end, now) + LEASE

    def _gap(self, ask: Followed, age: float, part: float) -> float:
        """Return the seconds from a query at this age to the next by the schedule; `part`: of the first gap, spread."""
        slowness = 1 if ask.record.kind == "sale" else FORM_SLOWNESS
        try:
            gap = float(self._schedule.gap(age / slowness, part=part, heard=self.notified_share))
        # Whatever a user's own schedule raises must not end the poller; nothing is awaited, so nobody cancels here.
        except (Exception, asyncio.CancelledError) as error:
            log("error", "schedule_failed", "", "the schedule failed: %s", type(error).__name__)
            gap = math.nan
        return slowness * (gap if gap >= 0.0 else DEFAULT_GAP * self.scale)

    # --- Which request next

    def begin_query(self, ask: Followed, now: float) -> TransactionRef:
        """Note on the ask that it is queried now, and return the ids that the query may go by."""
        record = ask.record
        ask.queried_at, ask.is_answered = now, False
        # The query counts as one of the last only when one is due, however many are made.
        if ask.final_queries < len(FINAL_QUERY_DELAYS) and now >= self._final_due(ask):
            ask.final_queries, ask.final_at = ask.final_queries + 1, now
        candidate_id = None
        if may_have_candidates(record):
            # A sale that a person accepted is queried by client transaction id: its candidates may be forged.
            accepted_by_hand = record.state is State.ACCEPTED and self.by_client_id
            if self.by_transaction_id and not accepted_by_hand:
                candidate_id = ask.next_candidate()
            if candidate_id is not None:
                about = ask.about(candidate_id)
                about.queries, about.queried_at = about.queries + 1, now
            # The two kinds alternate. Where only transaction ids can be queried, one by a candidate counts as both.
            ask.by_client_id_next = candidate_id is not None and self.can_query_any
            if not ask.by_client_id_next:
                ask.client_queried_at = now
        return TransactionRef(
            client_transaction_id=record.client_transaction_id,
            transaction_id=record.transaction_id,
            candidate_id=candidate_id,
            kind=record.kind,
        )

    # --- How surely notifications arrive

    def note_decision(self, before: Record, after: Record) -> None:
        """Count a decision of the customer's: whether a notification came before it was found."""
        if before.state is PENDING and after.evidence is QUERY and after.kind == "sale":
            self.notified_share += NOTIFIED_WEIGHT * ((after.notified_at is not None) - self.notified_share)

    def note_late_notification(self) -> None:
        """Count a notification that came after its sale was decided, and counted as not notified."""
        self.notified_share = min(self.notified_share + NOTIFIED_WEIGHT, 1.0)
