"""What `cancel` and `reverse` share: they ask before they send, once."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from payclient.cli import terminal
from payclient.cli.settings import profile_of, session_settings
from payclient.errors import ConfigurationError, RefusedError, TransportError
from payclient.operations import undo_request
from payclient.profile import ServiceProfile
from payclient.session import PaySession, TokenSource

__all__: list[str] = []

QUESTIONS = {
    "cancel": "Withdraw the request of {which}, so that it cannot be paid any more?",
    "reverse": "Give back the whole payment of {which}?",
}
DONE = {"cancel": "withdrawn", "reverse": "reversed"}


def undo(
    operation: Literal["cancel", "reverse"],
    transaction_id: int | None,
    client_transaction_id: str | None,
    *,
    yes: bool,
    base_url: str | None,
    profile: str | None,
) -> int:
    """Ask, send once, and give the exit code."""
    if (transaction_id is None) == (client_transaction_id is None):
        raise ConfigurationError("give --transaction-id or --client-transaction-id")
    settings = profile_of(profile)
    address, token = session_settings(base_url, settings)
    undo_request(
        settings, operation, transaction_id, client_transaction_id
    )  # what the profile lacks is bad input
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError("there is no terminal to ask on: give --yes; nothing was sent")
        which = f"transaction {transaction_id}" if client_transaction_id is None else client_transaction_id
        if not terminal.agrees(QUESTIONS[operation].format(which=which)):
            terminal.complain("nothing was sent")
            return 2
    try:
        asyncio.run(_send(operation, address, token, settings, transaction_id, client_transaction_id))
    except (RefusedError, TransportError) as error:
        terminal.complain(str(error))
        return 3 if isinstance(error, RefusedError) else 4
    terminal.out().print(DONE[operation])
    return 0


async def _send(
    operation: Literal["cancel", "reverse"],
    address: str,
    token: TokenSource,
    profile: ServiceProfile,
    transaction_id: int | None,
    client_transaction_id: str | None,
) -> None:
    async with PaySession(address, token, profile=profile) as session:
        send = session.cancel if operation == "cancel" else session.reverse
        await send(transaction_id=transaction_id, client_transaction_id=client_transaction_id)
