"""What sending a row tells: whether it is tried again, how fast the next may go, and whether the batch goes on."""

from __future__ import annotations

from collections.abc import Callable

from payclient.batch.lanes import LaneRow
from payclient.clock import Clock
from payclient.errors import CustomerBusyError, NotSentError, RateLimitedError, UnauthorizedError
from payclient.lifecycle import State
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.rate_limit import RateLimit

__all__ = ["Tries"]

#: Tries of one row after HTTP 429.
RATE_LIMITED_TRIES = 5

#: Seconds between tries of a customer who is busy with a sale that is not ours (2061), and how long at most.
BUSY_DELAYS = (10.0, 20.0, 40.0, 60.0)
BUSY_FOR = 360.0

#: Unknown outcomes in a row that stop the sending: something is wrong out there.
UNKNOWN_IN_A_ROW = 5


#: Sends in a row that did not reach the service and stop the sending: nothing gets there.
NOT_SENT_IN_A_ROW = 5


class Tries:
    """`stop(why)` ends the sending; `scale` is the sale window by the normal one."""

    def __init__(
        self, clock: Clock, rate: RateLimit, *, scale: float, renews_token: bool, stop: Callable[[str], None]
    ) -> None:
        self._clock = clock
        self._rate = rate
        self._scale = scale
        self._renews_token = renews_token
        self._stop = stop
        self._unknown_in_a_row = 0
        self._not_sent_in_a_row = 0
        #: How often a fresh token was asked for: a row is sent with the token of the number that stood here then.
        self.token: int = 0
        #: Whether the service has taken anything with it.
        self._proven = True

    def sent(self, pending: PendingSale, token: int, made_at: float) -> None:
        """A row was sent, and may exist."""
        self._proven = self._proven or token == self.token
        self._not_sent_in_a_row = 0
        if pending.state is not State.UNKNOWN:
            self._unknown_in_a_row = 0
            self._rate.answered(made_at)
            return
        self._unknown_in_a_row += 1
        if self._unknown_in_a_row >= UNKNOWN_IN_A_ROW:
            self._stop(f"{UNKNOWN_IN_A_ROW} unknown outcomes in a row")

    def again(self, row: LaneRow, error: Exception, token: int, made_at: float) -> float | None:
        """In how many seconds a row is tried again that created nothing; None: it is over."""
        row.tries += 1
        if isinstance(error, NotSentError):
            self._not_sent_in_a_row += 1
            if self._not_sent_in_a_row >= NOT_SENT_IN_A_ROW:
                self._stop(f"{NOT_SENT_IN_A_ROW} charges in a row did not reach the service ({error})")
            return None
        self._not_sent_in_a_row = 0
        if isinstance(error, CustomerBusyError):
            # Their sale of another making will end.
            now = self._clock.monotonic()
            row.busy_since = now if row.busy_since is None else row.busy_since
            wait = BUSY_DELAYS[min(row.tries, len(BUSY_DELAYS)) - 1] * self._scale
            return wait if now + wait - row.busy_since <= BUSY_FOR * self._scale else None
        if isinstance(error, RateLimitedError):
            self._rate.rate_limited(self._clock.monotonic(), made_at, error.retry_after)
            return 0.0 if row.tries <= RATE_LIMITED_TRIES else None
        if isinstance(error, UnauthorizedError):
            return self._unauthorized(error, token)
        return None

    def _unauthorized(self, error: UnauthorizedError, token: int) -> float | None:
        if self._renews_token and error.http_status == 401:
            if token < self.token:
                return 0.0  # it went with the token before
            if self._proven:
                self.token, self._proven = self.token + 1, False
                return 0.0
        self._stop("the service does not take the token (401 or 403)")
        return None
