"""Refusals that say that something exists: proxies repeat a POST, and we may see the answer to the second."""

from __future__ import annotations

import asyncio

import attrs

from payclient.errors import CustomerBusyError, NotSentError, RefusedError
from payclient.events import Evidence, Lost
from payclient.lifecycle import DROPPED, Record, State
from payclient.logs import Log
from payclient.models import StatusReport
from payclient.tracking.evidence import find_mismatch, verdict
from payclient.tracking.followup import TransactionRef
from payclient.tracking.poller import Poller
from payclient.tracking.recovery import is_noted

__all__: list[str] = []

log: Log = Log("payclient.tracker")


class Refusals:
    """Finds what exists though it was refused, by one query by client transaction id."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._profile = poller.session.profile

    async def _query(
        self, *, transaction_id: int | None = None, client_transaction_id: str | None = None
    ) -> StatusReport | None:
        """Query by one of the ids as soon as the rate allows. Raises `NotSentError` where that is too late."""
        await self._wait_for_turn()
        return await self._poller.session.status(
            transaction_id=transaction_id, client_transaction_id=client_transaction_id, repeat=False
        )

    async def _wait_for_turn(self) -> None:
        if not await self._poller.wait_for_turn(self._poller.policy.total_timeout):
            raise NotSentError("a query could not be made in time by the rate")

    async def find_refused(self, before: Record) -> Record | None:
        """Query a refused attempt that may exist, before another one is sent; None where nothing exists.

        The one query after a refusal as existing may have lagged, and a notification came for nothing that exists.
        Returns the attempt's record if it turns out to be paid. Raises `CustomerBusyError` while the attempt is open,
        and `NotSentError` if nobody can tell.
        """
        identifier, duplicates = before.client_transaction_id, self._profile.duplicate_codes
        existed = before.evidence is Evidence.ANSWER and (
            before.error_type == CustomerBusyError.__name__ or before.error_code in duplicates
        )
        if not (existed or before.notified_at is not None):
            return None
        try:
            report = await self._find(before)
        except Exception as failed:  # of a user's own source anything
            words = f"an earlier attempt may exist, and cannot be queried ({type(failed).__name__})"
            raise NotSentError(words, client_transaction_id=identifier) from None
        if report is None:
            return None
        if self._poller.queries.source is None and not self._poller.queries.can_see(before):
            raise NotSentError(
                "an earlier attempt may exist: its id was found under other credentials than those that sent it",
                client_transaction_id=identifier,
            )
        before = await self._write_found(before, report)
        if report.state in ("Pendiente", None):
            raise CustomerBusyError(
                "an earlier attempt of this sale waits for the customer", client_transaction_id=identifier
            )
        return before if before.state is State.ACCEPTED else None

    async def _find(self, before: Record) -> StatusReport | None:
        """Query by each transaction id that was named, and by client transaction id; the report that decides most.

        None: nothing of this attempt is found, or a cancelled transaction alone.
        """
        queries, identifier = self._poller.queries, before.client_transaction_id
        named = [each for each in reversed(before.candidate_ids) if each != DROPPED]
        if queries.source is not None:
            await self._wait_for_turn()
            first = next(iter(named), None)
            query = TransactionRef(client_transaction_id=identifier, transaction_id=None, candidate_id=first)
            report = await queries.status(query)
            return None if report is None or find_mismatch(before, report) is not None else report
        for candidate_id in named if queries.by_id else ():
            report = await self._query(transaction_id=candidate_id)
            if (
                report is not None
                and report.state != "Cancelado"
                and find_mismatch(before, report, by_candidate=True, candidate_id=candidate_id) is None
            ):
                return attrs.evolve(report, transaction_id=candidate_id)
        if not queries.by_client_id:
            return None
        report = await self._query(client_transaction_id=identifier)
        return None if report is None or find_mismatch(before, report) is not None else report

    def is_duplicate(self, refused: RefusedError) -> bool:
        """Return whether the service refused an id because it has it already."""
        codes = {refused.error_code, *(detail.error_code for detail in refused.errors)}
        return bool(codes & self._profile.duplicate_codes)

    def says_exists(self, refused: RefusedError) -> bool:
        """Return whether a refusal says that something exists: 2061, or a duplicate."""
        return isinstance(refused, CustomerBusyError) or self.is_duplicate(refused)

    async def find_existing(
        self, record: Record, refused: RefusedError, before: Record | None, lost: Lost
    ) -> Record | None:
        """Return the record of an attempt that may exist though it was refused; None: nothing to pay exists.

        What stands between us and the service may repeat a POST: the first one creates, the second one is answered by
        2061 or "duplicate". One query by client transaction id tells the two apart. `lost` makes the attempt unknown.
        """
        if not self.says_exists(refused):
            return None
        duplicate = self.is_duplicate(refused)
        identifier = record.client_transaction_id
        if not self._poller.queries.by_client_id:
            return await self._poller.write(record, lost) if duplicate else None
        try:
            report = await self._query(client_transaction_id=identifier)
        except asyncio.CancelledError:
            await asyncio.shield(self._poller.write(record, lost))
            raise
        except Exception as failed:  # whatever it is, it tells nothing
            what = "refused as existing, and the query failed: %s"
            log("warning", "existing_not_found", identifier, what, type(failed).__name__)
            return await self._poller.write(record, lost)
        if not self._poller.queries.can_see(record):
            return await self._poller.write(record, lost)  # the token was renewed meanwhile
        if report is None:
            # An earlier attempt that was thought absent may be there after all.
            doubted = before is not None and before.evidence in (Evidence.ABSENT, Evidence.OPERATOR)
            return await self._poller.write(record, lost) if duplicate and doubted else None
        log("warning", "existing_found", identifier, "refused as existing, and found: %s", report.state)
        record = await self._poller.write(record, lost)
        if record.state is State.UNKNOWN and find_mismatch(record, report) is None:
            record = await self._write_found(record, report)
        return record

    async def _write_found(self, record: Record, report: StatusReport) -> Record:
        """Write what a query found of an attempt."""
        at, window = self._poller.clock.time(), self._poller.policy.sale_window
        reading = verdict(record, report, report.transaction_id, at, window)
        if await is_noted(self._poller.asks.ledger, record, reading.events):
            return record
        identifier = record.client_transaction_id
        for alarm in reading.alarms:
            log("critical", "outcome_alarm", identifier, "%s", alarm)
        for event in reading.events:
            record = await self._poller.write(record, event)
        return record
