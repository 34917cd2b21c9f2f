"""What the three shops have in common: nothing of a framework."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager, suppress
from html import escape
from urllib.parse import parse_qs

import payclient
from payclient.web import notification_url

__all__ = [
    "HEADERS", "SECRET", "back_of", "cancelled_html", "close", "heard", "home_html", "notify_base", "opening",
    "outcome_html", "phone_in", "prepare_request", "refused_html", "sale_request",
]  # fmt: skip

SECRET = os.environ.get("SHOP_SECRET", "")
URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8000")

#: Of the shop's own pages; the forms' pages bring their own.
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "origin"}


def opening() -> AbstractAsyncContextManager[payclient.Tracker]:
    """The tracker of one worker."""
    return payclient.open_tracker(
        os.environ["PAYCLIENT_BASE_URL"],
        os.environ["PAYCLIENT_TOKEN"],
        ledger=os.environ["PAYCLIENT_LEDGER"],
        profile=os.environ["PAYCLIENT_PROFILE"],
    )


def notify_base() -> str:
    return f"{URL}/pay/notify"


def sale_request(identifier: str, phone: str) -> payclient.SaleRequest:
    """A push of USD 11.50."""
    return payclient.SaleRequest(
        phone_number=phone,
        country_code="593",
        amount_with_tax=1000,
        tax=150,
        currency="USD",
        client_transaction_id=identifier,
        store_id="S1",
        response_url=notification_url(notify_base(), identifier, SECRET),
    )


def prepare_request(client_transaction_id: str) -> payclient.PrepareRequest:
    """A form of USD 11.50; the addresses back hold our own id, since what the service adds is not shown (§6)."""
    return payclient.PrepareRequest(
        amount_with_tax=1000,
        tax=150,
        currency="USD",
        store_id="S1",
        client_transaction_id=client_transaction_id,
        response_url=f"{URL}/back/{client_transaction_id}",
        cancellation_url=f"{URL}/cancelled/{client_transaction_id}",
    )


async def back_of(tracker: payclient.Tracker, identifier: str, query: str) -> payclient.PendingSale | None:
    """Who returns from a form says nothing that can be believed: ask the service once.

    Where the profile has `[returned]` and `[confirm]`, that is to confirm it, or the money is given back.
    """
    sale = await tracker.find(identifier)
    if sale is not None and tracker.profile.returned is not None:
        with suppress(payclient.InvalidNotificationError):  # rubbish
            await tracker.returned(query, client_transaction_id=identifier)
        return await tracker.find(identifier)
    if sale is not None:
        await sale.check()
    return sale


async def close(tracker: payclient.Tracker, identifier: str, query: str) -> None:
    """Who closed the form by its X gets a form next time: a new one where the service calls this one cancelled."""
    await back_of(tracker, identifier, query)


def heard(notification: payclient.Notification, receipt: payclient.Receipt) -> None:
    """The app may see what came of a notification."""
    print(f"heard {notification.client_transaction_id} {receipt}", flush=True)


def phone_in(body: bytes) -> str:
    return parse_qs(body.decode())["phone"][0]


def home_html() -> str:
    return _html(
        "Shop",
        """<form method="post" action="/pay/order-1"><label>Phone <input name="phone" value="0984111222"></label>
<button id="push">Pay by push</button></form><p><a id="card" href="/form/cart-1">Pay by card</a></p>""",
    )


def outcome_html(sale: payclient.PendingSale) -> str:
    texts = {
        True: "Paid. Thank you!",
        False: "Not paid. You may pay in another way.",
        None: "We do not know yet how it ended. Please do not pay again: we will tell you.",
    }
    return _html(sale.client_transaction_id, f'<p id="outcome">{texts[sale.outcome.paid]}</p>')


def cancelled_html() -> str:
    return _html(
        "Cancelled", '<p id="outcome">You closed the form. <a href="/form/cart-1">Pay after all</a></p>'
    )


def refused_html(error: payclient.PayError) -> str:
    return _html(
        "Refused", "".join(f"<p>{escape(text)}</p>" for text in getattr(error, "user_messages", ["?"]))
    )


def _html(title: str, content: str) -> str:
    return f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>
<body><h1>{escape(title)}</h1>{content}</body></html>"""
