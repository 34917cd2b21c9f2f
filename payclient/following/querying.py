"""One status query of one open sale, and what its answer says. Never raises: nobody's wait fails for it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import attrs

from payclient.asking import StatusSource, TransactionRef, conflict_of, verdict
from payclient.clock import Clock
from payclient.credentials import Credentials
from payclient.errors import RateLimitedError, UnauthorizedError
from payclient.events import Conflicted, ProvenAbsent
from payclient.following.entries import NEVER, Entries, Entry
from payclient.following.turns import Pace
from payclient.lifecycle import DROPPED, State
from payclient.models import StatusReport

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
        asks_by_id: bool,
        credentials: Credentials | None,
        absent_after: float,
        scale: float,
        turn: Callable[[], Awaitable[bool]],
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._pace = pace
        self._status = status
        #: "Not found" counts as proof only from the profile's own query by client transaction id.
        self._proves_absence = proves_absence
        #: Whether candidate ids can be asked for.
        self._asks_by_id = asks_by_id
        #: None: whoever is asked is not the session.
        self._credentials = credentials
        self._absent_after = absent_after
        self._scale = scale
        #: Waits until one more query than planned may be made by the rate.
        self._turn = turn
        self._said: set[str] = set()
        #: When the first 401 came after the last answer; infinity: none did.
        self._refused_at = float("inf")
        #: Of late, the share of queries that brought no answer.
        self.failing = 0.0

    async def ask(self, entry: Entry) -> StatusReport | None:
        """Ask once and let the ledger take the answer; the report, if one came."""
        record = entry.record
        candidate_id = self._candidate(entry)
        reference = TransactionRef(
            client_transaction_id=record.client_transaction_id,
            transaction_id=record.transaction_id,
            candidate_id=candidate_id,
            kind=record.kind,
        )
        answered, report = await self._fetch(entry, reference)
        if not answered:
            if entry.case is not None:
                entry.case.client_asked_at = (
                    NEVER  # a query without an answer proves nothing: it is made again
                )
            return None
        if report is None:
            entry.report = None
            await self._not_found(entry, candidate_id)
            return None
        return report if await self._take(entry, report, candidate_id) else None

    async def _fetch(self, entry: Entry, reference: TransactionRef) -> tuple[bool, StatusReport | None]:
        """Query once; whether an answer came, and its report."""
        made_at = self._clock.monotonic()
        try:
            report = await self._status(reference)
        except RateLimitedError as limited:
            self._failed()
            if entry.last_asked:
                entry.last_asked -= 1  # it was not made, as far as a wait is concerned
            self._pace.rate_limited(self._clock.monotonic(), made_at, limited.retry_after)
            return False, None
        except UnauthorizedError:
            self._failed()
            # The first 401 may only mean that a fresh token is due: the next query is signed with that one.
            if made_at > self._refused_at:
                self._pace.pause(self._clock.monotonic(), UNAUTHORIZED_PAUSE * self._scale)
                self._say("401", "status queries are refused (401): is the token still good?")
            elif self._refused_at == float("inf"):
                self._refused_at = self._clock.monotonic()
            return False, None
        except Exception as error:  # of a user's own source anything
            self._failed()
            self._entries.case(entry).failures += 1
            self._say(f"error {type(error).__name__}", "a status query failed: %s", type(error).__name__)
            return False, None
        self.failing -= FADING * self.failing
        self._pace.answered(made_at)
        self._refused_at = float("inf")
        if entry.case is not None:
            entry.case.failures = 0
        return True, report

    def _candidate(self, entry: Entry) -> int | None:
        """The candidate id that the next query goes by; None: it goes by what is ours."""
        record, case = entry.record, entry.case
        if record.transaction_id is not None or record.kind != "sale":
            return None
        if case is None:
            case = self._entries.case(entry)
        now = self._clock.monotonic()
        candidate_id = case.candidate(record) if self._asks_by_id else None
        if candidate_id is None:
            case.by_candidate, case.client_asked_at = False, now
            return None
        # Without a query by client transaction id there is nothing to take turns with.
        case.by_candidate = self._proves_absence
        if not self._proves_absence:
            case.client_asked_at = now
        about = case.about(candidate_id)
        about.queries, about.asked_at = about.queries + 1, now
        return candidate_id

    async def _take(self, entry: Entry, report: StatusReport, candidate_id: int | None) -> bool:
        """Apply what a report says; False where the report is about something that is not ours."""
        record = entry.record
        unproven = candidate_id is not None or not self._proves_absence
        # A user's own source may go by our id, and then names the true transaction whichever candidate had its turn.
        asked = None if self._credentials is None else candidate_id
        conflict = conflict_of(record, report, by_candidate=unproven, candidate_id=asked)
        if (
            self._credentials is not None
            and record.transaction_id is None
            and record.kind == "sale"
            and record.credentials
            and not self._credentials.may_deny(record)
        ):
            # Another account may have an order of the same id, amount and currency.
            await self._conflict(entry, "found under other credentials than those that sent it")
            return False
        if candidate_id is not None and report.client_transaction_id not in (
            None,
            record.client_transaction_id,
        ):
            # Whoever named it, it is somebody else's, and says nothing about this sale.
            self._entries.case(entry).about(candidate_id).is_another = True
            if not record.state.decided:
                what = f"transaction {candidate_id} is another's"
                conflicted = Conflicted(at=self._clock.time(), what=what, candidate_id=candidate_id)
                await self._entries.apply(entry, conflicted)
            return False
        if entry.case is not None:
            entry.case.missing_since = entry.case.absent_at = None
        if conflict:
            await self._conflict(entry, conflict)
            return False
        if (
            self._credentials is not None
            and record.kind == "sale"
            and record.transaction_id is not None
            and report.transaction_id == record.transaction_id
            and report.client_transaction_id is not None  # numbers alone are another account's too
        ):
            self._credentials.found(record)
        transaction_id = report.transaction_id or candidate_id
        by_id = self._asks_by_id and (record.transaction_id or candidate_id) is not None
        if report.state == "Cancelado" and by_id and self._proves_absence and not record.state.decided:
            whole = await self._look_at_all(entry)
            if whole is None:
                return False
            report = whole
            if report.state != "Cancelado":
                transaction_id = report.transaction_id
        # What says nothing new is not kept: there may be 100,000 of it.
        entry.report = None if report.state == "Pendiente" else report
        events, alarms = verdict(entry.record, report, transaction_id, self._clock.time())
        if not await self._entries.has_noted(entry, events):
            for alarm in alarms:
                logger.critical("%s: %s", record.client_transaction_id, alarm)
            for event in events:
                await self._entries.apply(entry, event)
        if report.state is None:
            self._entries.case(entry).failures = 3
            self._say("state word", "the service says a state that the profile does not map (status.states)")
        return True

    async def _look_at_all(self, entry: Entry) -> StatusReport | None:
        """Query by client transaction id before a cancelled transaction decides: another one may be paid, or open.

        None: nobody knows yet, and it is queried again.
        """
        case, record = self._entries.case(entry), entry.record
        if not await self._turn():
            return None
        answered, report = await self._fetch(
            entry,
            TransactionRef(
                client_transaction_id=record.client_transaction_id, transaction_id=None, kind=record.kind
            ),
        )
        if not answered:
            return None
        if report is None:
            # This query lags behind the other one. "Not found" proves as late as it does of an unknown sale.
            late = self._clock.monotonic() >= case.begun + self._absent_after
            return StatusReport(state="Cancelado") if late else None
        if report.state == "Cancelado":
            report = attrs.evolve(report, transaction_id=None)  # all are, whichever it names
        if conflict := conflict_of(record, report):
            await self._conflict(entry, conflict)
            return None
        return report

    async def _conflict(self, entry: Entry, conflict: str) -> None:
        """Write and log what is not ours, once and not at every query."""
        case = self._entries.case(entry)
        event = Conflicted(at=self._clock.time(), what=conflict)
        if conflict != case.conflict and not await self._entries.has_noted(entry, [event]):
            case.conflict = conflict
            await self._entries.apply(entry, event)
            logger.error("%s: a status report is not ours: %s", entry.record.client_transaction_id, conflict)

    async def _not_found(self, entry: Entry, candidate_id: int | None) -> None:
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
        if self._credentials is not None and not self._credentials.may_deny(entry.record):
            return
        if candidate_id is not None:
            case.about(candidate_id).missing_at = now
            return
        # Twice, late enough and far enough apart, and nothing was created.
        if not self._proves_absence or now < case.begun + self._absent_after:
            return
        candidates = entry.record.candidate_ids
        if DROPPED in candidates or (candidates and not self._asks_by_id):
            self._say(
                "candidates",
                '%s: "not found" proves nothing where a transaction was named that cannot be queried',
                entry.record.client_transaction_id,
            )
            return
        if case.absent_at is None:
            case.absent_at = now
        elif now - case.absent_at >= self._absent_after / 10:
            if case.all_missing(entry.record):
                await self._entries.apply(entry, ProvenAbsent(at=self._clock.time()))
            else:
                case.absent_at = None

    def _failed(self) -> None:
        self.failing += FADING * (1.0 - self.failing)

    def _say(self, key: str, message: str, *values: object) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(message, *values)
