"""`payclient sale`: one charge."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.report import PAID_WORDS
from payclient.cli.run import Run
from payclient.cli.settings import Amounts, ChargeOptions, Limits, Number
from payclient.cli.texts import label, reason, text
from payclient.errors import ConfigurationError
from payclient.models import SaleRequest
from payclient.profile import ServiceProfile
from payclient.rows.cells import CellError, corrected_phone
from payclient.wire import encode_sale

__all__: list[str] = []


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class SaleOptions:
    """Who is charged, and for what (§2.2)."""

    country_code: str
    """Country calling code, such as 593."""
    currency: str
    """ISO 4217, such as USD."""
    client_transaction_id: str
    """Your own unique id of what is to be paid."""
    phone_number: str | None = attrs.field(default=None, repr=False)
    """The number registered in the wallet app."""
    store_id: str | None = None
    """The branch's identifier."""
    reference: str | None = attrs.field(default=None, repr=False)
    """What the customer reads."""
    response_url: str | None = None
    """Where the service notifies you."""
    nick_name: str | None = attrs.field(default=None, repr=False)
    """Charge this user name, with --by-nick-name."""
    by_nick_name: bool = False
    """The nick name is charged, not the phone."""


def sale(
    *,
    fields: SaleOptions,
    amounts: Amounts = Amounts(),
    options: ChargeOptions = ChargeOptions(),
    wait: Annotated[float | None, Number, Parameter(help="Seconds to wait. Default: to the end.")] = None,
) -> int:
    """Charge one customer by a push request and follow it to its end; the exit codes are those of `charge`.

    Run again, the same command sends nothing: it goes on waiting.
    """
    service = options.service()
    request = SaleRequest(**_corrected(fields, service.profile), **attrs.asdict(amounts))
    encode_sale(request, service.profile)  # what the profile forbids is bad input
    run = Run([request], Limits(wait=wait))
    code = asyncio.run(run.charge(service))
    for line in run.lines.values():
        terminal.print_facts(
            {
                "state": label(line.label),
                "paid": label(PAID_WORDS[line.paid]),
                "amount": terminal.money(line.amount, line.currency),
                "client transaction id": line.client_transaction_id,
                "transaction id": line.transaction_id,
                "message": reason(line.message) or None,
                "receipt": json.dumps(line.receipt, ensure_ascii=False) if line.receipt else None,
            }
        )
    if code == 130:
        terminal.say(text("run.wait_on"))
    return code


def _corrected(fields: SaleOptions, profile: ServiceProfile) -> dict[str, Any]:
    """Return the fields with the phone as a row of a file has it, so that one customer is one; say where it differs."""
    values, phone, country = attrs.asdict(fields), fields.phone_number, fields.country_code
    if phone is None:
        return values
    try:
        found = corrected_phone(phone, country, profile.phone_shapes)
    except CellError as error:
        raise ConfigurationError(f"--phone-number: {error}") from None
    if found != (phone, country):
        terminal.say(text("run.respelled", shape=profile.phone_shapes[found[1]]))
    return values | {"phone_number": found[0], "country_code": found[1]}
