"""How a run stands at one moment: what is open, what expires next, and when it is over at the latest."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sized
from typing import Protocol

import attrs

from payclient.clock import Clock
from payclient.lifecycle import State
from payclient.pending import PendingSale
from payclient.profile import ServiceProfile
from payclient.schedule import LAST_QUERIES, NORMAL_WINDOW

__all__: list[str] = []


class _Rows(Container[str], Sized, Protocol):
    """Rows that were read and have no result."""


@attrs.frozen(kw_only=True)
class Standing:
    """What is open. Times are UTC seconds since the epoch, durations seconds."""

    #: Sales that a customer can still approve.
    pending: int = 0
    #: Sales past their time, whose last word is awaited.
    expired: int = 0
    #: Sales of which nobody knows whether they exist.
    unknown: int = 0
    #: Rows read that are none of these: they queue, or are on their way.
    queued: int = 0
    #: Time left of the pending sale that expires first.
    next_left: float | None = None
    #: When the last pending sale expires.
    expires_at: float | None = None
    #: When the last row has its outcome, if nothing is answered, and the service slows nothing.
    latest_end: float | None = None


@attrs.frozen(kw_only=True)
class Pace:
    """What bounds the end of a run: its rows and its limits."""

    total: int
    max_pending: int = 1000
    rate: float | None = None
    wait: float | None = None
    #: Rows of the customer who has most.
    longest_lane: int = 1


def standing(
    sales: Iterable[PendingSale],
    under_way: _Rows,
    *,
    done: int,
    pace: Pace,
    profile: ServiceProfile,
    clock: Clock,
    stopped: bool,
) -> Standing:
    """How a run stands, from the tracker's open sales; those of other runs are passed over."""
    now = clock.time()
    window = profile.sale_window if pace.wait is None else min(profile.sale_window, pace.wait)
    last_words = sum(LAST_QUERIES) * profile.sale_window / NORMAL_WINDOW
    # An unknown sale is asked for until it is proven absent, a tenth later than the first proof.
    if pace.wait is not None:
        last_words = 0.0
    absence = max(last_words, 1.1 * profile.absent_after)
    counts = {State.PENDING: 0, State.EXPIRED: 0, State.UNKNOWN: 0}
    first = last = None
    end = now
    for sale in sales:
        if sale.client_transaction_id not in under_way or (state := sale.state) not in counts:
            continue
        counts[state] += 1
        expires_at = sale.expires_at
        if expires_at is None:
            continue
        end = max(end, expires_at + (absence if state is State.UNKNOWN else last_words))
        if state is State.PENDING:
            first = expires_at if first is None else min(first, expires_at)
            last = expires_at if last is None else max(last, expires_at)
    opened = sum(counts.values())
    unsent = max(pace.total - done - opened, 0)
    if unsent and not stopped:
        rounds = max(-(-unsent // pace.max_pending), pace.longest_lane)
        sending = 0.0 if pace.rate is None else unsent / pace.rate
        end = max(end, (last or now) + rounds * window + sending + last_words)
    return Standing(
        pending=counts[State.PENDING],
        expired=counts[State.EXPIRED],
        unknown=counts[State.UNKNOWN],
        queued=max(len(under_way) - opened, 0),
        next_left=None if first is None else max(first - now, 0.0),
        expires_at=last,
        latest_end=end if opened or (unsent and not stopped) else None,
    )
