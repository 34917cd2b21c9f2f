"""`payclient prepare`: one payment form."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter
from rich.markup import escape

from payclient.cli import terminal
from payclient.cli.settings import (
    NO_AMOUNTS,
    AmountOptions,
    BaseUrl,
    LedgerUrl,
    NewLedger,
    Profile,
    Service,
    service_of,
)
from payclient.cli.summary import facts
from payclient.errors import NotSentError, OutcomeUnknownError, RefusedError
from payclient.forms import PaymentForm
from payclient.models import PrepareRequest
from payclient.wire import encode_prepare

__all__: list[str] = []


def prepare(
    *,
    currency: Annotated[str, Parameter(help="ISO 4217, such as USD.")],
    client_transaction_id: Annotated[str, Parameter(help="A unique id of this form's own.")],
    store_id: Annotated[str, Parameter(help="The branch's identifier.")],
    response_url: Annotated[str, Parameter(help="Where the customer is sent after paying.")],
    amounts: AmountOptions = NO_AMOUNTS,
    cancellation_url: Annotated[str | None, Parameter(help="Where the X of the form leads.")] = None,
    reference: str | None = None,
    language: Annotated[Literal["es", "en"] | None, Parameter(help="Of the form.")] = None,
    ledger: LedgerUrl = None,
    new_ledger: NewLedger = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
) -> int:
    """Prepare a payment form and print its links, each with its time left.

    Exit codes: 0 prepared; 3 refused; 4 not prepared as far as is known (prepare another, under another id).
    """
    request = PrepareRequest(
        currency=currency,
        client_transaction_id=client_transaction_id,
        store_id=store_id,
        response_url=response_url,
        cancellation_url=cancellation_url,
        reference=reference,
        language=language,
        **attrs.asdict(amounts),
    )
    where = service_of(base_url, profile, ledger, new_ledger=new_ledger)
    encode_prepare(request, where.profile)  # what the profile forbids is bad input
    try:
        form, now = asyncio.run(_prepare(where, request))
    except RefusedError as error:
        terminal.complain(str(error))
        return 3
    except (NotSentError, OutcomeUnknownError) as error:
        terminal.complain(f"{error}: no form is known of")
        return 4
    _show(form, now)
    return 0


async def _prepare(where: Service, request: PrepareRequest) -> tuple[PaymentForm, float]:
    async with where.tracker() as tracker:
        return await tracker.prepare(request), tracker.clock.time()


def _show(form: PaymentForm, now: float) -> None:
    left = {name: max(link.expires_at - now, 0.0) / 60 for name, link in form.links.items()}
    rows = {
        "payment id": form.payment_id,
        **{name: f"{each:.0f} minutes left" for name, each in left.items()},
    }
    terminal.out().print(facts(rows))
    for link in form.links.values():
        # Whole on one line, so that it can be copied.
        terminal.out().print(escape(link.url), soft_wrap=True, highlight=False)
    terminal.say(
        "send the customer there from a page of your registered domain, under Referrer-Policy: origin"
    )
