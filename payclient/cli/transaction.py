"""`payclient status`, `confirm`, `cancel` and `reverse`: one request about one transaction."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.ledger import newest, opened
from payclient.cli.settings import LedgerUrl, ServiceOptions, Whole, Yes
from payclient.cli.texts import label, reason, text
from payclient.errors import (
    ConfigurationError,
    NotReversibleError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.ledger import Ledger, open_ledger
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.session import PaySession
from payclient.tracking.tracker import Tracker
from payclient.wire import undo_request

#: Seconds between two looks of `--watch`.
WATCH_EVERY = 1.0


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Which:
    """One transaction, named by one of its ids."""

    transaction_id: Annotated[int | None, Whole] = None
    """The service's id."""
    client_transaction_id: str | None = None
    """The merchant's own id."""

    def check(self) -> None:
        """Raise `ConfigurationError` unless exactly one id is given."""
        if (self.transaction_id is None) == (self.client_transaction_id is None):
            raise ConfigurationError("give one of --transaction-id and --client-transaction-id")


async def status(
    *,
    which: Which = Which(),
    watch: str | None = None,
    ledger: LedgerUrl = None,
    options: ServiceOptions = ServiceOptions(),
) -> int:
    """Query a transaction's state once.

    Exit codes: 0 it answered; 2 bad input; 3 not found; 4 no usable answer.
    With --watch nothing is sent: the ledger is read beside the process that charges. Exit codes: 0 paid; 3 not paid.

    :param watch: A client transaction id: show its state in the ledger at each change, until it is decided.
    """
    if watch is not None:
        if which != Which():
            raise ConfigurationError("--watch: give no other id beside it")
        async with opened(ledger) as book:
            end = await show_changes(book, watch, lambda: asyncio.sleep(WATCH_EVERY))
        return 0 if end.paid else 3
    which.check()
    try:
        async with options.session() as session:
            report = await session.status(**attrs.asdict(which))
    except RefusedError as error:
        terminal.complain(reason(str(error)))
        return 4
    if report is None:
        terminal.complain(text("undo.not_found"))
        return 3
    _show(report)
    return 0


async def show_changes(book: Ledger, identifier: str, wait: Callable[[], Awaitable[object]]) -> State:
    """Print a sale's state, and each new one, until it is decided; `wait` comes between two looks."""
    seen: object = "nothing yet"
    while True:
        record = await book.get(identifier)
        if record != seen:
            words = text("undo.unknown_id")
            if record is not None:
                words = f"{label(record.state)}: {text(f'evidence.{record.evidence}')}"
            terminal.print_result(f"{terminal.at(time.time())}  {words}")
        if record is not None and record.state.decided:
            return record.state
        seen = record
        await wait()


async def confirm(
    *,
    transaction_id: Annotated[int, Whole],
    client_transaction_id: str,
    options: ServiceOptions = ServiceOptions(),
) -> int:
    """Confirm one paid form, which the service reverses otherwise; it may be repeated.

    Exit codes: 0 it is paid; 2 bad input; 3 it is not, or refused; 4 no usable answer (repeat it).

    :param transaction_id: The service's id, from the customer's return.
    :param client_transaction_id: The form's own id.
    """
    try:
        async with options.session() as session:
            report = await session.confirm(transaction_id, client_transaction_id)
    except (RateLimitedError, UnauthorizedError) as error:  # neither is about the payment
        terminal.complain(text("undo.repeat", why=reason(str(error))))
        return 4
    _show(report)
    ids = report.transaction_id, report.client_transaction_id
    is_its_own = ids == (transaction_id, client_transaction_id) and not report.unreadable
    if not is_its_own or report.state not in ("Aceptado", "Cancelado"):
        terminal.complain(text("undo.undecided"))
        return 4
    return 0 if report.state == "Aceptado" else 3


async def cancel(
    *, which: Which = Which(), yes: Yes = False, options: ServiceOptions = ServiceOptions()
) -> int:
    """Withdraw a push request that nobody answered.

    Exit codes: 0 withdrawn; 2 bad input; 3 refused, nothing was withdrawn; 4 no usable answer: query its status.
    """
    _ask("cancel", which, yes, options)
    async with options.session() as session:
        await session.cancel(**attrs.asdict(which))
    terminal.print_result(label("withdrawn"))
    return 0


async def reverse(
    *,
    which: Which = Which(),
    yes: Yes = False,
    ledger: LedgerUrl = None,
    options: ServiceOptions = ServiceOptions(),
) -> int:
    """Give one payment back, whole.

    With a ledger it must be one of its sales, and the ledger keeps what came of it. The same command never sends it
    again then while it has no answer, and queries what became of it.
    Exit codes: 0 reversed; 2 bad input; 3 refused, nothing was reversed; 4 no usable answer: query its status.
    """
    _ask("reverse", which, yes, options)
    state = State.REVERSED
    try:
        async with options.session() as session:
            if ledger is None:
                await session.reverse(**attrs.asdict(which))
            else:
                state = await _reverse_by_ledger(session, ledger, which)
    except NotReversibleError:
        terminal.say(text("undo.too_late"))
        raise
    if state is State.REVERSED:
        terminal.print_result(label(state))
        return 0
    still_paid = state is State.ACCEPTED  # another process was refused
    terminal.complain(text("undo.still_paid" if still_paid else "undo.no_answer"))
    return 3 if still_paid else 4


def _ask(operation: Literal["cancel", "reverse"], which: Which, yes: bool, options: ServiceOptions) -> None:
    """Ask whether to send the request. A setting that is missing is bad input, and raises before the question."""
    which.check()
    number, identifier = which.transaction_id, which.client_transaction_id
    options.address()
    options.token()
    undo_request(options.loaded_profile, operation, number, identifier)
    question = text(f"undo.{operation}", which=identifier or text("undo.number", number=str(number)))
    terminal.ask(question, "nothing was sent", yes=yes)


async def _reverse_by_ledger(session: PaySession, url: str, which: Which) -> State:
    """Reverse a sale of the ledger, which records it. Raises `ConfigurationError` if it has no such paid sale."""
    async with aclosing(await open_ledger(url, create=False)) as book:
        record = await _find(book, which)
        if record.state not in (State.ACCEPTED, State.REVERSING, State.REVERSED):
            raise ConfigurationError(
                f"{record.client_transaction_id} is {record.state}: only what is paid is given back; nothing was sent"
            )
        async with Tracker(session, book) as tracker:
            pending = await tracker.find(record.client_transaction_id)
            assert pending is not None  # noqa: S101 - it was found a moment ago
            outcome = await tracker.reverse(pending)
            return (await pending.check() if outcome.state is State.REVERSING else outcome).state


async def _find(book: Ledger, which: Which) -> Record:
    if which.client_transaction_id is not None:
        return await newest(book, which.client_transaction_id)
    async for record in book.records():
        if record.transaction_id == which.transaction_id and record.state is not State.REFUSED:
            return record
    raise ConfigurationError(f"the ledger has no transaction {which.transaction_id}; nothing was sent")


def _show(report: StatusReport) -> None:
    amount = None if report.amount is None else terminal.money(report.amount, report.currency or "")
    terminal.print_facts(
        {
            "state": report.state or text("undo.unmapped"),
            "transaction id": report.transaction_id,
            "client transaction id": report.client_transaction_id,
            "amount": amount,
        }
    )
