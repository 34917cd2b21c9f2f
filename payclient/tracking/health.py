"""`Health`: whether one tracker can charge and follow, and what an operator wants to see of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import attrs

from payclient.clock import within
from payclient.errors import LedgerError, UsageError
from payclient.lifecycle import State

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

__all__ = ["Health"]

#: Seconds that a ledger may take for the probe.
PROBE = 5.0

#: Asks counted in one turn of the loop.
PER_TURN = 5000


@attrs.frozen(kw_only=True)
class Health:
    """How one process's tracker fares. No ids, no amounts. Times are UTC seconds since the epoch.

    - `ledger_writable`: the ledger took a probe within 5 s. The probe deletes expired links, or writes what changes
      nothing.
    - `poller_alive`: what is due is looked at in time.
    - `answered_at`: when the service last answered, with anything but a 5xx; None: not since the start.
    - `open`, `unknown`: how many asks this process follows, and how many of them are UNKNOWN.
    - `oldest_unknown`: the age of the oldest of those, in seconds.
    - `unwritten`: attempts whose end the ledger could not take yet.
    - `unconfirmed`: returned forms that are being confirmed. A forged return counts until its window is over.
    - `confirm_by`: when the first of those is reversed by the service, if it was paid.

    `problems` is about the process alone. Neither an outage of the service nor an old unknown sale takes a process out
    of service: browsers that come back still need it.
    """

    ledger_writable: bool
    poller_alive: bool
    answered_at: float | None
    open: int
    unknown: int
    oldest_unknown: float | None
    unwritten: int
    unconfirmed: int
    confirm_by: float | None

    @property
    def ok(self) -> bool:
        """Whether this process can charge and follow."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """Why this process cannot charge or follow; empty if it can."""
        return (
            *(() if self.ledger_writable else ("the ledger takes no writes: nothing is sent",)),
            *(() if self.poller_alive else ("the poller is not running: outcomes are not followed",)),
        )


async def probe(poller: Poller) -> Health:
    """Probe the ledger by a write, which deletes dead links, and count what is followed. Raises no `LedgerError`."""
    asks, clock, writable = poller.asks, poller.clock, False
    if not asks.closed:
        try:
            await within(clock, PROBE, asks.ledger.drop_links(clock.time()))
            writable = True
        except (LedgerError, TimeoutError) as error:
            asks.late.log_failure(error)
        except UsageError:
            if asks.is_open:
                raise  # the call came in another event loop; else the tracker and its ledger were closed meanwhile
    followed, unknown = 0, []
    for number, ask in enumerate(asks.all(), 1):
        if not ask.followed_elsewhere:
            followed += 1
            if ask.record.state is State.UNKNOWN:
                unknown.append(ask.record.created_at)
        if number % PER_TURN == 0:
            await asyncio.sleep(0)
    confirm_by = poller.confirmer.reversal_times()
    return Health(
        ledger_writable=writable,
        poller_alive=poller.is_alive,
        answered_at=poller.session.answered_at,
        open=followed,
        unknown=len(unknown),
        oldest_unknown=max(clock.time() - min(unknown), 0.0) if unknown else None,
        unwritten=len(asks.late.kept),
        unconfirmed=len(confirm_by),
        confirm_by=min(confirm_by, default=None),
    )
