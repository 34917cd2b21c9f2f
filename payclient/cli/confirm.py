"""`payclient confirm`: one confirmation of a paid form."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.settings import BaseUrl, Profile, Whole, profile_of, session_settings
from payclient.cli.status import show
from payclient.errors import RefusedError, TransportError
from payclient.models import StatusReport
from payclient.profile import ServiceProfile
from payclient.session import PaySession, TokenSource

__all__: list[str] = []


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
    settings = profile_of(profile)
    address, token = session_settings(base_url, settings)
    try:
        report = asyncio.run(_confirm(address, token, settings, transaction_id, client_transaction_id))
    except (RefusedError, TransportError) as error:
        terminal.complain(str(error))
        return 3 if isinstance(error, RefusedError) else 4
    show(report)
    return 0 if report.state == "Aceptado" else 3


async def _confirm(
    address: str, token: TokenSource, profile: ServiceProfile, transaction_id: int, client_transaction_id: str
) -> StatusReport:
    async with PaySession(address, token, profile=profile) as session:
        return await session.confirm(transaction_id, client_transaction_id)
