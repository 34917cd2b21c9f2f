"""`payclient prepare`: one payment form."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter
from rich.markup import escape

from payclient.cli import terminal
from payclient.cli.settings import Amounts, ChargeOptions, Service
from payclient.cli.texts import reason, text
from payclient.errors import NotSentError, OutcomeUnknownError, RefusedError
from payclient.models import PrepareRequest
from payclient.tracking.forms import PaymentForm
from payclient.wire import encode_prepare

__all__: list[str] = []


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class FormOptions:
    """What a form is for, and where it leads (§2.3)."""

    currency: str
    """ISO 4217, such as USD."""
    client_transaction_id: str
    """A unique id of this form's own."""
    store_id: str
    """The branch's identifier."""
    response_url: str
    """Where the customer is sent after paying."""
    cancellation_url: str | None = None
    """Where the X of the form leads."""
    reference: str | None = attrs.field(default=None, repr=False)
    """What the customer reads."""
    language: Annotated[Literal["es", "en"] | None, Parameter(name="--form-language")] = None
    """The language of the form."""


def prepare(
    *, fields: FormOptions, amounts: Amounts = Amounts(), options: ChargeOptions = ChargeOptions()
) -> int:
    """Prepare a payment form and print its links, each with its time left.

    Exit codes: 0 prepared; 3 refused; 4 not prepared as far as is known (prepare another, under another id).
    """
    request = PrepareRequest(**attrs.asdict(fields), **attrs.asdict(amounts))
    service = options.service()
    encode_prepare(request, service.profile)  # what the profile forbids is bad input
    try:
        form, now = asyncio.run(_prepare(service, request))
    except RefusedError as error:
        terminal.complain_of(error)
        return 3
    except (NotSentError, OutcomeUnknownError) as error:
        terminal.complain(text("form.none", why=reason(str(error))))
        return 4
    left = {name: max(link.expires_at - now, 0.0) / 60 for name, link in form.links.items()}
    minutes = {name: text("form.left", count=round(each)) for name, each in left.items()}
    terminal.print_facts({"payment id": form.payment_id, **minutes})
    for link in form.links.values():
        # Whole on one line, so that it can be copied.
        terminal.out().print(escape(link.url), soft_wrap=True, highlight=False)
    terminal.say(text("form.send"))
    return 0


async def _prepare(service: Service, request: PrepareRequest) -> tuple[PaymentForm, float]:
    async with service.tracker() as tracker:
        return await tracker.prepare(request), tracker.clock.time()
