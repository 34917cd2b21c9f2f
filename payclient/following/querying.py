"""One status query of one open sale, and what its answer says. Never raises: nobody's wait fails for it."""

from __future__ import annotations

import logging

from payclient.asking import StatusSource, TransactionRef, conflict_of
from payclient.clock import Clock
from payclient.errors import RateLimitedError, UnauthorizedError
from payclient.events import Conflicted, FoundAccepted, FoundCancelled, FoundPending, ProvenAbsent
from payclient.following.entries import Entries, Entry
from payclient.following.turns import Pace
from payclient.lifecycle import State
from payclient.results import StatusReport

__all__: list[str] = []

logger = logging.getLogger("payclient.following")

#: Seconds without queries after a 401.
UNAUTHORIZED_PAUSE = 30.0

#: What one query weighs in the share of those that fail.
FADING = 1 / 16

#: Seconds for which "not found" is tolerated of a sale that was created.
MISSING = 15.0


class Querying:
    """Asks one status source. `scale` is the sale window over 300 s."""

    def __init__(
        self,
        entries: Entries,
        clock: Clock,
        pace: Pace,
        status: StatusSource,
        *,
        proves_absence: bool,
        absent_after: float,
        scale: float,
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._pace = pace
        self._status = status
        #: "Not found" counts as proof only from the profile's own query by client transaction id.
        self._proves_absence = proves_absence
        self._absent_after = absent_after
        self._scale = scale
        self._said: set[str] = set()
        #: Of late, the share of queries that brought no answer.
        self.failing = 0.0

    async def ask(self, entry: Entry) -> StatusReport | None:
        """Ask once and let the ledger take the answer; the report, if one came."""
        record = entry.record
        reference = TransactionRef(
            client_transaction_id=record.client_transaction_id,
            transaction_id=record.transaction_id,
            candidate_id=record.candidate_id,
            kind=record.kind,
        )
        made_at = self._clock.monotonic()
        try:
            report = await self._status(reference)
        except RateLimitedError as limited:
            self._failed()
            self._pace.rate_limited(self._clock.monotonic(), made_at, limited.retry_after)
            return None
        except UnauthorizedError:
            self._failed()
            self._pace.pause(self._clock.monotonic(), UNAUTHORIZED_PAUSE * self._scale)
            self._say("401", "status queries are refused (401): is the token still good?")
            return None
        except Exception as error:  # of a user's own source anything
            self._failed()
            self._entries.case(entry).failures += 1
            self._say(f"error {type(error).__name__}", "a status query failed: %s", type(error).__name__)
            return None
        self.failing -= FADING * self.failing
        self._pace.answered(made_at)
        if entry.case is not None:
            entry.case.failures = 0
        # What says nothing new is not kept: there may be 100,000 of it.
        entry.report = None if report is not None and report.state == "Pendiente" else report
        if report is None:
            await self._not_found(entry)
            return None
        if entry.case is not None:
            entry.case.missing_since = entry.case.absent_at = None
        await self._take(entry, report)
        return report

    async def _take(self, entry: Entry, report: StatusReport) -> None:
        record = entry.record
        if conflict := conflict_of(record, report, by_candidate=not self._proves_absence):
            case = self._entries.case(entry)
            if conflict != case.conflict:  # written and said once, not at every query
                case.conflict = conflict
                await self._entries.apply(entry, Conflicted(at=self._clock.time(), what=conflict))
                logger.error("%s: a status report is not ours: %s", record.client_transaction_id, conflict)
            return
        if report.also_accepted:
            others = ", ".join(map(str, report.also_accepted))
            logger.critical("%s: accepted more than once: also %s", record.client_transaction_id, others)
            await self._entries.apply(
                entry, Conflicted(at=self._clock.time(), what=f"also accepted: {others}")
            )
        now, identifier = self._clock.time(), report.transaction_id
        state = entry.record.state
        if report.state == "Aceptado":
            if state is State.CANCELLED:
                logger.critical("%s: cancelled, and yet accepted", record.client_transaction_id)
            await self._entries.apply(entry, FoundAccepted(at=now, transaction_id=identifier))
        elif report.state == "Cancelado":
            await self._entries.apply(entry, FoundCancelled(at=now, transaction_id=identifier))
        elif report.state == "Pendiente":
            if state is State.UNKNOWN:
                await self._entries.apply(entry, FoundPending(at=now, transaction_id=identifier))
        else:
            self._entries.case(entry).failures = 3
            self._say("state word", "the service says a state that the profile does not map (status.states)")

    async def _not_found(self, entry: Entry) -> None:
        now = self._clock.monotonic()
        if entry.record.kind == "form":
            return  # a form that nobody has paid yet may well be not found
        case = self._entries.case(entry)
        if entry.record.state is not State.UNKNOWN:
            # "Not found" is not pending; tolerated while the service makes up its mind.
            if case.missing_since is None:
                case.missing_since = now
            elif now - case.missing_since > MISSING * self._scale:
                case.missing_since = float("inf")
                await self._entries.apply(entry, Conflicted(at=self._clock.time(), what="not found"))
            return
        # Twice, late enough and far enough apart, and nothing was created.
        if not self._proves_absence or now < case.begun + self._absent_after:
            return
        if case.absent_at is None:
            case.absent_at = now
        elif now - case.absent_at >= self._absent_after / 10:
            await self._entries.apply(entry, ProvenAbsent(at=self._clock.time()))

    def _failed(self) -> None:
        self.failing += FADING * (1.0 - self.failing)

    def _say(self, key: str, message: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(message, *values)
