"""How fast a batch sends, which rows are sent again after an error, and when the sending stops."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from payclient.batch.lanes import LaneRow
from payclient.clock import Clock
from payclient.errors import (
    CustomerBusyError,
    NotSentError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.tracking.outcomes import PendingSale
from payclient.tracking.rate_limit import Backoff, RateLimit

#: Queries that a sale needs at least where `queries_per_minute` binds: one that finds it open, one that finds its end.
#: The schedule would make more; under a binding rate it makes them where an answer is likeliest.
LEAST_QUERIES = 2.0

#: After a 429 without `Retry-After` nothing is sent for 5 s. Then sends go half as fast as of late, at least one a
#: minute; each send that is taken wins back 3 % of the slowdown.
SEND_BACKOFF = Backoff(
    most_slowdown=60.0, relief=0.97, longest_pause=float("inf"), pause=5.0, measures_rate=True
)


def sends_per_second(profile: ServiceProfile, rate: float | None, wait: float | None) -> float | None:
    """Return the sends a second that the queries can follow, at most `rate`; None: no limit."""
    # With `wait` 0 this run queries nothing.
    if profile.queries_per_minute is None or profile.status is None or wait == 0:
        return rate
    fastest = profile.queries_per_minute / 60.0 / LEAST_QUERIES
    return fastest if rate is None else min(rate, fastest)


#: Tries of one row after HTTP 429.
RATE_LIMITED_TRIES = 5

#: Seconds between the tries of a customer who is busy with a sale that is not ours (2061), and the longest time of all.
BUSY_DELAYS = (10.0, 20.0, 40.0, 60.0)
BUSY_FOR = 360.0

#: Unknown outcomes in a row that stop the sending: the service or the way to it is broken.
UNKNOWN_IN_A_ROW = 5

#: Sends in a row that did not reach the service and stop the sending: nothing gets through.
NOT_SENT_IN_A_ROW = 5


@attrs.define(eq=False, repr=False)
class RetryPolicy:
    """Whether a row is sent again, by what its last send came to.

    - `rate`: Is slowed by each 429.
    - `scale`: The profile's sale window, divided by the normal one.
    - `stop`: Ends the sending, for the reason it is given.
    """

    _clock: Clock
    _rate: RateLimit
    _scale: float
    _renews_token: bool
    _stop: Callable[[str], None]
    _unknown_in_a_row: int = 0
    _not_sent_in_a_row: int = 0
    #: The number of the current token, counted by the fresh ones that were fetched after a 401.
    token_number: int = 0
    #: Whether a 401 may mean that the token is out of date: the service took it before, or it is the first.
    _token_works: bool = True

    def note_sent(self, pending: PendingSale, token_used: int, made_at: float) -> None:
        """Note a send whose sale may exist. `token_used`: the number of its token."""
        self._token_works = self._token_works or token_used == self.token_number
        self._not_sent_in_a_row = 0
        if pending.state is not State.UNKNOWN:
            self._unknown_in_a_row = 0
            self._rate.note_success(made_at)
            return
        self._unknown_in_a_row += 1
        if self._unknown_in_a_row >= UNKNOWN_IN_A_ROW:
            self._stop(f"{UNKNOWN_IN_A_ROW} unknown outcomes in a row")

    def retry_delay(self, row: LaneRow, error: Exception, token_used: int, made_at: float) -> float | None:
        """Count an error, and return in how many seconds its row, which created nothing, is sent again; None: never."""
        if isinstance(error, NotSentError):
            # One that names another ask says that its purchase is in doubt: the service was not tried.
            self._not_sent_in_a_row += error.client_transaction_id == row.request.client_transaction_id
            if self._not_sent_in_a_row >= NOT_SENT_IN_A_ROW:
                self._stop(f"{NOT_SENT_IN_A_ROW} charges in a row did not reach the service ({error})")
            return None
        self._not_sent_in_a_row = 0
        if isinstance(error, RefusedError):  # the service answers
            self._unknown_in_a_row = 0
        if isinstance(error, CustomerBusyError):
            # The customer's other sale will end.
            now = self._clock.monotonic()
            row.busy_since = now if row.busy_since is None else row.busy_since
            wait = BUSY_DELAYS[min(row.busy, len(BUSY_DELAYS) - 1)] * self._scale
            row.busy += 1
            return wait if now + wait - row.busy_since <= BUSY_FOR * self._scale else None
        if isinstance(error, RateLimitedError):
            self._rate.rate_limited(self._clock.monotonic(), made_at, error.retry_after)
            row.limited += 1
            return 0.0 if row.limited <= RATE_LIMITED_TRIES else None
        if isinstance(error, UnauthorizedError):
            return self._delay_after_unauthorized(error, token_used)
        return None

    def _delay_after_unauthorized(self, error: UnauthorizedError, token_used: int) -> float | None:
        """Return 0 where the row is sent again with a fresh token; else stop the sending."""
        if self._renews_token and error.http_status == 401:
            if token_used < self.token_number:
                return 0.0  # this row was sent with an older token
            if self._token_works:  # the next send fetches a fresh one
                self.token_number, self._token_works = self.token_number + 1, False
                return 0.0
        self._stop("the service does not take the token (401 or 403)")
        return None
