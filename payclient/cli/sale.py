"""`payclient sale` and `payclient prepare`: one charge, one payment form."""

import asyncio
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from payclient.batch import ChargeRow
from payclient.cli import terminal
from payclient.cli.report import paid_word
from payclient.cli.run import Run
from payclient.cli.settings import Cents, ChargeOptions, Limits, Number
from payclient.cli.texts import label, reason, text
from payclient.errors import ConfigurationError, TransportError
from payclient.models import PrepareRequest, SaleRequest
from payclient.rows.cells import CellError, corrected_phone
from payclient.wire import encode_prepare, encode_sale

Amount = Annotated[int | None, Cents]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class PricedOptions:
    """The money that is charged (§2.1)."""

    currency: str
    """ISO 4217, such as USD."""
    reference: str | None = attrs.field(default=None, repr=False)
    """The text that the customer reads."""
    amount: Amount = None
    """Cents; the sum of the parts, unless given."""
    amount_without_tax: Amount = None
    """Cents that are not taxed."""
    amount_with_tax: Amount = None
    """Cents that are taxed, without the tax."""
    tax: Amount = None
    """Cents."""
    service: Amount = None
    """Cents."""
    tip: Amount = None
    """Cents."""


@attrs.frozen(kw_only=True)
class SaleOptions(PricedOptions):
    """The customer who is charged, and what for (§2.2)."""

    country_code: str
    """Country calling code, such as 593."""
    client_transaction_id: str
    """Your own unique id of what is to be paid."""
    phone_number: str | None = attrs.field(default=None, repr=False)
    """The number registered in the wallet app."""
    store_id: str | None = None
    """The branch's identifier."""
    response_url: str | None = None
    """Where the service notifies you."""
    nick_name: str | None = attrs.field(default=None, repr=False)
    """Charge this user name, with --by-nick-name."""
    by_nick_name: bool = False
    """The nick name is charged, not the phone."""


def sale(
    *,
    fields: SaleOptions,
    options: ChargeOptions = ChargeOptions(),
    wait: Annotated[float | None, Number] = None,
    retry: tuple[Literal["refused"], ...] = (),
) -> int:
    """Charge one customer by a push request and follow it to its end.

    Run again, the same command goes on waiting, and charges nobody twice. The exit codes are those of `charge`.

    :param wait: Seconds to wait. Default: to the end.
    :param retry: Try again what the service refused before.
    """
    options.check()
    profile = options.loaded_profile
    values, phone, shapes = attrs.asdict(fields), fields.phone_number, profile.phone_shapes
    if phone is not None:  # as `charge` corrects that of a row
        try:
            found = corrected_phone(phone, fields.country_code, shapes)
        except CellError as error:
            raise ConfigurationError(f"--phone-number: {error}") from None
        if found != (phone, fields.country_code):
            terminal.say(text("run.respelled", shape=shapes[found[1]]))
        values["phone_number"], values["country_code"] = found
    request = SaleRequest(**values)
    encode_sale(request, profile)  # what the profile forbids is bad input
    run = Run([ChargeRow(request=request)], Limits(wait=wait, retry=retry))
    code = asyncio.run(run.charge(options))
    for line in run.lines.values():
        terminal.print_facts(
            {
                "state": label(line.label),
                "paid": label(paid_word(line.label)),
                "amount": terminal.money(line.amount, line.currency),
                "client transaction id": line.client_transaction_id,
                "transaction id": line.transaction_id,
                "message": reason(line.message),
                "receipt": ", ".join(f"{name} {value}" for name, value in line.receipt.items()),
            }
        )
    if code == 130:
        terminal.say(text("run.wait_on"))
    return code


@attrs.frozen(kw_only=True)
class FormOptions(PricedOptions):
    """The payment of a form, and where the form leads (§2.3)."""

    client_transaction_id: str
    """The form's own id."""
    store_id: str
    """The branch's identifier."""
    response_url: str
    """Where the customer is sent after paying."""
    cancellation_url: str | None = None
    """Where the X of the form leads."""
    language: Annotated[Literal["es", "en"] | None, Parameter(name="--form-language")] = None
    """The language of the form."""


async def prepare(*, fields: FormOptions, options: ChargeOptions = ChargeOptions()) -> int:
    """Prepare a payment form and print its links, each with its time left.

    Exit codes: 0 prepared; 2 bad input; 3 refused; 4 no usable answer: prepare another, under another id.
    """
    request = PrepareRequest(**attrs.asdict(fields))
    options.check()
    encode_prepare(request, options.loaded_profile)  # what the profile forbids is bad input
    try:
        async with options.tracker() as tracker:
            form, now = await tracker.prepare(request), tracker.clock.time()
    except TransportError as error:
        terminal.complain(text("form.none", why=reason(str(error))))
        return 4
    left = {name: round(max(link.expires_at - now, 0.0) / 60) for name, link in form.links.items()}
    minutes = {name: text("form.left", count=count) for name, count in left.items()}
    terminal.print_facts({"payment id": form.payment_id, **minutes})
    for link in form.links.values():
        terminal.print_line(link.url)  # whole on one line, so that it can be copied
    terminal.say(text("form.send"))
    if (confirm := options.loaded_profile.confirm) is not None:
        terminal.say(text("form.confirm", time=terminal.duration(confirm.window)))
    return 0
