"""Confirms paid forms, which the service reverses otherwise, and takes what browsers bring back from them.

What a browser brings is recorded before it is acted on, so that a crash in between is recovered on entry; it is
untrusted, and only the service's own answer, about our ids and our amount, decides. One task for each form asks until
the form is decided or the profile's window is over; from then on the status query tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import attrs

from payclient.asking import StatusSource, TransactionRef, conflict_of
from payclient.cases import MOST_IDS, MOST_REFUSALS, Case, Question, end
from payclient.clock import Clock, start
from payclient.credentials import Credentials
from payclient.errors import (
    LedgerError,
    PayError,
    RateLimitedError,
    RefusedError,
    TransitionError,
    UnauthorizedError,
)
from payclient.events import Abandoned, Conflicted, Event, FoundAccepted, FoundCancelled, Returned
from payclient.ledger import Ledger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.notifications import Return
from payclient.recalling import given_up, heard_ids
from payclient.session import PaySession

__all__: list[str] = []

logger = logging.getLogger("payclient.confirming")

#: Seconds from one try to the next, for a window of `NORMAL_WINDOW`; the last one goes on.
BACK_OFF = (1.0, 2.0, 4.0, 8.0, 15.0)
NORMAL_WINDOW = 300.0

#: The part of the window for which a confirmation waits for its turn by the rate. Then the form comes first.
TURN = 1 / 20


class Confirming:
    """Confirms the forms of one tracker. `changed` is told of each record that took an event.

    `turn` waits until a request may be made by the rate, or for the seconds that it is given.
    """

    def __init__(
        self,
        session: PaySession,
        ledger: Ledger,
        clock: Clock,
        changed: Callable[[Record], object],
        turn: Callable[[float], Awaitable[bool]],
        credentials: Credentials,
        trouble: Callable[[Exception], object],
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._clock = clock
        self._changed = changed
        self._turn = turn
        self._credentials = credentials
        self._trouble = trouble
        profile = session.profile
        self._confirms = profile.confirm is not None
        self._window = NORMAL_WINDOW if profile.confirm is None else profile.confirm.window
        self._scale = self._window / NORMAL_WINDOW
        self._asks = profile.status is not None and profile.status.by_client_transaction_id is not None
        self._cases: dict[str, Case] = {}
        self._said: set[str] = set()
        self._closed = False

    # --- What is heard of

    async def returned(self, record: Record, back: Return) -> tuple[Record, StatusReport | None]:
        """Record what a browser brought back, act on it once, and say what is known then."""
        if back.unusable:
            logger.warning(
                "%s: the form could not be used: is it opened from the registered domain?",
                record.client_transaction_id,
            )
        if record.state in (State.ACCEPTED, State.REFUSED) or (
            back.transaction_id is None and record.state is State.CANCELLED
        ):
            return record, None
        case = self._case(record)
        if not case.takes(back.transaction_id):
            return case.record, case.report
        if back.transaction_id not in case.questions and back.transaction_id not in case.coming:
            # Before anything is asked, so that it is asked again after a crash.
            await self._write(case, back.transaction_id)
        await self._first_answer(self._begin(case, back.transaction_id))
        return case.record, case.report

    async def _write(self, case: Case, transaction_id: int | None) -> None:
        """Record a return."""
        case.coming.add(transaction_id)
        try:
            record = await self._ledger.apply(
                case.record, Returned(at=self._clock.time(), transaction_id=transaction_id)
            )
        except LedgerError:
            self._begin(case, transaction_id)  # who has paid has paid: this much can be done without it
            raise
        finally:
            case.coming.discard(transaction_id)
        self._changed(self._case(record).record)

    async def _first_answer(self, question: Question) -> None:
        """Until it was asked once more; at most the total time-out, however many others stand in line."""
        if not question.open:
            return
        if question.asked is None or question.asked.done():
            question.asked = asyncio.get_running_loop().create_future()
        await self._wait(question.asked, self._clock.monotonic() + self._session.timeouts.total)

    async def _wait(self, ended: asyncio.Future[None], when: float) -> None:
        """Until it was ended, or until then."""
        timer = self._clock.call_at(when, end, ended)
        try:
            await asyncio.shield(ended)
        finally:
            timer.cancel()

    def notified(self, record: Record, transaction_id: int) -> None:
        """A notification named a form's transaction, and was recorded: confirm it, without waiting."""
        if self._confirms and record.state not in (State.ACCEPTED, State.REFUSED):
            case = self._case(record)
            if case.takes(transaction_id):
                self._begin(case, transaction_id)

    async def recover(self, records: Sequence[Record]) -> None:
        """On entry: go on with every form that came back and is not decided, or was paid after it was given up."""
        if not self._confirms:
            return
        # Who gave a form up may still load and pay it until its links are dead.
        since = self._clock.time() - 2 * self._session.profile.form_window - self._window
        for record in [*records, *await given_up(self._ledger, since)]:
            if record.kind == "form" and record.notified_at is not None:
                for transaction_id in (await heard_ids(self._ledger, record))[:MOST_IDS]:
                    self._begin(self._case(record), transaction_id)

    def status(self, ask: StatusSource) -> StatusSource:
        """A source that calls no form accepted which may still be reversed: it is pending until it is confirmed."""
        if not self._confirms:
            return ask

        async def source(reference: TransactionRef) -> StatusReport | None:
            report = await ask(reference)
            if reference.kind != "form" or report is None or report.state != "Aceptado":
                return report
            return await self._found(reference.client_transaction_id, report)

        return source

    async def _found(self, identifier: str, report: StatusReport) -> StatusReport:
        case = self._cases.get(identifier)
        if case is None:
            record = await self._ledger.get(identifier)
            if record is None or record.state is State.ACCEPTED:
                return report
            case = self._case(record)
        if conflict_of(case.record, report):
            return report  # it is not ours to confirm, and decides nothing
        now = self._clock.monotonic()
        # Not from when a browser named it: anybody can name an id before it is paid. The window, and as much for a
        # service that reverses late.
        if now - case.found.setdefault(report.transaction_id, now) > 2 * self._window:
            self._drop(case)
            return report  # it would have been reversed by now, and was not
        if report.transaction_id is not None:
            self._begin(case, report.transaction_id)
        return attrs.evolve(report, state="Pendiente")

    # --- Asking

    def _case(self, record: Record) -> Case:
        case = self._cases.setdefault(record.client_transaction_id, Case(record))
        if (record.attempt, record.version) > (case.record.attempt, case.record.version):
            case.record = record
        return case

    def _drop(self, case: Case) -> None:
        """Forget a form of which nothing is asked: the ledger knows what came of it."""
        if case.task is None and not case.coming:
            self._cases.pop(case.record.client_transaction_id, None)

    def _begin(self, case: Case, transaction_id: int | None) -> Question:
        """Ask this, now or as soon as it is its turn."""
        question = case.question(transaction_id)
        if self._closed:
            return question  # it stands in the ledger
        if not question.open:
            question.begin(self._clock.monotonic())
        if case.task is None:
            case.task = start(self._work(case))
        elif case.wake is not None:
            end(case.wake)
        return question

    async def _work(self, case: Case) -> None:
        """Ask what is open of one form, one at a time, until nothing is."""
        try:
            while question := case.next(self._clock.monotonic()):
                when = max(question.due, case.tried_at + min(1.0, self._scale))
                if when > self._clock.monotonic():
                    await self._rest(case, when)
                    continue
                case.tried_at = self._clock.monotonic()
                await self._try(case, question)
        finally:
            case.task = None
            for question in case.questions.values():
                question.close()
            if case.record.state.decided or not case.found:
                self._drop(case)

    async def _rest(self, case: Case, when: float) -> None:
        case.wake = asyncio.get_running_loop().create_future()
        try:
            await self._wait(case.wake, when)
        finally:
            case.wake = None

    async def _try(self, case: Case, question: Question) -> None:
        """Ask once, and say whether and when it is asked again."""
        settled, pause = False, BACK_OFF[min(question.tries, len(BACK_OFF) - 1)] * self._scale
        identifier = case.record.client_transaction_id
        question.tries += 1
        try:
            await self._read(case)
            if case.record.state in (State.ACCEPTED, State.REFUSED):
                settled = True
            elif question.transaction_id is None:
                settled = await self._whether_paid(case)
            else:
                settled = await self._confirm(case, question.transaction_id)
        except RateLimitedError as limited:
            wished = 5.0 if limited.retry_after is None else limited.retry_after
            # Never so long that the payment is reversed meanwhile.
            pause = max(pause, min(wished, self._window / 10))
        except UnauthorizedError:
            self._say("401", "confirmations are refused (401): is the token still good?")
        except RefusedError as refused:
            question.refusals += refused.error_code in self._session.profile.not_found_codes
            if question.refusals >= MOST_REFUSALS:
                what = f"confirming transaction {question.transaction_id}: no such transaction"
                settled = await self._take(case, Conflicted(at=self._clock.time(), what=what))
            else:
                self._say(
                    f"refused {refused.error_code}", f"a confirmation was refused: {refused.error_code}"
                )
        except LedgerError as error:
            self._trouble(error)
        except PayError as error:
            self._say(type(error).__name__, f"a confirmation failed: {type(error).__name__}")
        except Exception as error:  # a fault of ours must not lose the form
            logger.error("%s: confirming failed: %s", identifier, type(error).__name__)
        now = self._clock.monotonic()
        if case.record.state in (State.ACCEPTED, State.REFUSED):
            for other in case.questions.values():
                other.close()
        elif settled:
            question.close()
        elif now - question.begun > self._window:
            if question.transaction_id is not None:
                logger.error("%s: not confirmed in time; its status will tell", identifier)
            question.close()
        else:
            question.due = now + pause
            question.answered()

    async def _read(self, case: Case) -> None:
        """See what others wrote. A ledger that cannot say stops no confirmation."""
        try:
            record = await self._ledger.get(case.record.client_transaction_id)
        except LedgerError as error:
            self._trouble(error)
        else:
            case.record = record or case.record

    async def _confirm(self, case: Case, transaction_id: int) -> bool:
        """Whether the service's answer settles this id."""
        identifier = case.record.client_transaction_id
        await self._turn(self._window * TURN)
        report = await self._session.confirm(transaction_id, identifier, repeat=False)
        if conflict := _not_confirmed(case.record, transaction_id, report):
            logger.error("%s: a confirmation is not ours: %s", identifier, conflict)
            return await self._take(case, Conflicted(at=self._clock.time(), what=conflict))
        return await self._verdict(case, report)

    async def _whether_paid(self, case: Case) -> bool:
        """The browser came back cancelled, which proves nothing: ask, where there is somebody to ask."""
        if not self._asks:
            return True
        record = case.record
        await self._turn(self._window * TURN)
        report = await self._session.status(client_transaction_id=record.client_transaction_id, repeat=False)
        unpaid = report is None or report.state == "Cancelado"
        if unpaid and not self._credentials.may_deny(record):
            return True
        if report is None:
            return await self._take(case, Abandoned(at=self._clock.time()))
        if conflict := conflict_of(record, report):
            return await self._take(case, Conflicted(at=self._clock.time(), what=conflict))
        if report.state == "Aceptado" and self._confirms:
            await self._found(record.client_transaction_id, report)
            return True
        return await self._verdict(case, report)

    async def _verdict(self, case: Case, report: StatusReport) -> bool:
        """Let the ledger take a report of ours; False: it is no verdict yet."""
        now, identifier = self._clock.time(), report.transaction_id
        case.report = report
        if report.state == "Aceptado":
            if case.record.state is State.CANCELLED:
                logger.critical("%s: cancelled, and yet accepted", case.record.client_transaction_id)
            return await self._take(case, FoundAccepted(at=now, transaction_id=identifier))
        if report.state == "Cancelado":
            return await self._take(case, FoundCancelled(at=now, transaction_id=identifier))
        return False

    async def _take(self, case: Case, event: Event) -> bool:
        """Whether the ledger took the event; where the state forbids it now, it is asked again later."""
        try:
            case.record = await self._ledger.apply(case.record, event)
        except TransitionError:
            case.record = await self._ledger.get(case.record.client_transaction_id) or case.record
            return case.record.state.decided
        self._changed(case.record)
        return True

    def _say(self, key: str, message: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning(message)

    async def aclose(self) -> None:
        """Stop: what is open stands in the ledger, and is asked at the next entry."""
        self._closed = True
        tasks = [case.task for case in self._cases.values() if case.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _not_confirmed(record: Record, transaction_id: int, report: StatusReport) -> str | None:
    """Say what in a confirmation is not what was prepared, or None."""
    if report.transaction_id != transaction_id:
        return f"confirming transaction {transaction_id} answered another"
    if report.client_transaction_id is None or report.amount is None:
        return f"confirming transaction {transaction_id} does not say what it confirms"
    return conflict_of(record, report)
