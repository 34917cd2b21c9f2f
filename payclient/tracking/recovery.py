"""Asks that a crash left: taken over on entry, and from processes that are gone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from payclient.clock import sleep
from payclient.errors import LedgerError
from payclient.events import DecidedAccepted, Evidence, FoundPending, Notified, Recovered, Returned
from payclient.ledger import Change, Ledger, Shared
from payclient.ledger.records import may_be_paid
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.schedule import RECHECK_AGES
from payclient.tracking.followup import customer_acted
from payclient.tracking.returned_form import is_confirmed

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

_NAMED = (Returned.__name__, Notified.__name__, FoundPending.__name__)

#: Seconds for which a process that begins looks back for what was decided, and may be paid all the same.
LOOK_BACK = 86_400.0

#: Seconds by which a change may stand in the feed behind what came later: the ledger failed, or clocks differ.
DISORDER = 3600.0

#: Seconds within which a notification is followed by the decision that its query brings. A notification that is longer
#: before one may have come after it: the wall clock was set back between the two.
DECIDED_BY_IT = 60.0

#: In units of the age at its last background query: the age of an expired ask that a start queries no more. A shop that
#: was closed for some days has missed that query.
OVER = 7.0

#: Seconds after which `look_back` begins again where the ledger failed.
AGAIN = 60.0


async def take_over(poller: Poller, records: Sequence[Record]) -> None:
    """Follow open asks of processes that are gone: one that is SENDING is UNKNOWN from now on."""
    at, longest = poller.clock.time(), poller.policy.longest_life
    stale = [record for record in records if record.state is State.SENDING]
    events = [Recovered(at=at, expires_at=record.created_at + longest[record.kind]) for record in stale]
    # Where an outcome has been recorded since, that one counts.
    recovered = await asyncio.gather(*map(poller.asks.write, stale, events))
    for record in [*(record for record in records if record.state is not State.SENDING), *recovered]:
        if not _is_over(poller, record):
            poller.asks.follow(record)
    await poller.confirmer.recover(records)
    if records:
        log("info", "recovered", "", "recovered %d open sales, %d of them unknown", len(records), len(stale))


def _is_over(poller: Poller, record: Record) -> bool:
    """Return whether nothing is due of an expired ask: no query can find it, or its last background query is long past.

    Its lease, if any, is put off instead.
    """
    if poller.asks.leases is not None or customer_acted(record):
        return False
    if record.evidence is not Evidence.LAST_QUERY:
        return record.evidence is Evidence.NO_QUERY and not poller.policy.has_id(record)
    age = poller.clock.time() - (record.expires_at or record.created_at)
    return age > OVER * RECHECK_AGES[-1] * poller.policy.scale


async def latest_changes(ledger: Ledger, record: Record) -> list[Change]:
    """Return the changes of one attempt, the newest first."""
    history = await ledger.history(record.client_transaction_id)
    return [each for each in reversed(history) if each.attempt == record.attempt]


def existing(history: Sequence[Change]) -> set[int]:
    """Return the attempts of which the answer to a POST of ours said that something exists, called unpaid or not."""
    return {change.attempt for change in history if change.facts.keys() & {"exists", "created_id"}}


async def unconfirmed_ids(ledger: Ledger, record: Record) -> list[int | None]:
    """Return the transaction ids that were named to this attempt since its last decision, the newest first.

    A person's decision that the form is paid ends nothing: it confirms no payment. An id None: a cancelled return.
    """
    named: dict[int | None, None] = {}  # a set in the order of time
    for change in await latest_changes(ledger, record):
        is_decision = change.after.decided and change.before is not change.after
        if is_decision and change.event != DecidedAccepted.__name__:
            break
        transaction_id = change.facts.get("transaction_id")
        # A return without an id was a cancelled one; a report without an id named nothing.
        if change.event in _NAMED and (transaction_id is not None or change.event != FoundPending.__name__):
            named[transaction_id] = None
    return list(named)


async def look_back(poller: Poller) -> None:
    """Go on with attempts that were cancelled or refused not long ago, and may be paid all the same.

    A process may have ended before it confirmed a form that was given up, and paid later. Or it ended before the last
    query of an attempt that was notified, or refused as existing, had an answer. A busy day takes seconds to read, so
    this runs while the tracker is open, and begins again where the ledger fails.
    """
    while True:
        try:
            return await recheck_unpaid(poller, max(LOOK_BACK, poller.policy.links_life))
        except LedgerError as error:
            poller.asks.late.log_failure(error)
            await sleep(poller.clock, AGAIN)


async def recheck_unpaid(poller: Poller, seconds: float, *, forms_only: bool = False) -> None:
    """Confirm or query what was found unpaid in the last `seconds`, and may be paid all the same.

    A form is confirmed if the service wants that: where its customer closed it, or only a person accepted it. Otherwise
    a declined form is queried once its links are dead: another card may have paid it. Unless `forms_only`, each attempt
    that is not confirmed is queried as `_recheck_by_history` says.
    """
    confirmer, ledger, now = poller.confirmer, poller.asks.ledger, poller.clock.time()
    if isinstance(ledger, Shared):
        await ledger.note_overpaid(now)  # a process may have ended before it wrote that
    if not confirmer.confirms and not poller.policy.can_query:
        return
    async for record in unpaid_since(ledger, now - seconds):
        if confirmer.confirms and record.kind == "form":
            if record.state is State.ACCEPTED or (record.state is State.CANCELLED and may_be_paid(record)):
                await confirmer.recover([record])
            continue
        ask = poller.asks.find(record.client_transaction_id)
        is_planned = ask is not None and ask.recheck_at < math.inf  # no later look puts that query off
        if poller.is_payable_again(record) and not is_planned:
            _recheck_after(poller, record, poller.policy.links_life)
        if poller.policy.can_query and not forms_only:
            await _recheck_by_history(poller, record)


def _recheck_after(poller: Poller, decided: Record, seconds: float) -> None:
    """Query an attempt once more so many seconds after its decision. The wall clock may have been set back since."""
    age = max(poller.clock.time() - (decided.decided_at or 0.0), 0.0)
    poller.recheck(decided, after=max(seconds - age, 0.0))


async def unpaid_since(ledger: Ledger, since: float) -> AsyncIterator[Record]:
    """Yield what was cancelled or refused since a UTC time, and is so still, and forms that only a person accepted.

    A record may come twice.
    """
    cursor, unpaid = await _cursor_at(ledger, since - DISORDER), (State.CANCELLED, State.REFUSED)
    # A page at a time: a busy day has a hundred thousand.
    while changes := await ledger.changes(cursor):
        cursor = changes[-1].cursor
        found = {
            each.client_transaction_id
            for each in changes
            if (each.after in unpaid or each.event == DecidedAccepted.__name__) and each.at >= since
        }
        for record in (await ledger.get_many(list(found))).values():
            by_person = record.state is State.ACCEPTED and record.kind == "form" and not is_confirmed(record)
            if record.state in unpaid or by_person:
                yield record


async def _recheck_by_history(poller: Poller, unpaid: Record) -> None:
    """Query an unpaid attempt once more: now, if it was notified since; later, if it was refused as existing and an
    index lags.
    """
    decided_at, notified_at = unpaid.decided_at or 0.0, unpaid.notified_at
    is_refused = unpaid.state is State.REFUSED
    # A notification shortly before the decision led to it: no history is read for those, which are most.
    may_be_notified_since = notified_at is not None and not 0.0 < decided_at - notified_at < DECIDED_BY_IT
    if not (may_be_notified_since or is_refused):
        return
    history = await poller.asks.ledger.history(unpaid.client_transaction_id)
    # A query that found nothing leaves no event: whether one followed the notification is not known.
    if notified_at is not None and (is_refused or (history and history[-1].event == Notified.__name__)):
        poller.recheck(unpaid)
    if is_refused and existing(history):
        _recheck_after(poller, unpaid, poller.policy.absent_after)


async def _cursor_at(ledger: Ledger, since: float) -> int:
    """Return a cursor of the feed just before that time, by halving: the feed may be years long."""

    async def older_one(cursor: int) -> int | None:
        changes = await ledger.changes(cursor, 1)
        return changes[0].cursor if changes and changes[0].at < since else None

    # An archived part has no news and takes long to read through: no later step begins before it.
    cursor, step = 0, 1
    while (found := await older_one(cursor + step)) is not None:
        cursor, step = found, 2 * step
    while step > 1:
        step //= 2
        if (found := await older_one(cursor + step)) is not None:
            cursor = found
    return cursor
