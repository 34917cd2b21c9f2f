"""`payclient status`: one query."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from payclient.cli import terminal
from payclient.cli.settings import BaseUrl, Profile, Whole, profile_of, session_settings
from payclient.errors import ConfigurationError, RefusedError, TransportError
from payclient.models import StatusReport
from payclient.profile import ServiceProfile
from payclient.session import PaySession, TokenSource

__all__: list[str] = []


def status(
    *,
    transaction_id: Annotated[int | None, Whole, Parameter(help="The service's id.")] = None,
    client_transaction_id: Annotated[str | None, Parameter(help="The merchant's own id.")] = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
) -> int:
    """Ask the service once for a transaction's state. Exit codes: 0 it answered; 3 not found; 4 no usable answer."""
    if (transaction_id is None) == (client_transaction_id is None):
        raise ConfigurationError("give --transaction-id or --client-transaction-id")
    settings = profile_of(profile)
    address, token = session_settings(base_url, settings)
    try:
        report = asyncio.run(_ask(address, token, settings, transaction_id, client_transaction_id))
    except (RefusedError, TransportError) as error:
        terminal.complain(str(error))
        return 4
    if report is None:
        terminal.complain("the service does not find this transaction")
        return 3
    show(report)
    return 0


async def _ask(
    address: str,
    token: TokenSource,
    profile: ServiceProfile,
    transaction_id: int | None,
    client_transaction_id: str | None,
) -> StatusReport | None:
    async with PaySession(address, token, profile=profile) as session:
        return await session.status(
            transaction_id=transaction_id, client_transaction_id=client_transaction_id
        )


def show(report: StatusReport) -> None:
    """What the service says of a transaction."""
    table = Table.grid(padding=(0, 2))
    table.add_row("state", report.state or "a word that the profile does not map (status.states)")
    if report.transaction_id is not None:
        table.add_row("transaction id", str(report.transaction_id))
    if report.client_transaction_id is not None:
        table.add_row("client transaction id", escape(report.client_transaction_id))
    if report.amount is not None:
        table.add_row("amount", terminal.money(report.amount, report.currency or ""))
    terminal.out().print(table)
