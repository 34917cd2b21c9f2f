"""The meaning of an answer for an ask: the events that it stands for. No clock, no I/O, no logging.

The ask itself keeps what counts from one query to the next: a first proof of absence, the latest report.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b

import attrs

from payclient.events import (
    Abandoned,
    Conflicted,
    Event,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    ProvenAbsent,
)
from payclient.lifecycle import DROPPED, Record, State
from payclient.models import StatusReport
from payclient.tracking.followup import FAILURES, Followed, Policy, TransactionRef, may_be_absent

#: Characters that a service keeps of a client transaction id, at least, where it cuts long ones.
SHORTEST_CUT = 10

#: Seconds for which "not found" is tolerated of a sale that was created.
MISSING = 15.0


class Credentials:
    """The credentials under which attempts are sent, and those under which "not found" is about them.

    A digest keyed by the ledger's own key stands for a token. Each process learns anew which other token finds what one
    has sent, and only from a sale whose transaction id is known: from the answer to our own POST, or from a query under
    credentials that may judge the sale.
    """

    def __init__(self, digest_key: bytes) -> None:
        #: Returns the keyed digest of a token's plain one; empty for none.
        self.keyed: Callable[[bytes], bytes] = lru_cache(maxsize=4)(partial(_keyed, digest_key))
        #: Pairs of credentials: what the second has sent was found under the first.
        self._finds: set[tuple[bytes, bytes]] = set()

    def note_found(self, record: Record, transaction_id: int | None, token_digest: bytes) -> None:
        """Note that the token in use found this attempt, if the id of the transaction that it found is the attempt's.

        The report named the attempt's client transaction id: either id alone may be another account's as well.
        """
        if record.credentials and transaction_id is not None and transaction_id == record.transaction_id:
            self._finds.add((self.keyed(token_digest), record.credentials))

    def can_see(self, record: Record, token_digest: bytes) -> bool:
        """Return whether the token in use would find this attempt by its client transaction id.

        Under any other token neither "not found" nor a transaction that is found proves anything.
        """
        current = self.keyed(token_digest)
        is_same = current == record.credentials
        return bool(current) and (is_same or (current, record.credentials) in self._finds)


def _keyed(digest_key: bytes, token_digest: bytes) -> bytes:
    if not token_digest:
        return b""
    return blake2b(b"credentials\0" + token_digest, digest_size=16, key=digest_key).digest()


#: Logged once where "not found" comes under another token.
UNDER_ANOTHER = (
    'sent under another token than the one in use, whose "not found" proves nothing; '
    "use one ledger for each account"
)


@attrs.define(eq=False)
class Reading:
    """The meaning of an answer.

    - `events`: What is written.
    - `alarms`: What a person must look at now.
    - `conflict`: What is not ours.
    - `warning`: What is logged once.
    - `report`: What is shown of the answer; None where it is not about our sale.
    - `needs_second_query`: A query by client transaction id comes before this answer decides.
    - `is_about_ask`: Whether the answer is about this very ask, and its state is one that the profile maps.
    """

    events: list[Event] = attrs.field(factory=list)
    alarms: list[str] = attrs.field(factory=list)
    conflict: str | None = None
    warning: str | None = None
    report: StatusReport | None = None
    needs_second_query: bool = False
    is_about_ask: bool = False


def conflict(mismatch: str, at: float) -> Reading:
    """Return the meaning of an answer that is not ours."""
    return Reading([Conflicted(at=at, what=mismatch)], conflict=mismatch)


def find_mismatch(
    record: Record, report: StatusReport, *, must_name_ours: bool = False, candidate_id: int | None = None
) -> str | None:
    """Return what in a report is not ours, or None. A report that is not ours decides nothing.

    With `must_name_ours` only a report that names our client transaction id is ours: queried by a candidate id, it may
    be any sale's.
    """
    if report.unreadable:
        return f"{' and '.join(report.unreadable)} cannot be read"
    expected, found = record.transaction_id or candidate_id, found_ids(report)
    if expected is not None and found and expected not in found:
        return f"transaction {', '.join(map(str, found))}"
    if _differs(report.client_transaction_id, record.client_transaction_id):
        return "another client transaction id"
    if must_name_ours and record.transaction_id is None and report.client_transaction_id is None:
        return f"transaction id {report.transaction_id} without a client transaction id"
    if _differs(report.amount, record.amount):
        return f"amount {report.amount}"
    if _differs(report.currency, record.currency):
        return "another currency"
    return None


def found_ids(report: StatusReport) -> list[int]:
    """Return every transaction id that a report names."""
    return [each for each in (report.transaction_id, *report.others) if each is not None]


def _differs(said: object, ours: object) -> bool:
    """Return whether something else than ours was said, strictly: a user's own source may say 1150.0 or True."""
    return said is not None and (type(said) is not type(ours) or said != ours)


def may_be_spelt(ours: str, named: object) -> bool:
    """Return whether a service may write our id so: left out, in another letter case, between blanks, or cut."""
    if not isinstance(named, str):
        return named is None
    kept, whole = named.strip().casefold(), ours.casefold()
    return kept == whole or (len(kept) >= SHORTEST_CUT and whole.startswith(kept))


#: The words for what a person must look at, by the state of an attempt and the service's later word.
ALARMS: dict[tuple[State | None, str], str] = {
    (State.CANCELLED, "Aceptado"): "cancelled, and yet accepted",
    (State.REFUSED, "Aceptado"): "refused, and yet accepted",
    (State.REVERSED, "Aceptado"): "given back, and yet accepted",
    (State.REFUSED, "Pendiente"): "refused, and yet the customer may approve it",
    (State.ACCEPTED, "Cancelado"): "accepted, and found given back",
}


def verdict(record: Record, report: StatusReport, at: float, ends: float | None = None) -> Reading:
    """Return what a report that is ours says of its attempt.

    `ends`: when the customer of a push can no longer approve, if it is found pending only now.
    """
    reading = Reading(report=report, is_about_ask=report.state is not None)
    if report.also_accepted:
        others = ", ".join(map(str, report.also_accepted))
        reading.alarms.append(f"accepted more than once: also {others}")
        reading.events.append(Conflicted(at=at, what=f"also accepted: {others}"))
    if report.state is not None and (alarm := ALARMS.get((record.state, report.state))):
        reading.alarms.append(alarm)
    if event := _event_of(record, report, at, ends):
        reading.events.append(event)
    return reading


def _event_of(record: Record, report: StatusReport, at: float, ends: float | None) -> Event | None:
    """Return the event that the reported state is for the attempt; None where it says nothing new."""
    found = report.transaction_id
    match record.state, report.state:
        case State.REVERSED, "Aceptado":
            return Conflicted(at=at, what="accepted, though it was given back")
        case state, "Aceptado":
            is_new_id = found not in (None, record.transaction_id)
            # A sale that a person accepted has no transaction id yet.
            if state is State.ACCEPTED and not is_new_id:
                return None
            instead_of = record.transaction_id if is_new_id else None
            receipt = json.dumps(dict(report.receipt)) if report.receipt else None
            return FoundAccepted(at=at, transaction_id=found, instead_of=instead_of, receipt=receipt)
        case State.REFUSED, "Pendiente":
            return Conflicted(at=at, what="pending, though it was refused")
        case State.UNKNOWN, "Pendiente":
            return FoundPending(at=at, transaction_id=found, expires_at=ends)
        case State.CANCELLED, "Cancelado" if record.archived:
            return None  # nothing new, and an archived attempt takes no more events
        case state, "Cancelado" if state not in (State.REFUSED, State.REVERSED):
            return FoundCancelled(at=at, transaction_id=found, reason=report.reason)
    return None


# --- Status queries


@attrs.define(eq=False)
class AnswerReader:
    """Reads one answer to a status query.

    - `credentials`: None where the source is not the session, but the user's own.
    - `now`, `at`: When the answer came, in monotonic and in UTC seconds.
    - `token`: The digest of the token that it came under.
    """

    policy: Policy
    credentials: Credentials | None
    ask: Followed
    query: TransactionRef
    now: float
    at: float
    token: bytes

    def report(self, report: StatusReport) -> Reading:
        """Return the meaning of a report: a conflict, another sale's candidate, a second query, or a verdict."""
        ask, record, candidate_id = self.ask, self.ask.record, self.query.candidate_id
        named = report.client_transaction_id
        if self._may_be_of_another_account(report):
            reading = conflict("found under other credentials than those that sent it", self.at)
            reading.warning = UNDER_ANOTHER
            return reading
        if candidate_id is not None and not may_be_spelt(record.client_transaction_id, named):
            ask.about(candidate_id).is_anothers = True
            what = f"transaction {candidate_id} is another's"
            event = Conflicted(at=self.at, what=what, candidate_id=candidate_id)
            return Reading([] if record.state.decided else [event])
        ask.missing_since = ask.absent_at = None  # it is found
        # A user's own source may query by our id: its report then names the true transaction, not this candidate.
        mismatch = find_mismatch(
            record,
            report,
            must_name_ours=candidate_id is not None or not self.policy.proves_absence,
            candidate_id=None if self.credentials is None else candidate_id,
        )
        if mismatch:
            return conflict(mismatch, self.at)
        if self.credentials is not None and record.kind == "sale" and named is not None:
            self.credentials.note_found(record, report.transaction_id, self.token)
        if self._needs_second(report):
            return Reading(needs_second_query=True)
        return self._verdict(attrs.evolve(report, transaction_id=report.transaction_id or candidate_id))

    def _may_be_of_another_account(self, report: StatusReport) -> bool:
        """Return whether a report that would decide may be about another account's order of the same id and amount.

        A form's payment that must be confirmed first is "Pendiente" by now (`StatusQueries.take`), and decides nothing.
        """
        record = self.ask.record
        would_decide = record.kind == "sale" or report.state in ("Aceptado", "Cancelado")
        # A query by client transaction id alone may find another account's, unless its report names our transaction.
        by_number = record.transaction_id is not None and (self.policy.by_transaction_id or found_ids(report))
        return would_decide and not by_number and bool(record.credentials) and not self._can_see()

    def _can_see(self) -> bool:
        """Return whether an answer by client transaction id is about this attempt. A user's own source always is."""
        return self.credentials is None or self.credentials.can_see(self.ask.record, self.token)

    @property
    def _queried_id(self) -> int | None:
        """The transaction id that the query named."""
        return self.query.transaction_id or self.query.candidate_id

    @property
    def _may_be_unlisted(self) -> bool:
        """Whether a query by client transaction id may not list yet what this attempt has created."""
        return self.now < self.ask.begun + self.policy.absent_after

    def _needs_second(self, report: StatusReport) -> bool:
        """Return whether an answer by transaction id decides only after a query by client transaction id.

        A cancelled transaction may have a paid one beside it, and a number alone may be another account's too.
        """
        policy, state = self.policy, self.ask.record.state
        if self._queried_id is None or not (policy.by_transaction_id and policy.proves_absence):
            return False
        if report.state == "Aceptado":
            return report.client_transaction_id is None and not self._can_see()
        is_known_unpaid = state.decided and state is not State.ACCEPTED
        return report.state == "Cancelado" and not is_known_unpaid

    def second_report(self, report: StatusReport | None) -> Reading:
        """Read the answer to the second query, by client transaction id. `self.query` is the first, by transaction id.

        The first decides nothing alone: another transaction of the same client transaction id may be paid, or open.
        A reading without an event decides nothing yet, and the ask is queried again.
        """
        # "Not found", and a report without a number, count only under a token that can find this attempt.
        if not (report and found_ids(report)) and not self._can_see():
            return Reading(warning=UNDER_ANOTHER)
        if report is None:
            if self._may_be_unlisted:
                return Reading()
            report = StatusReport(state="Cancelado", transaction_id=self._queried_id)
        elif report.state == "Cancelado" and self._can_see():
            # Each transaction of the id is cancelled, whichever the report names.
            report = attrs.evolve(report, transaction_id=self._queried_id, others=())
        if mismatch := find_mismatch(self.ask.record, report):
            return conflict(mismatch, self.at)
        return self._verdict(report)

    def _verdict(self, report: StatusReport) -> Reading:
        """Return what a report of ours means for the ask; nothing where it may be older than what was sent since."""
        ask = self.ask
        if report.state == "Aceptado" and self.policy.reversal_may_be_on_its_way(ask, self.now):
            return Reading(report=report, is_about_ask=True)
        if report.state == "Cancelado" and self._may_be_of_an_earlier_attempt():
            return Reading()
        ends = self.at + self.policy.sale_window if ask.record.kind == "sale" else None
        reading = verdict(ask.record, report, self.at, ends)
        # A pending report says nothing new, and is not kept: 100,000 asks would have one each.
        ask.report = None if report.state == "Pendiente" else report
        if report.state is None:
            ask.failures = FAILURES  # which ends its wait
            reading.warning = (
                "the service says a state that the profile does not map (status.states), or two that differ "
                "(status.codes)"
            )
        return reading

    def _may_be_of_an_earlier_attempt(self) -> bool:
        """Return whether what is found may have come of an earlier attempt, and this one may not be listed yet."""
        record = self.ask.record
        # Where another process sends it, it may be known here as SENDING still.
        may_be_absent_yet = record.state is State.SENDING or may_be_absent(record)
        return record.attempt > 1 and self._may_be_unlisted and may_be_absent_yet

    def not_found(self) -> Reading:
        """Return what "not found" means: nothing about a form, a conflict about a sale that exists, or `_absence`."""
        ask, now, can_see = self.ask, self.now, self._can_see()
        ask.report = None
        if ask.record.kind == "form":
            return Reading(is_about_ask=can_see)  # an answer: a form that nobody has paid may be unlisted
        reading = Reading(warning=None if can_see else UNDER_ANOTHER)
        if not may_be_absent(ask.record):
            # A sale that was created, and is not found for longer than is tolerated, is one event.
            if ask.missing_since is None:
                ask.missing_since = now
            elif now - ask.missing_since > MISSING * self.policy.scale:
                ask.missing_since = now  # not at each query: the history is read for whether it has the event
                reading.events.append(Conflicted(at=self.at, what="not found"))
            return reading
        if not can_see:
            return reading
        if self.query.candidate_id is not None:
            ask.about(self.query.candidate_id).missing_at = now
            return Reading()
        return self._absence()

    def _absence(self) -> Reading:
        """Return the proof that nothing was created, once two "not found" are late enough and far enough apart."""
        ask, policy, now = self.ask, self.policy, self.now
        candidates = ask.record.candidate_ids
        if not policy.proves_absence or self._may_be_unlisted:
            return Reading()
        if DROPPED in candidates or (candidates and not policy.by_transaction_id):
            words = '"not found" proves nothing where a transaction was named that cannot be queried'
            return Reading(warning=words)
        if ask.absent_at is None:
            ask.absent_at = now
        elif now >= policy.second_proof_due(ask.absent_at):
            if ask.all_missing():
                return Reading([ProvenAbsent(at=self.at)])
            ask.absent_at = None  # a candidate was not "not found" since: both proofs begin anew
        return Reading()


# --- Forms that came back


def read_form(record: Record, report: StatusReport | None, at: float) -> Reading:
    """Return the meaning of a report about a form that came back; None stands for "not found": nobody paid the form.

    The report is the answer to a confirmation, or to a status query by client transaction id. A reading without an
    event decides nothing: the form is pending, its state is not mapped, or the ledger has that already.
    """
    if report is None:
        return Reading([Abandoned(at=at)])
    if mismatch := find_mismatch(record, report):
        return conflict(mismatch, at)
    if report.state == "Pendiente":
        return Reading(report=report)
    return verdict(record, report, at)
