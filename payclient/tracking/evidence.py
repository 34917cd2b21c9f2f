"""What an answer means for an ask: which events it stands for. Pure: no clock, no I/O, no logging."""

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
from payclient.tracking.followup import Followed, Policy, TransactionRef

__all__: list[str] = []

#: Seconds for which "not found" is tolerated of a sale that was created.
MISSING = 15.0

#: Failures in a row that a state word which the profile does not map counts as.
UNMAPPED = 3


class Credentials:
    """Under which credentials an attempt is sent, and whose "not found" speaks of it.

    A digest keyed by the ledger's own key stands for a token. Which other token finds what one has sent is learnt by
    each process anew, and only from a sale whose transaction id is known: from the answer to our own POST, or from a
    query under credentials that may judge the sale.
    """

    def __init__(self, digest_key: bytes) -> None:
        #: Returns the keyed digest of a token's plain one; empty for none.
        self.keyed: Callable[[bytes], bytes] = lru_cache(maxsize=4)(partial(_keyed, digest_key))
        #: Pairs of credentials: what the second has sent was found under the first.
        self._finds: set[tuple[bytes, bytes]] = set()

    def found(self, record: Record, token_digest: bytes) -> None:
        """Learn that the token in use finds what this attempt's token has sent."""
        if record.credentials and (current := self.keyed(token_digest)) != record.credentials:
            self._finds.add((current, record.credentials))

    def may_deny(self, record: Record, token_digest: bytes) -> bool:
        """Return whether an answer by client transaction id under the token in use speaks of this attempt.

        Otherwise neither "not found" nor a transaction that is found says anything.
        """
        current = self.keyed(token_digest)
        return bool(current) and (
            current == record.credentials or (current, record.credentials) in self._finds
        )


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
    """What an answer means.

    - `events`: What is written.
    - `alarms`: What a person must look at now.
    - `conflict`: What is not ours, unless an earlier answer showed it.
    - `warning`: What is logged once.
    - `report`: What is shown of the answer; None where it is not about our sale.
    - `looks_at_all`: A query by client transaction id comes before this answer decides.
    """

    events: list[Event] = attrs.field(factory=list)
    alarms: list[str] = attrs.field(factory=list)
    conflict: str | None = None
    warning: str | None = None
    report: StatusReport | None = None
    looks_at_all: bool = False


def find_mismatch(
    record: Record, report: StatusReport, *, by_candidate: bool = False, candidate_id: int | None = None
) -> str | None:
    """Return what in a report is not ours, or None. A report that is not ours decides nothing.

    Queried by a candidate id, only a report that names our client transaction id is ours.
    """
    if report.unreadable:
        return f"{' and '.join(report.unreadable)} cannot be read"
    known = record.transaction_id if record.transaction_id is not None else candidate_id
    if known is not None and report.transaction_id not in (None, known) and known not in report.others:
        return f"transaction id {report.transaction_id}"
    if known is not None and report.transaction_id is None and report.others and known not in report.others:
        return f"transaction ids {', '.join(map(str, report.others))}"
    if _differs(report.client_transaction_id, record.client_transaction_id):
        return "another client transaction id"
    if by_candidate and record.transaction_id is None and report.client_transaction_id is None:
        return f"transaction id {report.transaction_id} without a client transaction id"
    if _differs(report.amount, record.amount):
        return f"amount {report.amount}"
    if _differs(report.currency, record.currency):
        return "another currency"
    return None


def _differs(said: object, ours: object) -> bool:
    """Return whether something else than ours was said, strictly: a user's own source may say 1150.0 or True."""
    return said is not None and (type(said) is not type(ours) or said != ours)


def verdict(record: Record, report: StatusReport, transaction_id: int | None, at: float) -> Reading:
    """Return what a report that is ours says of its attempt."""
    reading = Reading(report=report)
    if report.also_accepted:
        others = ", ".join(map(str, report.also_accepted))
        reading.alarms.append(f"accepted more than once: also {others}")
        reading.events.append(Conflicted(at=at, what=f"also accepted: {others}"))
    state = record.state
    if report.state == "Aceptado":
        if state in (State.CANCELLED, State.REFUSED):
            reading.alarms.append(f"{state}, and yet accepted")
        mine = record.transaction_id
        instead_of = mine if transaction_id not in (None, mine) else None
        if state is State.REVERSED:
            reading.alarms.append("given back, and yet accepted")
            reading.events.append(Conflicted(at=at, what="accepted, though it was given back"))
        elif state is State.REVERSING and at < (record.expires_at or at):
            pass  # the request to give it back may be on its way
        elif state is not State.ACCEPTED or instead_of is not None:
            receipt = json.dumps(dict(report.receipt)) if report.receipt else None
            reading.events.append(
                FoundAccepted(at=at, transaction_id=transaction_id, instead_of=instead_of, receipt=receipt)
            )
    elif state is State.REFUSED:
        if report.state == "Pendiente":
            reading.alarms.append("refused, and yet the customer may approve it")
            reading.events.append(Conflicted(at=at, what="pending, though it was refused"))
    elif report.state == "Cancelado":
        if state is State.ACCEPTED:
            reading.alarms.append("accepted, and given back by somebody else")
        if state is not State.REVERSED:
            reading.events.append(FoundCancelled(at=at, transaction_id=transaction_id, reason=report.reason))
    elif report.state == "Pendiente" and state is State.UNKNOWN:
        reading.events.append(FoundPending(at=at, transaction_id=transaction_id))
    return reading


# --- Status queries


@attrs.frozen
class AnswerReader:
    """Reads the answers to status queries. `credentials` None: the source is not the session, but the user's own."""

    policy: Policy
    credentials: Credentials | None

    def report(
        self, ask: Followed, query: TransactionRef, report: StatusReport, now: float, at: float, token: bytes
    ) -> Reading:
        """Read a report. `now` is monotonic, `at` UTC; `token` is the digest of the token that it came under."""
        record, candidate_id, policy = ask.record, query.candidate_id, self.policy
        named, credentials = report.client_transaction_id, self.credentials
        unbound = record.transaction_id is None and record.kind == "sale" and record.credentials
        if credentials is not None and unbound and not credentials.may_deny(record, token):
            # Another account may have an order of the same id, amount and currency.
            what = "found under other credentials than those that sent it"
            reading = self._conflict(ask, what, now, at)
            reading.warning = UNDER_ANOTHER
            return reading
        if candidate_id is not None and named not in (None, record.client_transaction_id):
            # Whatever named this candidate, it is somebody else's, and says nothing about this sale.
            policy.findings(ask, now).about(candidate_id).is_another = True
            if record.state.decided:
                return Reading()
            what = f"transaction {candidate_id} is another's"
            return Reading([Conflicted(at=at, what=what, candidate_id=candidate_id)])
        if ask.findings is not None:
            ask.findings.missing_since = ask.findings.absent_at = None
        # A user's own source may go by our id, and then names the true transaction whichever candidate had its turn.
        mismatch = find_mismatch(
            record,
            report,
            by_candidate=candidate_id is not None or not policy.proves_absence,
            candidate_id=None if credentials is None else candidate_id,
        )
        if mismatch:
            return self._conflict(ask, mismatch, now, at)
        if (
            credentials is not None
            and record.kind == "sale"
            and record.transaction_id is not None
            and report.transaction_id == record.transaction_id
            and named is not None  # numbers alone are another account's too
        ):
            credentials.found(record, token)
        by_id = policy.by_transaction_id and (record.transaction_id or candidate_id) is not None
        # A number alone may be another account's too, and a cancelled transaction may have a paid one beside it.
        alone = named is None and not self._may_deny(record, token)
        decides = report.state == "Cancelado" or (report.state == "Aceptado" and alone)
        may_decide = not record.state.decided or record.state is State.ACCEPTED
        if decides and by_id and policy.proves_absence and may_decide:
            return Reading(looks_at_all=True)
        return self._verdict(ask, report, report.transaction_id or candidate_id, now, at)

    def _may_deny(self, record: Record, token: bytes) -> bool:
        return self.credentials is None or self.credentials.may_deny(record, token)

    def all_transactions(
        self,
        ask: Followed,
        query: TransactionRef,
        report: StatusReport | None,
        now: float,
        at: float,
        token: bytes,
    ) -> Reading:
        """Read the query by client transaction id that came before the answer to a query by transaction id decides.

        Another one may be paid, or open. Without a verdict nobody knows yet, and the ask is queried again.
        """
        transaction_id = ask.record.transaction_id or query.candidate_id
        doubtful = report is None or ask.record.state is State.ACCEPTED
        if doubtful and not self._may_deny(ask.record, token):
            return Reading(warning=UNDER_ANOTHER)
        if report is None:
            # This query lags behind the other one. "Not found" proves as late as it does of an unknown sale.
            if now < self.policy.findings(ask, now).begun + self.policy.absent_after:
                return Reading()
            report = StatusReport(state="Cancelado")
        elif report.state == "Cancelado":
            report = attrs.evolve(report, transaction_id=None, others=())  # all are, whichever it names
        else:
            transaction_id = report.transaction_id
        if mismatch := find_mismatch(ask.record, report):
            return self._conflict(ask, mismatch, now, at)
        return self._verdict(ask, report, transaction_id, now, at)

    def _verdict(
        self, ask: Followed, report: StatusReport, transaction_id: int | None, now: float, at: float
    ) -> Reading:
        reading = verdict(ask.record, report, transaction_id, at)
        # What says nothing new is not kept: there may be 100,000 of it.
        ask.report = None if report.state == "Pendiente" else report
        if report.state is None:
            self.policy.findings(ask, now).failures = UNMAPPED
            reading.warning = "the service says a state that the profile does not map (status.states)"
        return reading

    def _conflict(self, ask: Followed, mismatch: str, now: float, at: float) -> Reading:
        """Return what is not ours, once and not at every query."""
        found = self.policy.findings(ask, now)
        if mismatch == found.conflict:
            return Reading()
        found.conflict = mismatch
        return Reading([Conflicted(at=at, what=mismatch)], conflict=mismatch)

    def not_found(self, ask: Followed, query: TransactionRef, now: float, at: float, token: bytes) -> Reading:
        """Read "not found", which decides nothing until it proves that nothing was created."""
        record, policy = ask.record, self.policy
        ask.report = None
        if record.kind == "form":
            return Reading()  # a form that nobody has paid yet may well be not found
        found = policy.findings(ask, now)
        if record.state is not State.UNKNOWN:
            # "Not found" is not pending; tolerated while the service makes up its mind.
            if found.missing_since is None:
                found.missing_since = now
            elif now - found.missing_since > MISSING * policy.scale:
                found.missing_since = float("inf")
                return Reading([Conflicted(at=at, what="not found")])
            return Reading()
        if not self._may_deny(record, token):
            return Reading(warning=UNDER_ANOTHER)
        if query.candidate_id is not None:
            found.about(query.candidate_id).missing_at = now
            return Reading()
        # Twice, late enough and far enough apart, and nothing was created.
        if not policy.proves_absence or now < found.begun + policy.absent_after:
            return Reading()
        candidates = record.candidate_ids
        if DROPPED in candidates or (candidates and not policy.by_transaction_id):
            return Reading(
                warning='"not found" proves nothing where a transaction was named that cannot be queried'
            )
        if found.absent_at is None:
            found.absent_at = now
        elif now - found.absent_at >= policy.absent_after / 10:
            if found.all_missing(record):
                return Reading([ProvenAbsent(at=at)])
            found.absent_at = None
        return Reading()


# --- Forms that came back


def read_confirmation(record: Record, transaction_id: int, report: StatusReport, at: float) -> Reading:
    """Return what the answer to a confirmation means. Without events it is not a verdict yet."""
    mismatch: str | None
    if report.transaction_id != transaction_id:
        mismatch = f"confirming transaction {transaction_id} answered another"
    elif report.client_transaction_id is None or report.amount is None:
        mismatch = f"confirming transaction {transaction_id} does not say what it confirms"
    else:
        mismatch = find_mismatch(record, report)
    if mismatch:
        return Reading([Conflicted(at=at, what=mismatch)], conflict=mismatch)
    return read_form(record, report, at)


def read_form(record: Record, report: StatusReport | None, at: float) -> Reading:
    """Return what a status report means for a form. Without events it is not a verdict yet."""
    if report is None:
        return Reading([Abandoned(at=at)])
    if mismatch := find_mismatch(record, report):
        return Reading([Conflicted(at=at, what=mismatch)])
    return (
        Reading(report=report)
        if report.state == "Pendiente"
        else verdict(record, report, report.transaction_id, at)
    )
