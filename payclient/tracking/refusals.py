"""What ended unpaid, and may exist all the same: it is queried before another ask is sent.

Proxies repeat a POST, a service lists late, and where nobody could query an ask its end proves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from payclient.errors import (
    CustomerBusyError,
    LedgerUnavailableError,
    NotSentError,
    PayError,
    RefusedError,
    named_error,
)
from payclient.events import DecidedRefused, Evidence, Lost
from payclient.lifecycle import DROPPED, Record, State
from payclient.logs import tracker_log as log
from payclient.models import StatusReport
from payclient.tracking.evidence import find_mismatch, may_be_spelt, verdict
from payclient.tracking.followup import Policy, TransactionRef, customer_acted
from payclient.tracking.recovery import existing

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller


class _UntoldError(NotSentError):
    """No query tells whether an ask exists: only a person can."""


def may_exist(refused: Record, named: Set[int], codes: Set[int]) -> bool:
    """Return whether a refused attempt may exist all the same, so that it is queried before another is sent.

    The query after a refusal because of what exists may have come too early. `named` are the attempts that were
    refused so, as their history says, and `codes` the profile's codes of duplicates.
    """
    # The profile may list its code only since then. The history has what was known then, or the archive alone has it.
    is_doubted = refused.archived or refused.error_code in codes or refused.attempt in named
    return refused.notified_at is not None or (refused.kind == "sale" and is_doubted)


#: What is known of an ask: a change of it means that it may be paid.
_known = attrgetter("state", "notified_at", "candidate_ids")


def _ids_to_query(attempts: Sequence[Record], policy: Policy) -> list[tuple[str, int | None]]:
    """Return kinds and ids to query attempts by: what was named to them, the newest first, then None: by our own id."""
    # An id may have been that of a sale and of a form.
    newest = attempts[::-1]
    named = ((one.kind, each) for one in newest for each in reversed(one.candidate_ids) if each != DROPPED)
    ids: list[tuple[str, int | None]] = [*dict.fromkeys(named)] if policy.by_transaction_id else []
    return [*ids, *dict.fromkeys((one.kind, None) for one in newest)] if policy.can_query_any else ids


class Refusals:
    """Finds what exists though it was refused, since proxies repeat a POST, or though nobody could query it."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._queries = poller.queries
        self._duplicates = poller.session.profile.duplicate_codes

    async def _wait_for_turn(self) -> None:
        if not await self._poller.wait_for_turn():
            raise NotSentError("a query could not be made in time by the rate")

    async def check_unchanged(self, ended: Sequence[Record]) -> None:
        """Raise where one of these asks was notified, or found, since it was looked at: it may be paid."""
        found, _ = await self._poller.asks.ledger.find([each.client_transaction_id for each in ended])
        for each in ended:
            attempts = found.get(each.client_transaction_id, ())[each.attempt - 1 :]
            # A query of it may have been its last one, which is written too.
            if attempts and _known(attempts[0]) != _known(each):
                words = "an earlier attempt was notified, or found, as this one connected"
                raise NotSentError(words, client_transaction_id=each.client_transaction_id)

    async def find_ended(self, ended: Record) -> Record | None:
        """Query an ask that ended unpaid, and may exist all the same, before another one is sent.

        Returns its record where it is paid, or open; None where another one may be sent. Raises `CustomerBusyError`
        while a refused attempt is open, and `NotSentError` if nobody can tell.
        """
        try:
            if ended.state is State.REFUSED:
                return await self._find_refused(ended)
            return await self._find_unheard(ended)
        except _UntoldError as error:
            raise NotSentError(error.args[0], client_transaction_id=ended.client_transaction_id) from None
        except PayError as error:
            raise named_error(error, ended.client_transaction_id) from error.__cause__

    async def _find_refused(self, ended: Record) -> Record | None:
        """Do what `find_ended` does for a refused ask."""
        # Any of several refused attempts may exist, whatever the newest one met.
        attempts = await self._attempts(ended) if ended.attempt > 1 else [ended]
        # Read once: an id that is sent every few minutes has many attempts.
        changes = await self._poller.asks.ledger.history(ended.client_transaction_id)
        named = existing(changes)
        doubted = [each for each in attempts if may_exist(each, named, self._duplicates)]
        if not doubted:
            return None
        was_created = any("created_id" in change.facts for change in changes)
        try:
            return await self._find_doubted(ended, doubted, was_created=was_created)
        except _UntoldError:
            by_person, numbers = DecidedRefused.__name__, {each.attempt for each in doubted}
            events = [each.event for each in changes if each.event == by_person or each.attempt in numbers]
            if by_person in events[-1:]:
                return None  # nothing was named to one of them since a person said that none exists
            raise

    async def _find_unheard(self, ended: Record) -> Record | None:
        """Do what `find_ended` does for an ask that ended unheard: its customer acted late, or nobody could query."""
        policy, is_form = self._poller.policy, ended.kind == "form"
        is_named = is_form and ended.state is not State.REVERSED and bool(ended.candidate_ids)
        is_free = self._poller.clock.time() >= policy.closed_until(ended)
        if is_named and is_free and _ids_to_query([ended], policy):
            # Closed or expired, and paid all the same: while it held its purchase, perhaps no process lived.
            return await self._find_doubted(ended, [ended], was_created=False)
        # Nobody here has the links of an unknown form, and another ledger may have prepared the same id.
        is_unknown_form = is_form and ended.state is State.UNKNOWN
        # It may have been notified after its last query.
        is_late_push = not is_form and ended.state is State.EXPIRED and customer_acted(ended)
        is_doubted = is_unknown_form or is_late_push or ended.evidence is Evidence.NO_QUERY
        can_find = policy.can_query and policy.follows(ended)
        return await self._poller.query_unqueried(ended) if is_doubted and can_find else None

    async def _attempts(self, record: Record) -> list[Record]:
        """Return every attempt of the id, the newest last."""
        found, _ = await self._poller.asks.ledger.find((record.client_transaction_id,))
        return found[record.client_transaction_id]

    async def _find_doubted(
        self, before: Record, doubted: Sequence[Record], *, was_created: bool
    ) -> Record | None:
        """Do what `find_ended` does, where `doubted` attempts may exist; if `was_created`, one does."""
        report = await self._find_surely(before, doubted)
        if report is None:
            if not was_created or self._poller.policy.can_query_any:
                return None
            words = "an earlier attempt was created, as its answer said, and no query by client transaction id finds it"
            raise _UntoldError(words)
        newest = await self._poller.asks.ledger.get(before.client_transaction_id)
        if newest is not None and newest.attempt > before.attempt and newest.state.paid is not False:
            return newest  # another process has sent it since, which was found
        if self._poller.confirmer.confirm_first(before, report):
            report = attrs.evolve(report, state="Pendiente")  # until the confirmations have an answer
        reading = verdict(before, report, self._poller.clock.time())
        after = await self._queries.write(before, reading) or before
        if after.state is State.ACCEPTED:
            return after
        if report.state == "Aceptado":
            words = "an earlier attempt of this sale is paid, which the ledger did not take; nothing was sent"
            raise LedgerUnavailableError(words)
        if report.state == "Cancelado" and not self._may_be_approved(after, doubted):
            return None
        words = "an earlier attempt waits for the customer, or may yet be approved; wait until it has expired"
        raise CustomerBusyError(words)

    def _may_be_approved(self, refused: Record, doubted: Sequence[Record]) -> bool:
        """Return whether an attempt may still be approved, so that "Cancelado" is not final (§3).

        By both clocks, where it was sent here a moment ago: the wall clock may have been set forward since.
        """
        policy, clock = self._poller.policy, self._poller.clock
        ask = self._poller.asks.find(refused.client_transaction_id)
        is_open_here = ask is not None and clock.monotonic() < ask.expires + policy.total_timeout
        return is_open_here or clock.time() < max(map(policy.longest_end, (refused, *doubted)))

    async def _find_surely(self, before: Record, doubted: Sequence[Record]) -> StatusReport | None:
        """Return what `_find` finds. Raises `NotSentError` where that fails, or under this token proves nothing."""
        is_notified = any(each.notified_at is not None for each in doubted)
        if is_notified and not _ids_to_query(doubted, self._poller.policy):
            raise _UntoldError("an earlier attempt may exist: it was notified, and no query can find it")
        try:
            report = await self._find(before, doubted)
        except Exception as failed:  # a user's own source may raise anything
            why = str(failed) if isinstance(failed, NotSentError) else type(failed).__name__
            kind = _UntoldError if isinstance(failed, _UntoldError) else NotSentError
            raise kind(f"an earlier attempt may exist, and cannot be queried ({why})") from None
        has_trace = report is not None or is_notified
        if has_trace and self._queries.source is None and not all(map(self._queries.can_see, doubted)):
            found = "not found" if report is None else "found"
            words = f"an earlier attempt may exist: its id was {found} under other credentials than those that sent it"
            raise _UntoldError(words)
        return report

    async def _find(self, before: Record, doubted: Sequence[Record]) -> StatusReport | None:
        """Query by each transaction id that was named, then by client transaction id; return the first that decides.

        One that is cancelled decides where nothing else is found. None: nothing of this attempt is found.
        """
        identifier = before.client_transaction_id
        own_source, cancelled = self._queries.source is not None, None
        for kind, candidate_id in _ids_to_query(doubted, self._poller.policy):
            await self._wait_for_turn()
            query = TransactionRef(
                client_transaction_id=identifier, transaction_id=None, candidate_id=candidate_id, kind=kind
            )
            report = await self._queries.status(query)
            by_id = candidate_id is not None
            queried_id = None if own_source else candidate_id  # a user's own source may query by our id
            if report is None or (by_id and not may_be_spelt(identifier, report.client_transaction_id)):
                continue  # not found, or another sale's
            # A cancelled transaction may be an earlier attempt's, of another content: nobody pays it.
            ours = [before, *doubted] if report.state == "Cancelado" else [before]
            if all(
                find_mismatch(each, report, must_name_ours=by_id, candidate_id=queried_id) for each in ours
            ):
                is_ours_misspelt = report.client_transaction_id not in (None, identifier)
                if queried_id is not None and not (report.unreadable or is_ours_misspelt):
                    continue  # anybody may have named it
                raise _UntoldError("what was found under its id is not as it was sent")
            if await self._queries.is_anothers(before, report):
                raise _UntoldError("another sale's transaction was found under its id")
            report = attrs.evolve(report, transaction_id=queried_id or report.transaction_id)
            if report.state != "Cancelado":
                return report
            cancelled = report
        return cancelled

    def is_duplicate(self, refused: RefusedError) -> bool:
        """Return whether the service refused an id because it has it already."""
        codes = {refused.error_code, *(detail.error_code for detail in refused.errors)}
        return bool(codes & self._duplicates)

    def says_exists(self, refused: RefusedError) -> bool:
        """Return whether a refusal says that something exists: 2061, or a duplicate."""
        return isinstance(refused, CustomerBusyError) or self.is_duplicate(refused)

    async def find_existing(self, record: Record, refused: RefusedError, lost: Lost) -> Record | None:
        """Return the record of an attempt that may exist though it was refused; None: the refusal stands.

        A proxy may send a POST twice: the first creates, and the second is answered by 2061 or "duplicate". A query by
        client transaction id shows whether that happened. `lost` is the event that makes the attempt unknown.
        """
        if not self.says_exists(refused):
            return None
        is_doubted, report = await self._query_existing(record, self.is_duplicate(refused))
        if not is_doubted:
            return None
        record = await self._poller.asks.write(record, lost)
        if report is not None:
            identifier = record.client_transaction_id
            log("warning", "existing_found", identifier, "refused as existing, and found: %s", report.state)
            if (ask := self._poller.asks.follow(record)) is not None:
                query = TransactionRef(client_transaction_id=identifier, transaction_id=None)
                await self._queries.take(ask, query, report)
                record = ask.record
        return record

    async def _query_existing(self, record: Record, is_duplicate: bool) -> tuple[bool, StatusReport | None]:
        """Return whether an attempt that was refused as existing may exist, and what a query found of it."""
        if not self._poller.policy.by_client_id:
            return is_duplicate, None  # 2061 stays a refusal
        identifier = record.client_transaction_id
        try:
            # An earlier attempt that was thought absent may be there after all.
            earlier = await self._attempts(record) if is_duplicate else []
            await self._wait_for_turn()
            report = await self._queries.query_session(client_transaction_id=identifier)
            if not self._queries.can_see(record):  # the token was renewed: it may find another account's
                return True, None
        except Exception as failed:  # any failure leaves the outcome unknown
            what = "refused as existing, and the query failed: %s"
            log("warning", "existing_not_found", identifier, what, type(failed).__name__)
            return True, None
        is_doubted = any(each.evidence in (Evidence.ABSENT, Evidence.OPERATOR) for each in earlier)
        return is_doubted or report is not None, report

    def plan_query(self, record: Record, error: Exception) -> None:
        """Query a sale that its refusal says exists once more when the service's list has surely caught up."""
        if record.kind == "sale" and isinstance(error, RefusedError) and self.says_exists(error):
            self._poller.recheck(record, after=self._poller.policy.absent_after)
