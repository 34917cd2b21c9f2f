"""What of a run is not finished: what is open, what expires next, and when it is over at the latest."""

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
class Limits:
    """How a run is paced; see `charge_all`."""

    max_in_flight: int = 50
    max_pending: int = 1000
    rate: float | None = None
    wait: float | None = None
    retry: tuple[str, ...] = ()


@attrs.frozen
class Workload:
    """What a run has to do, and within which limits."""

    rows: int
    limits: Limits = Limits()
    #: Rows of the customer who has most.
    longest_lane: int = 1


@attrs.frozen(kw_only=True)
class Unfinished:
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


def unfinished(
    sales: Iterable[PendingSale],
    under_way: _Rows,
    *,
    done: int,
    work: Workload,
    profile: ServiceProfile,
    clock: Clock,
    stopped: bool,
) -> Unfinished:
    """What is left of a run, by the tracker's open sales; those of other runs are passed over."""
    now, limits = clock.time(), work.limits
    window = profile.sale_window
    last_words = sum(LAST_QUERIES) * window / NORMAL_WINDOW
    if limits.wait is not None:
        window, last_words = min(window, limits.wait), 0.0
    # An unknown sale is asked for until it is proven absent, a tenth later than the first proof.
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
    unsent = max(work.rows - done - opened, 0)
    if unsent and not stopped:
        rounds = max(-(-unsent // limits.max_pending), work.longest_lane)
        sending = 0.0 if limits.rate is None else unsent / limits.rate
        end = max(end, (last or now) + rounds * window + sending + last_words)
    return Unfinished(
        pending=counts[State.PENDING],
        expired=counts[State.EXPIRED],
        unknown=counts[State.UNKNOWN],
        queued=max(len(under_way) - opened, 0),
        next_left=None if first is None else max(first - now, 0.0),
        expires_at=last,
        latest_end=end if opened or (unsent and not stopped) else None,
    )
