"""Takes back: withdraws a push request that nobody answered, and gives a payment back, by a permit of its own."""

from __future__ import annotations

import asyncio

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
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller
from payclient.wire import undo_request

#: Seconds between the queries after a cancel that came too late, or whose answer was lost.
CHECKS = (1.0, 2.0)


async def withdraw(poller: Poller, record: Record) -> Outcome:
    """Withdraw a push request. Where that came too late or its answer is lost, query what became of it."""
    if record.kind == "form":
        raise UsageError(
            "a form is not withdrawn: hand out its links no more",
            client_transaction_id=record.client_transaction_id,
        )
    if record.state.decided or record.state in (State.SENDING, State.REVERSING):
        return Outcome.of(record)
    words = "the tracker was closed before the withdrawal was on record; query its status"
    return await poller.finish(_withdraw(poller, record), record.client_transaction_id, words)


async def _withdraw(poller: Poller, record: Record) -> Outcome:
    """Send the request, and write that the sale is withdrawn unless a transaction of it may be paid."""
    cancel = poller.session.profile.cancel
    try:
        if record.transaction_id is not None and cancel is not None and cancel.by_transaction_id:
            await poller.session.cancel(transaction_id=record.transaction_id)
        else:
            await poller.session.cancel(client_transaction_id=record.client_transaction_id)
    except (NotCancellableError, OutcomeUnknownError):
        return await _check(poller, record)
    if not _is_ours(poller, record) or await _has_another(poller, record, or_paid=True):
        return await _check(poller, record)
    # Nothing else was found by client transaction id, which settles the ids that were named, too. Where the service
    # has no such query, their own queries settle them.
    are_settled = poller.policy.by_client_id or not poller.policy.can_query
    candidate_ids = record.candidate_ids if are_settled else ()
    withdrawn = Withdrawn(at=poller.clock.time(), candidate_ids=candidate_ids)
    return Outcome.of(await poller.asks.write(record, withdrawn))


def _is_ours(poller: Poller, record: Record) -> bool:
    """Return whether what was just undone is surely this sale: under other credentials it may be another account's."""
    return not poller.policy.can_query or poller.queries.can_see(record)


async def _has_another(poller: Poller, record: Record, *, or_paid: bool) -> bool:
    """Return whether another transaction of this sale may be open or paid: a proxy may have repeated the POST.

    With `or_paid` also whether the one that we know of is paid: the customer was quicker.
    """
    if not poller.policy.by_client_id:
        return False
    if not await poller.wait_for_turn(poller.policy.total_timeout):
        return True
    try:
        report = await poller.session.status(client_transaction_id=record.client_transaction_id, repeat=False)
    except Exception:  # a token's callable may raise anything
        return True  # not known: the sale's own queries decide
    if report is None or report.state == "Cancelado":
        return not _is_ours(poller, record)  # the token may be renewed since
    ours = {None, record.transaction_id}
    return (or_paid and report.state == "Aceptado") or not {report.transaction_id, *report.others} <= ours


async def _check(poller: Poller, record: Record) -> Outcome:
    """Query what became of a cancelled push, again after a while unless it is decided; return what is known then."""
    if not poller.policy.can_query:
        return Outcome.of(record)
    outcome = await poller.check(record)
    for seconds in CHECKS:
        if outcome.state.decided:
            break
        # A query a second for a sale at most: one may have been made just before.
        await sleep(poller.clock, seconds * poller.policy.least_gap)
        outcome = await poller.check(record)
    return outcome


async def _check_anew(poller: Poller, record: Record) -> Outcome:
    """Query a payment whose reversal was refused, and go on in the background until the service has answered.

    An answer to an earlier query is not used: it may be older than the reversal. Where it is still paid, it is queried
    once more when a copy of the request that was late on its way has been executed.
    """
    ask = poller.asks.find(record.client_transaction_id)
    if ask is not None:
        if ask.task is not None:
            await asyncio.wait([ask.task])
        earliest = ask.queried_at + poller.policy.least_gap
        await sleep(poller.clock, max(earliest - poller.clock.monotonic(), 0.0))
    outcome = await poller.check(record)
    ask = poller.asks.find(record.client_transaction_id)
    if outcome.state is State.ACCEPTED:
        if ask is None or not ask.is_answered:
            poller.recheck(record)
        poller.recheck(record, after=2 * poller.policy.total_timeout)
    return outcome


async def reverse(poller: Poller, record: Record) -> Outcome:
    """Give a payment back, by a request that is never sent twice; see `Tracker.reverse`."""
    if record.state in (State.REVERSING, State.REVERSED):
        return Outcome.of(record)
    identifier = record.client_transaction_id
    if record.state is not State.ACCEPTED:
        raise UsageError(
            f"only what is paid is given back; this is {record.state}, and nothing was sent",
            client_transaction_id=identifier,
        )
    if record.archived:
        raise UsageError(
            "an archived payment takes no more events: give it back in the service's portal; nothing was sent",
            client_transaction_id=identifier,
        )
    profile = poller.session.profile
    by_id = profile.reverse is not None and profile.reverse.by_transaction_id is not None
    transaction_id = record.transaction_id if by_id else None
    ids = (transaction_id, identifier if transaction_id is None else None)
    undo_request(profile, "reverse", *ids)  # what the profile lacks costs no permit
    words = "the tracker was closed before the reversal was on record; the next process finds out"
    return await poller.finish(_reverse(poller, record, *ids), identifier, words)


async def _reverse(
    poller: Poller, record: Record, transaction_id: int | None, client_transaction_id: str | None
) -> Outcome:
    """Write the permit, send the request, and write how it ended. Raises where the payment was not given back."""
    clock, asks, identifier = poller.clock, poller.asks, record.client_transaction_id
    # Before the permit: without a token nothing can be sent.
    await poller.session.ensure_token()
    total, wall, steady = poller.policy.total_timeout, clock.time(), clock.monotonic()
    # Twice the total time-out: by then a request that was late on its way has been executed.
    until = wall + 2 * total

    async def note_not_sent() -> None:
        await asks.write(record, ReversalNotSent(at=clock.time(), permitted_until=until))

    try:
        record = await asks.ledger.apply(record, ReversalPermitted(at=wall, expires_at=until))
    except TransitionError:  # another call, or another process, reverses it
        return Outcome.of(await asks.ledger.get(identifier) or record)
    except LedgerError:
        await note_not_sent()  # the permit may have been written all the same
        raise
    if asks.leases is not None:
        asks.leases.add(identifier)
    asks.touch()
    try:
        if max(clock.time() - wall, clock.monotonic() - steady) > total:
            raise NotSentError("stopped between the permit and the send")
        await poller.session.reverse(
            transaction_id=transaction_id, client_transaction_id=client_transaction_id
        )
    except NotSentError:
        await note_not_sent()
        raise
    except RefusedError as refused:
        code = refused.error_code
        refusal = ReversalRefused(at=clock.time(), error_code=code, permitted_until=until)
        # A proxy may have repeated the request: the first gave the money back, and the second was refused.
        outcome = await _check_anew(poller, await asks.write(record, refusal))
        if outcome.state is not State.REVERSED:
            raise
        return outcome
    except (OutcomeUnknownError, asyncio.CancelledError):  # only a tracker that closes cancels it
        asks.follow(record)  # a query tells
        return Outcome.of(record)
    except BaseException as error:
        asks.follow(record)
        log("error", "reversal_failed", identifier, "the reversal failed: %s", type(error).__name__)
        raise
    if not _is_ours(poller, record) or await _has_another(poller, record, or_paid=False):
        return await poller.check(record)
    given_back = Reversed(at=clock.time(), reversed_id=record.transaction_id)
    return Outcome.of(await asks.write(record, given_back))
