"""`payclient status`, `confirm`, `cancel` and `reverse`: one request about one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal, TypeVar

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.settings import BaseUrl, Profile, Whole, Yes, profile_of, session_settings
from payclient.cli.summary import facts
from payclient.errors import ConfigurationError, RefusedError, TransportError
from payclient.models import StatusReport
from payclient.profile import ServiceProfile
from payclient.session import PaySession
from payclient.wire import undo_request

__all__: list[str] = []

T = TypeVar("T")

#: Before anything is undone, and after.
_QUESTIONS = {
    "cancel": "Withdraw the request of {which}, so that it cannot be paid any more?",
    "reverse": "Give back the whole payment of {which}?",
}
_DONE = {"cancel": "withdrawn", "reverse": "reversed"}


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Which:
    """The transaction that is meant, by one of its ids."""

    transaction_id: Annotated[int | None, Whole, Parameter(help="The service's id.")] = None
    client_transaction_id: Annotated[str | None, Parameter(help="The merchant's own id.")] = None

    def check(self) -> None:
        """Raise `ConfigurationError` for none of them, or both."""
        if (self.transaction_id is None) == (self.client_transaction_id is None):
            raise ConfigurationError("give --transaction-id or --client-transaction-id")


_NONE = Which()


def status(*, which: Which = _NONE, base_url: BaseUrl = None, profile: Profile = None) -> int:
    """Ask the service once for a transaction's state. Exit codes: 0 it answered; 3 not found; 4 no usable answer."""
    which.check()
    opening = _opening(base_url, profile_of(profile))
    try:
        report = _ask(opening, lambda session: session.status(**attrs.asdict(which)))
    except (RefusedError, TransportError) as error:
        terminal.complain(str(error))
        return 4
    if report is None:
        terminal.complain("the service does not find this transaction")
        return 3
    _show(report)
    return 0


def confirm(
    *,
    transaction_id: Annotated[int, Whole, Parameter(help="The service's id, from the customer's return.")],
    client_transaction_id: Annotated[str, Parameter(help="The form's own id.")],
    base_url: BaseUrl = None,
    profile: Profile = None,
) -> int:
    """Confirm one paid form, which the service reverses otherwise; it may be repeated.

    Exit codes: 0 it is paid; 3 it is not, or refused; 4 no usable answer (repeat it).
    """
    opening = _opening(base_url, profile_of(profile))
    try:
        report = _ask(opening, lambda session: session.confirm(transaction_id, client_transaction_id))
    except (RefusedError, TransportError) as error:
        return _complain(error)
    _show(report)
    return 0 if report.state == "Aceptado" else 3


def cancel(
    *, which: Which = _NONE, yes: Yes = False, base_url: BaseUrl = None, profile: Profile = None
) -> int:
    """Withdraw a push request that nobody answered.

    Exit codes: 0 withdrawn; 2 nothing was sent; 3 refused, nothing was withdrawn; 4 no usable answer: ask its status.
    """
    return _undo("cancel", which, yes, base_url, profile)


def reverse(
    *, which: Which = _NONE, yes: Yes = False, base_url: BaseUrl = None, profile: Profile = None
) -> int:
    """Give one payment back, whole.

    Exit codes: 0 reversed; 2 nothing was sent; 3 refused, nothing was reversed; 4 no usable answer: ask its status.
    """
    return _undo("reverse", which, yes, base_url, profile)


def _undo(
    operation: Literal["cancel", "reverse"],
    which: Which,
    yes: bool,
    base_url: str | None,
    profile: str | None,
) -> int:
    which.check()
    number, identifier = which.transaction_id, which.client_transaction_id
    settings = profile_of(profile)
    opening = _opening(base_url, settings)
    undo_request(settings, operation, number, identifier)  # what the profile lacks is bad input
    if not yes:
        terminal.check_can_ask("nothing was sent")
        question = _QUESTIONS[operation].format(which=identifier or f"transaction {number}")
        if not terminal.agrees(question, "nothing was sent"):
            return 2
    try:
        _ask(opening, lambda session: getattr(session, operation)(**attrs.asdict(which)))
    except (RefusedError, TransportError) as error:
        return _complain(error)
    terminal.out().print(_DONE[operation])
    return 0


def _opening(base_url: str | None, profile: ServiceProfile) -> Callable[[], PaySession]:
    """What opens a session, its settings checked."""
    return partial(PaySession, *session_settings(base_url, profile), profile=profile)


def _ask(opening: Callable[[], PaySession], request: Callable[[PaySession], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with opening() as session:
            return await request(session)

    return asyncio.run(ask())


def _complain(error: RefusedError | TransportError) -> int:
    """Say what came instead, and give the exit code."""
    terminal.complain(str(error))
    return 3 if isinstance(error, RefusedError) else 4


def _show(report: StatusReport) -> None:
    """What the service says of a transaction."""
    amount = None if report.amount is None else terminal.money(report.amount, report.currency or "")
    rows = {
        "state": report.state or "a word that the profile does not map (status.states)",
        "transaction id": report.transaction_id,
        "client transaction id": report.client_transaction_id,
        "amount": amount,
    }
    terminal.out().print(facts(rows))
