"""What the three shops have in common: nothing of a framework. Each action answers a `Page`, whatever happens.

An order is a purchase, paid by push or by card form. `pay` and `card` ask for it; `show` says what became of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager, suppress
from html import escape
from urllib.parse import parse_qs, quote

import payclient
from payclient.web import Page, is_waiting, notification_url, redirect_page, waiting_page

__all__ = ["SECRET", "back", "card", "heard", "opening", "pay", "show", "ways"]

URL = os.environ.get("SHOP_URL", "http://127.0.0.1:8000")
SECRET = os.environ.get("SHOP_SECRET", "only for trying it out")

WORDS = {
    True: "Paid. Thank you!",
    False: "Not paid. You may pay in another way.",
    None: "We do not know yet how it ended. Please do not pay again: we will tell you.",
}


def opening() -> AbstractAsyncContextManager[payclient.Tracker]:
    """The tracker of one worker."""
    return payclient.open_tracker(
        os.environ.get("PAYCLIENT_BASE_URL"),
        os.environ["PAYCLIENT_TOKEN"],
        ledger=os.environ.get("PAYCLIENT_LEDGER", "sqlite:charges.db"),
        profile=os.environ.get("PAYCLIENT_PROFILE", "payphone"),
        drain=float(os.environ.get("SHOP_DRAIN", "10")),
    )


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
        response_url=notification_url(f"{URL}/pay/notify", identifier, SECRET),
    )


def prepare_request(identifier: str) -> payclient.PrepareRequest:
    """A form of USD 11.50; the address back holds our own id, since what the service adds is not shown (§6)."""
    return payclient.PrepareRequest(
        amount_with_tax=1000, tax=150, currency="USD", store_id="S1", client_transaction_id=identifier,
        response_url=f"{URL}/back/{identifier}", cancellation_url=f"{URL}/back/{identifier}",
    )  # fmt: skip


def heard(notification: payclient.Notification, receipt: payclient.Receipt) -> None:
    """The app may see what came of a notification."""
    print(f"heard {notification.client_transaction_id} {receipt}", flush=True)


# --- Pages


def page(title: str, content: str = "", status: int = 200, **headers: str) -> Page:
    html = f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title></head>
<body><h1>{escape(title)}</h1>{content}</body></html>"""
    always = {
        "Content-Type": "text/html; charset=utf-8",
        "Cache-Control": "no-store",
        "Referrer-Policy": "origin",
    }
    return Page(status=status, headers=always | headers, body=html.encode())


def path_of(order: str) -> str:
    return quote(order, safe="")


def to_order(order: str) -> Page:
    return page("See the order", status=303, Location=f"/orders/{path_of(order)}")


def clock_time(at: float | None) -> str:
    return "it is answered" if at is None else time.strftime("%H:%M", time.localtime(at))


def by_card(order: str) -> str:
    return f'<form action="/card/{path_of(order)}"><button id="card">Pay by card</button></form>'


def ways(order: str, title: str = "How do you want to pay?", *, withdraws: bool = False) -> Page:
    """Two buttons; with `withdraws` also the one for a wrong number."""
    path = path_of(order)
    return page(
        title,
        f"""<form method="post" action="/pay/{path}"><label>Phone <input name="phone" type="tel" required></label>
<button id="push">Pay by push</button></form>{by_card(order)}{withdrawing(order) if withdraws else ""}""",
    )


def withdrawing(order: str) -> str:
    """The button for a wrong number."""
    return f"""<form method="post" action="/pay/{path_of(order)}"><input type="hidden" name="withdraw" value="yes">
<button id="withdraw">Wrong number: withdraw the request</button></form>"""


def open_page(order: str, error: payclient.PurchaseOpenError) -> Page:
    """The order has an open ask of the other way."""
    until, path, more = clock_time(error.until), path_of(order), ""
    if error.pending.kind == "sale":
        title, link = f"There is an open request on your phone until {until}", f"/orders/{path}"
        more = withdrawing(order)
    else:
        title, link = f"A card form of this order is open until {until}", f"/card/{path}"
    return page(title, f'<p><a id="open" href="{link}">Go on with it</a></p>{more}', 409)


# --- Actions


async def answered(order: str, kind: str, doing: Awaitable[Page]) -> Page:
    """What a click on the button of this kind is answered with. An error created nothing."""
    try:
        return await doing
    except (
        payclient.AlreadyPaidError,
        payclient.DifferentRequestError,
    ):  # the latter: a second click at once
        return to_order(order)
    except payclient.PurchaseOpenError as error:
        return to_order(order) if error.pending.kind == kind else open_page(order, error)
    except payclient.PayError as error:
        texts = getattr(error, "user_messages", None) or [str(error)]
        link = f'<p><a href="/pay/{path_of(order)}">Try again</a></p>'
        return page("Not now", "".join(f"<p>{escape(text)}</p>" for text in texts) + link, 409)


async def pay(tracker: payclient.Tracker, order: str, body: bytes) -> Page:
    """A push to the phone that the customer typed; or the withdrawal of the one that is open."""
    typed = parse_qs(body.decode(errors="replace"))
    phone = typed.get("phone", [""])[0]

    async def send() -> Page:
        asks = (await tracker.purchase(order)).asks
        if "withdraw" in typed:
            for ask in asks:
                sale = await tracker.find(ask.client_transaction_id)
                if sale is not None and sale.kind == "sale" and ask.paid is None:
                    await tracker.cancel(sale)  # the customer may have been quicker: the order's page says it
            return to_order(order)
        request = sale_request(f"{order}-{len(asks) + 1}", phone)
        await tracker.sale(request, purchase=order)
        return to_order(order)

    return await answered(order, "sale", send())


async def card(tracker: payclient.Tracker, order: str) -> Page:
    """To the order's form, with the referrer."""

    async def hand_out() -> Page:
        link = (await tracker.live_form(order, prepare_request)).card
        hosts, now = tracker.profile.link_hosts, tracker.clock.time()
        return redirect_page(link, "en", again=f"/card/{path_of(order)}", hosts=hosts, now=now)

    return await answered(order, "form", hand_out())


async def show(tracker: payclient.Tracker, order: str) -> Page:
    """The order's own page: paid, waiting, not known, or two buttons."""

    async def look() -> Page:
        purchase = await tracker.purchase(order)
        if purchase.overpaid:
            return page(WORDS[True], f"<p>Paid twice: we give you {purchase.overpaid} cents back.</p>")
        if purchase.paid:
            return page(WORDS[True])
        undecided = [ask.client_transaction_id for ask in purchase.asks if ask.paid is None]
        if not undecided and purchase.held_until is not None:
            # Its customer closed a form, which can still be paid: beside it nothing else may be.
            until = clock_time(purchase.held_until)
            words = f"<p>The card form that you left can still be paid. Another way is open from {until}.</p>"
            return page("Not paid.", words + by_card(order))
        if not undecided:
            return ways(order, WORDS[False]) if purchase.asks else ways(order)
        sale = await tracker.find(undecided[-1])
        if sale is not None and is_waiting(sale):
            status_url = f"/orders/{path_of(sale.client_transaction_id)}/status"
            return waiting_page(sale, status_url, "en", cancel_url=f"/pay/{path_of(order)}")
        return page(WORDS[None], '<meta http-equiv="refresh" content="4">')

    return await answered(order, "", look())


async def back(tracker: payclient.Tracker, identifier: str, query: str) -> Page:
    """Who returns from a form, or closed it, says nothing that can be believed: ask the service once.

    Where the profile has `[returned]` and `[confirm]`, that is to confirm it, or the money is given back.
    """

    async def ask() -> Page:
        sale = await tracker.find(identifier)
        if sale is None:
            return page("There is no such payment", status=404)
        with suppress(
            payclient.PayError
        ):  # rubbish, or nothing could be asked: the order's page says what is known
            if tracker.profile.returned is None:
                await sale.check()
            else:
                await tracker.returned(query, client_transaction_id=identifier)
        return to_order(sale.outcome.purchase)

    return await answered(identifier, "", ask())
