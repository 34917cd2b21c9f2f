"""One status query: made, its answer read and written. A failure is nobody's wait's failure: it is queried again."""

from __future__ import annotations

import math

import attrs

from payclient.auth import SIGNED_WITH
from payclient.clock import within
from payclient.errors import RateLimitedError, UnauthorizedError
from payclient.lifecycle import Record
from payclient.logs import Log
from payclient.models import StatusReport
from payclient.session import PaySession
from payclient.tracking.asks import OpenAsks
from payclient.tracking.evidence import UNDER_ANOTHER, AnswerReader, Credentials, Reading
from payclient.tracking.followup import Followed, StatusSource, TransactionRef
from payclient.tracking.rate_limit import RateLimit
from payclient.tracking.recovery import is_noted
from payclient.validation import is_personal

__all__: list[str] = []

log: Log = Log("payclient.tracker")

#: Seconds without queries after a 401.
UNAUTHORIZED_PAUSE = 30.0

#: What one query weighs in the share of those that fail, and the share from which a service counts as failing.
WEIGHT, FAILING = 1 / 16, 0.05


class StatusQueries:
    """Queries through one session, or a user's own `source`."""

    def __init__(
        self, session: PaySession, asks: OpenAsks, rate: RateLimit, source: StatusSource | None
    ) -> None:
        self._session = session
        self.source: StatusSource | None = source
        self._asks = asks
        self._clock = asks.clock
        self._policy = asks.policy
        self._rate = rate
        status = session.profile.status
        #: Whether the session can query by our own id, and by the service's.
        self.by_client_id: bool = status is not None and status.by_client_transaction_id is not None
        self.by_id: bool = status is not None and status.by_transaction_id is not None
        self.credentials: Credentials = Credentials(asks.ledger.digest_key)
        self._reader = AnswerReader(self._policy, self.credentials if source is None else None)
        #: Of late, the share of queries that brought no answer.
        self._failed = 0.0
        #: When the first 401 came after the last answer; infinity: none did.
        self._refused_at = math.inf
        self._said: set[str] = set()

    @property
    def is_failing(self) -> bool:
        """Whether the service leaves queries unanswered."""
        return self._failed > FAILING

    def read(self, ask: Followed, query: TransactionRef, report: StatusReport | None) -> Reading:
        """Read an answer that came just now."""
        if report is None:
            return self._reader.not_found(ask, query, *self._moment())
        return self._reader.report(ask, query, report, *self._moment())

    def _moment(self) -> tuple[float, float, bytes]:
        """Return monotonic and UTC time, and the digest of the token that the last request was signed with."""
        return self._clock.monotonic(), self._clock.time(), SIGNED_WITH.get()

    async def read_all(self, ask: Followed, query: TransactionRef) -> Reading | None:
        """Query all transactions of this client transaction id before one of them decides; None without an answer."""
        answered, report = await self.ask(ask, attrs.evolve(query, transaction_id=None, candidate_id=None))
        if not answered:
            return None
        return self._reader.all_transactions(ask, query, report, *self._moment())

    async def write(self, ask: Followed, reading: Reading) -> None:
        """Log and write what an answer means."""
        identifier, decided = ask.record.client_transaction_id, ask.record.state.decided
        # What is known of a decided ask is made anew for each query: its history tells what was said before.
        if not decided or not await is_noted(self._asks.ledger, ask.record, reading.events):
            for alarm in reading.alarms:
                log("critical", "outcome_alarm", identifier, "%s", alarm)
            for event in reading.events:
                await self._asks.apply(ask, event)
            if reading.conflict is not None:
                what = "a status report is not ours: %s"
                log("error", "status_conflicted", identifier, what, reading.conflict)
        if reading.warning is not None:
            self.say("status_strange", identifier, reading.warning)

    async def ask(self, ask: Followed, query: TransactionRef) -> tuple[bool, StatusReport | None]:
        """Query once, and return whether an answer came, and the report."""
        made_at = self._clock.monotonic()
        try:
            report = await self.status(query)
        except RateLimitedError as limited:
            if ask.final_queries:
                ask.final_queries -= 1  # it was not made, as far as a wait is concerned
            self._rate.rate_limited(self._clock.monotonic(), made_at, limited.retry_after)
        except UnauthorizedError:
            # The first 401 may only mean that a fresh token is due: the next query is signed with that one.
            if made_at > self._refused_at:
                self._rate.pause(self._clock.monotonic(), UNAUTHORIZED_PAUSE * self._policy.scale)
                self.say(
                    "queries_unauthorized", "", "status queries are refused (401): is the token still good?"
                )
            elif self._refused_at == math.inf:
                self._refused_at = self._clock.monotonic()
        except Exception as error:  # of a user's own source anything
            self._policy.findings(ask, self._clock.monotonic()).failures += 1
            name = type(error).__name__
            self.say("query_failed", query.client_transaction_id, f"a status query failed: {name}")
        else:
            self._failed -= WEIGHT * self._failed
            self._rate.answered(made_at)
            self._refused_at = math.inf
            if ask.findings is not None:
                ask.findings.failures = 0
            return True, report
        self._failed += WEIGHT * (1.0 - self._failed)
        if ask.findings is not None:
            ask.findings.unanswered(query.candidate_id)
        return False, None

    async def status(self, query: TransactionRef) -> StatusReport | None:
        """Query by the id that says most. Raises what `PaySession.status` raises, or what a user's own source does."""
        if self.source is not None:
            report = await within(self._clock, self._policy.total_timeout, self.source(query))
            return None if report is None else _storable(report)
        transaction_id = query.transaction_id or query.candidate_id
        if self.by_client_id and (transaction_id is None or not self.by_id):
            return await self._session.status(client_transaction_id=query.client_transaction_id, repeat=False)
        return await self._session.status(transaction_id=transaction_id, repeat=False)

    def can_see(self, record: Record) -> bool:
        """Return whether "not found" under the token in use speaks of this attempt; warn once where it does not."""
        if self.credentials.can_see(record, SIGNED_WITH.get()):
            return True
        identifier = record.client_transaction_id
        self.say("credentials_changed", identifier, UNDER_ANOTHER)
        return False

    def say(self, event: str, client_transaction_id: str, message: str) -> None:
        """Log a warning once, whichever charge meets it first."""
        if message not in self._said:
            self._said.add(message)
            log("warning", event, client_transaction_id, "%s", message)


def _storable(report: StatusReport) -> StatusReport:
    """Return a report of a user's own source without what is never kept."""
    receipt = {
        name: value
        for name, value in report.receipt.items()
        if type(name) is str and type(value) in (str, int) and not is_personal(name)
    }
    reason = report.reason if type(report.reason) is str else None
    return attrs.evolve(report, receipt=receipt, reason=reason)
