"""What takes an ask back: withdraws an unanswered push request, or reverses a payment by a permit of its own."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import attrs

from payclient.clock import sleep
from payclient.errors import (
    LedgerError,
    NotCancellableError,
    NotSentError,
    OutcomeUnknownError,
    RefusedError,
    TransitionError,
    UsageError,
)
from payclient.events import ReversalNotSent, ReversalPermitted, ReversalRefused, Reversed, Withdrawn
from payclient.lifecycle import Record, State
from payclient.logs import tracker_log as log
from payclient.profile import UndoProfile
from payclient.tracking.attempts import check_awake
from payclient.tracking.poller import Poller, RecordAndReport
from payclient.wire import undo_request


def _one_id(record: Record, undo: UndoProfile | None) -> dict[str, Any]:
    """Return the id by which a request names the sale: the service's where it is known, and the profile has a path."""
    if undo is not None and undo.by_transaction_id and record.transaction_id is not None:
        return {"transaction_id": record.transaction_id}
    return {"client_transaction_id": record.client_transaction_id}


async def _is_undone(poller: Poller, record: Record, *, is_reversal: bool) -> bool:
    """Return whether what was just undone is surely this sale, and nothing else of it is open or paid.

    Under other credentials it may be another account's. Another transaction may be there because a proxy repeated the
    POST. After a reversal, which the service has called done, "accepted" may be older than that; a push that is
    accepted was not withdrawn: the customer was quicker.
    """
    policy, can_see = poller.policy, poller.queries.can_see
    if not can_see(record):
        return False
    if not policy.by_client_id:
        return True
    if not await poller.wait_for_turn():
        return False
    try:
        report = await poller.queries.query_session(client_transaction_id=record.client_transaction_id)
    except Exception:  # a token's callable may raise anything
        return False  # not known: the sale's own queries decide
    if report is None and policy.by_transaction_id:
        return False  # the list may lag: the sale's own queries decide, once it has surely caught up
    if report is None or report.state == "Cancelado":
        return can_see(record)  # the token may be renewed since
    is_ours = {report.transaction_id, *report.others} <= {None, record.transaction_id}
    return is_ours and (is_reversal or report.state != "Aceptado")


async def _check_anew(poller: Poller, record: Record) -> RecordAndReport:
    """Query an ask, and use no answer to an earlier query: it may be older than the request to take it back."""
    ask = poller.asks.find(record.client_transaction_id)
    if ask is not None and poller.policy.can_query:
        if ask.task is not None:
            await asyncio.wait([ask.task])
        earliest = ask.queried_at + poller.policy.least_gap
        await sleep(poller.clock, max(earliest - poller.clock.monotonic(), 0.0))
    return await poller.check(record)


# --- A push request that nobody answered


async def withdraw(poller: Poller, record: Record) -> RecordAndReport:
    """Withdraw an open push request; where that came too late, or lost its answer, query it. Return what is known."""
    identifier = record.client_transaction_id
    if record.kind == "form":
        words = "a form is not withdrawn: hand out its links no more"
        raise UsageError(words, client_transaction_id=identifier)
    if record.state.decided or record.state in (State.SENDING, State.REVERSING):
        return record, None  # it has ended, or a request about it is on its way
    words = "the tracker was closed before the withdrawal was on record; query its status"
    return await poller.finish(_withdraw(poller, record), identifier, words)


async def _withdraw(poller: Poller, record: Record) -> RecordAndReport:
    """Send the request, and write that the sale is withdrawn unless a transaction of it may be paid."""
    try:
        await poller.session.cancel(**_one_id(record, poller.session.profile.cancel))
        is_undone = await _is_undone(poller, record, is_reversal=False)
    except (NotCancellableError, OutcomeUnknownError):
        is_undone = False
    # A query by client transaction id has found no other transaction. Where only transaction ids can be queried, those
    # that were named are queried first. Where nothing can be queried, the answer is all that will ever come.
    are_queried_first = poller.policy.can_query and not poller.policy.by_client_id
    if is_undone and not (are_queried_first and record.candidate_ids):
        return await poller.asks.write(record, Withdrawn(at=poller.clock.time())), None
    return await _check_anew(poller, record)


# --- A payment


async def reverse(poller: Poller, record: Record) -> RecordAndReport:
    """Give a payment back, by a request that is never sent twice; see `Tracker.reverse`."""
    if record.state in (State.REVERSING, State.REVERSED):
        return record, None
    identifier, profile = record.client_transaction_id, poller.session.profile
    if record.state is not State.ACCEPTED:
        words = f"only what is paid is given back; this is {record.state}, and nothing was sent"
        raise UsageError(words, client_transaction_id=identifier)
    if record.archived:
        words = (
            "an archived payment takes no more events: give it back in the service's portal; nothing was sent"
        )
        raise UsageError(words, client_transaction_id=identifier)
    by = _one_id(record, profile.reverse)
    # An operation that the profile lacks costs no permit.
    undo_request(profile, "reverse", by.get("transaction_id"), by.get("client_transaction_id"))
    words = "the tracker was closed before the reversal was on record; the next process finds out"
    return await poller.finish(_reverse_or_follow(poller, record), identifier, words)


async def _reverse_or_follow(poller: Poller, record: Record) -> RecordAndReport:
    """Do what `_reverse` does. Where others cancel all tasks of the process, a query finds how that ended."""
    try:
        return await _reverse(poller, record)
    except asyncio.CancelledError:
        if poller.asks.is_open:  # else the next process follows it
            poller.recheck(record)
        raise


async def _reverse(poller: Poller, record: Record) -> RecordAndReport:
    """Write the permit, send the request, and write how it ended. Raises where the payment was not given back."""
    clock, asks, identifier = poller.clock, poller.asks, record.client_transaction_id
    # Before the permit: without a token nothing can be sent.
    await poller.session.ensure_token()
    total, wall, steady = poller.policy.total_timeout, clock.time(), clock.monotonic()
    # Twice the total time-out: by then a request that was late on its way has been executed.
    permit = ReversalPermitted(at=wall, expires_at=wall + 2 * total)
    try:
        permitted = await asks.ledger.apply(record, permit)
    except TransitionError:  # another call, or another process, reverses it
        return await asks.ledger.get(identifier) or record, None
    except LedgerError:  # the permit may have been written all the same, or another one
        unsent = attrs.evolve(record, expires_at=permit.expires_at)
        await asks.write(unsent, ReversalNotSent(at=clock.time()))
        raise
    if asks.leases is not None:
        asks.leases.ours.add(identifier)
    asks.wake_feeds()
    by = _one_id(permitted, poller.session.profile.reverse)  # another transaction may be the paid one by now
    try:
        await poller.session.reverse(**by, before_send=partial(check_awake, clock, wall, steady, total))
    except NotSentError:
        await asks.write(permitted, ReversalNotSent(at=clock.time()))
        raise
    except RefusedError as refused:
        refusal = ReversalRefused(at=clock.time(), error_code=refused.error_code)
        # A proxy may have repeated the request: the first gave the money back, and the second was refused.
        record = await asks.write(permitted, refusal)
        newest, report = await _check_anew(poller, record)
        if newest.state is State.REVERSED:
            return newest, report
        # Go on in the background until the service has answered, and once more when a copy of the request that was
        # late on its way has been executed.
        if (ask := asks.find(identifier)) is None or not ask.is_answered:
            poller.recheck(record)
        poller.recheck(record, after=2 * total)
        raise
    except BaseException as error:
        asks.follow(permitted)  # a query shows how it ended
        if isinstance(error, (OutcomeUnknownError, asyncio.CancelledError)):  # a closing tracker cancels it
            return permitted, None
        log("error", "reversal_failed", identifier, "the reversal failed: %s", type(error).__name__)
        raise
    if not await _is_undone(poller, permitted, is_reversal=True):
        return await poller.check(permitted)
    return await asks.write(permitted, Reversed(at=clock.time())), None
