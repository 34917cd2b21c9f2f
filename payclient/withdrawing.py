"""Withdrawing a push request that nobody answers, and saying what is true then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from payclient.clock import sleep
from payclient.errors import NotCancellableError, OutcomeUnknownError, PayError, UsageError
from payclient.events import Withdrawn
from payclient.lifecycle import Record, State
from payclient.outcomes import Outcome
from payclient.permits import Permits
from payclient.schedule import NORMAL_WINDOW
from payclient.session import PaySession

__all__: list[str] = []

#: Seconds between the queries after a cancel that came too late, or whose answer was lost.
CHECKS = (1.0, 2.0)


class Withdrawing:
    """Withdraws the sales of one tracker. `check` asks for a status, if anybody can; `changed` is told of events.

    `turn` waits until a query may be made by the rate, at most the seconds that it is given; whether it may.
    """

    def __init__(
        self,
        session: PaySession,
        permits: Permits,
        *,
        check: Callable[[Record], Awaitable[Outcome]] | None,
        changed: Callable[[Record], object],
        turn: Callable[[float], Awaitable[bool]],
    ) -> None:
        self._session = session
        self._permits = permits
        self._check = check
        self._changed = changed
        self._turn = turn

    async def cancel(self, record: Record) -> Outcome:
        """Withdraw it; where it was too late, or the answer was lost, ask what became of it."""
        if record.kind == "form":
            raise UsageError(
                "a form is not withdrawn: hand out its links no more",
                client_transaction_id=record.client_transaction_id,
            )
        if record.state.decided or record.state is State.SENDING:
            return Outcome.of(record)
        cancel = self._session.profile.cancel
        try:
            if record.transaction_id is not None and cancel is not None and cancel.by_transaction_id:
                await self._session.cancel(transaction_id=record.transaction_id)
            else:
                await self._session.cancel(client_transaction_id=record.client_transaction_id)
        except (NotCancellableError, OutcomeUnknownError):
            return await self._ask(record)
        if await self._has_another(record):
            return await self._ask(record)
        record = await self._permits.write(record, Withdrawn(at=self._permits.clock.time()))
        self._changed(record)
        return Outcome.of(record)

    async def _has_another(self, record: Record) -> bool:
        """Whether another transaction of this sale may be open or paid: what stands in front may repeat a POST."""
        status = self._session.profile.status
        if status is None or status.by_client_transaction_id is None:
            return False
        if not await self._turn(self._permits.total):
            return True
        try:
            report = await self._session.status(
                client_transaction_id=record.client_transaction_id, repeat=False
            )
        except PayError:
            return True  # nobody knows: its own queries decide
        if report is None or report.state == "Cancelado":
            return False
        others = {report.transaction_id, *report.others} - {None, record.transaction_id}
        return report.state == "Aceptado" or bool(others)

    async def _ask(self, record: Record) -> Outcome:
        if self._check is None:
            return Outcome.of(record)
        outcome = await self._check(record)
        for seconds in CHECKS:
            if outcome.state.decided:
                break
            # A query a second for a sale at most: one may have been made just before.
            await sleep(self._permits.clock, seconds * self._session.profile.sale_window / NORMAL_WINDOW)
            outcome = await self._check(record)
        return outcome
