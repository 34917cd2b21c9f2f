"""`payclient sale`: one charge."""

from __future__ import annotations

import asyncio
from typing import Annotated

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.lines import PAID_WORDS, Line
from payclient.cli.progress import Limits
from payclient.cli.run import Run
from payclient.cli.settings import (
    NO_AMOUNTS,
    AmountOptions,
    BaseUrl,
    Flag,
    LedgerUrl,
    NewLedger,
    Profile,
    Wait,
    service_of,
)
from payclient.cli.summary import facts
from payclient.models import SaleRequest
from payclient.wire import encode_sale

__all__: list[str] = []


def sale(
    *,
    country_code: Annotated[str, Parameter(help="Country calling code, such as 593.")],
    currency: Annotated[str, Parameter(help="ISO 4217, such as USD.")],
    client_transaction_id: Annotated[str, Parameter(help="Your own unique id of what is to be paid.")],
    phone_number: Annotated[str | None, Parameter(help="The number registered in the wallet app.")] = None,
    amounts: AmountOptions = NO_AMOUNTS,
    store_id: str | None = None,
    reference: str | None = None,
    response_url: Annotated[str | None, Parameter(help="Where the service notifies you.")] = None,
    nick_name: Annotated[str | None, Parameter(help="Charge this user name, with --by-nick-name.")] = None,
    by_nick_name: Annotated[bool, Flag] = False,
    ledger: LedgerUrl = None,
    new_ledger: NewLedger = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    wait: Wait = None,
) -> int:
    """Charge one customer by a push request and follow it to its end; the exit codes are those of `charge`.

    Run again, the same command sends nothing: it goes on waiting.
    """
    request = SaleRequest(
        phone_number=phone_number,
        country_code=country_code,
        currency=currency,
        client_transaction_id=client_transaction_id,
        store_id=store_id,
        reference=reference,
        response_url=response_url,
        nick_name=nick_name,
        by_nick_name=by_nick_name,
        **attrs.asdict(amounts),
    )
    where = service_of(base_url, profile, ledger, new_ledger=new_ledger)
    encode_sale(request, where.profile)  # what the profile forbids is bad input
    run = Run([request], Limits(wait=wait))
    code = asyncio.run(run.charge(where))
    for line in run.lines.values():
        _show(line)
    if code == 130:
        terminal.say("interrupted; the same command goes on waiting, and sends nothing again")
    return code


def _show(line: Line) -> None:
    rows = {
        "state": line.label,
        "paid": PAID_WORDS[line.paid],
        "amount": terminal.money(line.amount, line.currency),
        "client transaction id": line.client_transaction_id,
        "transaction id": line.transaction_id,
        "message": line.message or None,
    }
    terminal.out().print(facts(rows))
