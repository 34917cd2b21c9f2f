"""`payclient sale`: one charge."""

from __future__ import annotations

import asyncio
from typing import Annotated

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.report import PAID_WORDS
from payclient.cli.run import Limits, Run
from payclient.cli.settings import Amounts, ChargeOptions, Number
from payclient.models import SaleRequest
from payclient.wire import encode_sale

__all__: list[str] = []


def sale(
    *,
    country_code: Annotated[str, Parameter(help="Country calling code, such as 593.")],
    currency: Annotated[str, Parameter(help="ISO 4217, such as USD.")],
    client_transaction_id: Annotated[str, Parameter(help="Your own unique id of what is to be paid.")],
    phone_number: Annotated[str | None, Parameter(help="The number registered in the wallet app.")] = None,
    amounts: Amounts = Amounts(),
    store_id: str | None = None,
    reference: str | None = None,
    response_url: Annotated[str | None, Parameter(help="Where the service notifies you.")] = None,
    nick_name: Annotated[str | None, Parameter(help="Charge this user name, with --by-nick-name.")] = None,
    by_nick_name: bool = False,
    options: ChargeOptions = ChargeOptions(),
    wait: Annotated[float | None, Number, Parameter(help="Seconds to wait. Default: to the end.")] = None,
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
    service = options.service()
    encode_sale(request, service.profile)  # what the profile forbids is bad input
    run = Run([request], Limits(wait=wait))
    code = asyncio.run(run.charge(service))
    for line in run.lines.values():
        terminal.print_facts(
            {
                "state": line.label,
                "paid": PAID_WORDS[line.paid],
                "amount": terminal.money(line.amount, line.currency),
                "client transaction id": line.client_transaction_id,
                "transaction id": line.transaction_id,
                "message": line.message or None,
            }
        )
    if code == 130:
        terminal.say("interrupted; the same command goes on waiting, and sends nothing again")
    return code
