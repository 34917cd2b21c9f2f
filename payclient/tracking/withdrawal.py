"""Withdraws a push request that nobody answered, and says what is true then."""

from __future__ import annotations

from payclient.clock import sleep
from payclient.errors import NotCancellableError, OutcomeUnknownError, PayError, UsageError
from payclient.events import Withdrawn
from payclient.lifecycle import Record, State
from payclient.tracking.outcomes import Outcome
from payclient.tracking.poller import Poller

__all__: list[str] = []

#: Seconds between the queries after a cancel that came too late, or whose answer was lost.
CHECKS = (1.0, 2.0)


async def withdraw(poller: Poller, record: Record) -> Outcome:
    """Withdraw it; where it was too late, or the answer was lost, query what became of it."""
    if record.kind == "form":
        raise UsageError(
            "a form is not withdrawn: hand out its links no more",
            client_transaction_id=record.client_transaction_id,
        )
    if record.state.decided or record.state in (State.SENDING, State.REVERSING):
        return Outcome.of(record)
    cancel = poller.session.profile.cancel
    try:
        if record.transaction_id is not None and cancel is not None and cancel.by_transaction_id:
            await poller.session.cancel(transaction_id=record.transaction_id)
        else:
            await poller.session.cancel(client_transaction_id=record.client_transaction_id)
    except (NotCancellableError, OutcomeUnknownError):
        return await _check(poller, record)
    if await _has_another(poller, record):
        return await _check(poller, record)
    record = await poller.write(record, Withdrawn(at=poller.clock.time()))
    poller.took(record)
    return Outcome.of(record)


async def _has_another(poller: Poller, record: Record) -> bool:
    """Whether another transaction of this sale may be open or paid: what stands in front may repeat a POST."""
    if not poller.queries.by_client_id:
        return False
    if not await poller.wait_for_turn(poller.policy.total_timeout):
        return True
    try:
        report = await poller.session.status(client_transaction_id=record.client_transaction_id, repeat=False)
    except PayError:
        return True  # nobody knows: its own queries decide
    if report is None or report.state == "Cancelado":
        return False
    others = {report.transaction_id, *report.others} - {None, record.transaction_id}
    return report.state == "Aceptado" or bool(others)


async def _check(poller: Poller, record: Record) -> Outcome:
    if not poller.policy.can_query:
        return Outcome.of(record)
    outcome = await poller.check(record)
    for seconds in CHECKS:
        if outcome.state.decided:
            break
        # A query a second for a sale at most: one may have been made just before.
        await sleep(poller.clock, seconds * poller.policy.scale)
        outcome = await poller.check(record)
    return outcome
