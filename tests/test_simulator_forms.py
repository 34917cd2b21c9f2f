"""The two pages of a prepared payment over real HTTP; time is moved by hand."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from manual_clock import ManualClock
from payclient.simulator import Form, Settings
from simulated import SHOP, TYPED, Client, client, client_of, clock, sale_of, settings

__all__ = ["client", "clock", "settings"]

SAMPLE = json.loads((Path(__file__).parent / "samples" / "prepare_request.json").read_text(encoding="utf-8"))
CARD, WALLET = "/form/card?paymentId=", "/form/wallet?paymentId="


def is_form(page: Any) -> bool:
    return 'value="pay"' in page


async def load(
    client: Client, form: Form, link: str = CARD, headers: dict[str, str] = SHOP
) -> tuple[int, str]:
    return await client.get(link + form.payment_id, headers=headers)


async def press(
    client: Client, form: Form, outcome: str | None = "pay", link: str = CARD, **typed: str
) -> tuple[int, str]:
    data = {**typed, **({} if outcome is None else {"outcome": outcome})}
    return await client.send("POST", link + form.payment_id, data=data, headers={})


async def pressed(
    client: Client, form: Form, outcome: str | None = "pay", link: str = CARD, **typed: str
) -> str:
    """The address to which a button leads."""
    status, page = await press(client, form, outcome, link, **typed)
    assert status == 303, page
    return client.headers["Location"]


async def test_a_valid_request_gives_an_id_and_two_links(client: Client, clock: ManualClock) -> None:
    """An id that nobody guesses, a link for the wallet and one for the card (§2.6); null stands for an absent field."""
    (_, answer), (_, second) = await client.prepare(SAMPLE), await client.prepare(SAMPLE)
    payment_id, url = answer["paymentId"], client.service.url
    links = {"payWithWallet": f"{url}{WALLET}{payment_id}", "payWithCard": f"{url}{CARD}{payment_id}"}
    assert answer == {"paymentId": payment_id, **links}
    assert len(payment_id) >= 20
    assert second["paymentId"] != payment_id
    form = client.service.forms[payment_id]
    shown = form.as_json()
    paid_for = {"client_transaction_id": SAMPLE["clientTransactionId"], "amount": 315, "currency": "USD"}
    undecided = {"state": "Pendiente", "how": None, "transaction_id": None}
    assert (paid_for | undecided).items() <= shown.items()
    assert form.created_at == clock.time()
    private = await client.form(reference="private")
    for secret in (private.payment_id, "private", "shop.example/paid", *TYPED.values()):
        assert secret not in repr(private)
    form = await client.form(**dict.fromkeys([*TYPED, "cancellationUrl", "reference", "order", "tip"]))
    assert form.cancellation_url is None
    assert not form.texts.keys() & TYPED.keys()
    counts = client.service.counts
    assert (counts.prepared, counts.created, counts.requests) == (4, 0, 4)


# Who may open a form


@pytest.mark.parametrize(
    "referrer", [None, "", "shop.example", "about:blank", "http://[", "file:///a", "\udcff"]
)
async def test_a_form_does_not_open_without_a_referrer(client: Client, referrer: str | None) -> None:
    """A link that is opened directly shows the access-denied page (§4, §7.7) and starts no ten minutes."""
    form = await client.form()
    for link in (CARD, WALLET):
        status, page = await load(client, form, link, {} if referrer is None else {"Referer": referrer})
        assert (status, is_form(page), form.deadlines) == (200, False, {})
        assert client.service.log[-1].text.endswith(
            ", denied: no referrer came"
        )  # its status may well be 200
        assert "No autorizado" in page
        assert "Not authorized" in page
        assert "form-1" not in page


async def test_only_a_registered_domain_opens_a_form() -> None:
    opens = {
        "https://shop.example": True, "https://SHOP.example:8443/cart?a=b": True, "http://shop.example/": True,
        "https://other.example/": False, "https://www.shop.example/": False, "https://<b>.example/": False,
        "https://shop.example.other.example/": False, "https://shop.example@other.example/": False,
    }  # fmt: skip
    async with client_of(Settings(registered_domains=frozenset({"shop.example"}))) as client:
        form = await client.form()
        for referrer, expected in opens.items():
            status, page = await load(client, form, CARD, {"Referer": referrer})
            assert (status, is_form(page)) == (200, expected), referrer
            assert "<b>" not in page


async def test_each_link_lives_ten_minutes_from_its_first_load(client: Client, clock: ManualClock) -> None:
    """Neither a second load, a HEAD nor another clock stretches the window (§8); afterwards nothing is paid by it."""
    form = await client.form()
    await clock.advance(3600)
    assert is_form((await load(client, form))[1])
    await clock.advance(599)
    clock.jump_wall(86_400)
    assert is_form((await load(client, form))[1])
    assert (await client.send("HEAD", WALLET + form.payment_id, headers=SHOP))[0] == 405
    await clock.advance(1)
    status, page = await load(client, form)
    assert (status, is_form(page)) == (410, False)
    assert "uno nuevo" in page
    for outcome in ("pay", "reject", "cancel"):
        assert (await press(client, form, outcome))[0] == 410
    with pytest.raises(ValueError, match="expired"):
        await client.service.pay(form.payment_id)
    assert form.how is None
    assert is_form((await load(client, form, WALLET))[1])
    await clock.advance(599.9)
    await pressed(client, form, link=WALLET)
    assert form.how == "paid"


async def test_a_button_is_pressed_only_where_a_form_was_opened(client: Client) -> None:
    """Without the page of this very link there is nothing to post; what no page has decides nothing."""
    form = await client.form(email=None)
    assert "No autorizado" in (await press(client, form))[1]
    await load(client, form, WALLET)
    assert "No autorizado" in (await press(client, form))[1]
    assert "No autorizado" in (await client.send("POST", CARD + "x", headers={}))[1]
    for unknown in (CARD + "x", "/form/card"):
        assert (await client.get(unknown, headers=SHOP))[0] == 404
    await load(client, form)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    for data in (b"&".join([b"a=b"] * 30), b"outcome=", b"outcome=steal", b"\xff"):
        assert (await client.send("POST", CARD + form.payment_id, data=data, headers=headers))[0] == 400
    assert form.how is None


# The page


def tags_of(page: str) -> Counter[str]:
    """How often a page opens each tag; all but the empty ones are closed again."""
    opened, closed = (Counter(re.findall(pattern, page)) for pattern in (r"<(\w+)", r"</(\w+)"))
    assert {tag: times for tag, times in opened.items() if tag not in ("meta", "link", "input")} == closed
    return opened


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("es", "Servicio simulado: no se mueve dinero real|Pagar|Comercio|Motivo|Cancelar el pago"),
        ("en", "Simulated service: no real money moves|Pay|Merchant|Reference|Cancel the payment"),
    ],
)
async def test_the_page_shows_what_is_paid(language: str, words: str) -> None:
    """In either language: the money, the store, the reference, that nothing is real, and two ways out."""
    shown = f'USD 11.50|S1|Two coffees|form-1|value="cancel"|<html lang="{language}">'
    async with client_of(Settings(language_field="lang")) as client:
        form = await client.form(lang=language, reference="Two coffees")
        for link in (CARD, WALLET):
            _, page = await load(client, form, link)
            assert is_form(page)
            assert [word for word in f"{words}|{shown}".split("|") if word not in page] == []
            assert tags_of(page)["form"] == 2
            assert re.findall('(?:src|href|action)="(.*?)"', page) == ["/style.css"]
            assert 'name="viewport" content="width=device-width, initial-scale=1"' in page
            assert client.headers["Cache-Control"] == "no-store"
            assert client.headers["Referrer-Policy"] == "no-referrer"
            policy = client.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self';")
            assert "unsafe" not in policy
        for number, (amount, units) in enumerate({5: "0.05", 123456: "1234.56", -5: "-0.05"}.items(), 2):
            form = await client.form(
                number, amount=amount, amountWithTax=..., tax=..., tip=amount, lang=language
            )
            assert f">USD {units}<" in (await load(client, form))[1]


async def test_what_comes_from_outside_is_escaped(client: Client) -> None:
    """Neither the merchant's fields nor what was typed becomes markup."""
    evil = "<script>\"'&amp;</script>"
    fields = dict.fromkeys(["currency", "clientTransactionId", "storeId", "reference"], evil)
    form = await client.form(**fields, phoneNumber=None, email=None)
    _, page = await load(client, form)
    assert "script" not in tags_of(page)
    assert "&lt;script&gt;&quot;&#x27;&amp;amp;" in page
    await client.service.pay(form.payment_id)
    assert "script" not in tags_of((await load(client, form))[1])


async def test_the_form_asks_for_what_was_not_given(client: Client) -> None:
    """Phone, e-mail and document are asked for if they were not given (§2.3), and must then be there."""

    def inputs(page: str) -> list[str]:
        return [name for name in TYPED if f'name="{name}"' in page]

    assert inputs((await load(client, await client.form()))[1]) == []
    form = await client.form(email=None, documentId="")
    assert inputs((await load(client, form))[1]) == ["email", "documentId"]
    status, page = await press(client, form, email="ann@shop.example", documentId=" ")
    assert (status, is_form(page), form.how) == (400, False, None)
    assert await pressed(client, form, **{**TYPED, "phoneNumber": "+1555"})
    # What was given stays.
    assert {name: form.texts[name] for name in TYPED} == {**TYPED, "email": "ann@shop.example"}


# Paying, declining, cancelling


@pytest.mark.parametrize(("link", "method"), [(CARD, "card"), (WALLET, "wallet")])
async def test_a_paid_form_has_both_ids(client: Client, clock: ManualClock, link: str, method: str) -> None:
    """Pay accepts the payment and sends the browser to `responseUrl`, whose query is kept (§6)."""
    form = await client.form(
        responseUrl="https://shop.example/päid?cart=7#top", clientTransactionId="órder 1&2"
    )
    await load(client, form, link)
    await clock.advance(20)
    location = await pressed(client, form, outcome=None, link=link)
    assert (form.state, form.how, form.method, form.decided_at) == ("Aceptado", "paid", method, clock.time())
    assert type(form.transaction_id) is int
    assert location.startswith("https://shop.example/p%C3%A4id?cart=7&id=")
    parts = urlsplit(location)
    ids = [("id", str(form.transaction_id)), ("clientTransactionId", "órder 1&2")]
    assert (parse_qsl(parts.query), parts.fragment) == ([("cart", "7"), *ids], "top")
    assert (client.service.counts.forms_paid, client.service.counts.notifications_sent) == (1, 0)


async def test_what_is_not_paid_redirects_too(client: Client) -> None:
    """The X cancels and leads to `cancellationUrl` (§2.3), or to a page; afterwards neither link pays."""
    form = await client.form(email=None)
    for link in (CARD, WALLET):
        await load(client, form, link)
    assert await pressed(client, form, "cancel") == "https://shop.example/cancelled"
    assert (form.state, form.how, form.transaction_id) == ("Cancelado", "cancelled", None)
    for _, page in (await load(client, form, WALLET), await press(client, form, link=WALLET, **TYPED)):
        assert "fue cancelado" in page
        assert not is_form(page)
    other = await client.form(2, cancellationUrl=None)
    await load(client, other)
    status, page = await press(client, other, "cancel")
    assert (status, "fue cancelado" in page) == (200, True)
    # The merchant gets the same result for a rejected payment as for a paid one (§1), which asks for no data.
    declined = await client.form(3, email=None)
    await load(client, declined)
    location = await pressed(client, declined, "reject")
    assert location == f"https://shop.example/paid?id={declined.transaction_id}&clientTransactionId=form-3"
    assert (declined.state, declined.how) == ("Cancelado", "declined")
    assert "rechazado" in (await load(client, declined))[1]
    counts = client.service.counts
    assert (counts.forms_cancelled, counts.forms_declined, counts.forms_paid) == (2, 1, 0)
    # The parameters that a form adds are not shown (§6), so their names and the cancelled id can be set.
    changes = {
        "redirect_names": ["transaction", "order"], "returns_without_payment": True,
        "states": {"approved": "Cancelado"},
    }  # fmt: skip
    assert (await client.control("change_settings", changes=changes))[0] == 200
    paid, closed = await client.form(4), await client.form(5)
    address = await client.service.pay(paid.payment_id)
    assert address == f"https://shop.example/paid?transaction={paid.transaction_id}&order=form-4"
    assert paid.state == "Cancelado"
    address = await client.service.cancel_form(closed.payment_id) or ""
    assert address == "https://shop.example/cancelled?transaction=0&order=form-5"


async def test_a_payment_is_made_once_by_either_link(client: Client) -> None:
    """Two links, opened and pressed at once, make one payment; the others are told that it was made."""
    form = await client.form()
    links = [CARD, WALLET]
    for link in links:
        await load(client, form, link)
    pages = await asyncio.gather(*(press(client, form, link=link) for link in links * 5))
    assert sorted(status for status, _ in pages) == [200] * 9 + [303]
    assert sum("ya fue realizado" in page for _, page in pages) == 9
    for link in links:
        assert "ya fue realizado" in (await load(client, form, link))[1]
        assert "ya fue realizado" in (await press(client, form, "cancel", link))[1]
    assert client.service.counts.forms_paid == 1


# What the merchant sees of it


async def test_a_paid_form_is_found_by_both_ids(client: Client) -> None:
    """Unpaid there is no transaction to find; paid it is one, in the same row of ids as the sales."""
    sale_id = (await client.sell(sale_of()))[1]["transactionId"]
    form, cancelled = await client.form(2), await client.form(3)
    await client.service.cancel_form(cancelled.payment_id)
    for name in ("form-2", "form-3"):
        status, error = await client.get(f"/api/Sale/client/{name}")
        assert (status, error["errorCode"]) == (404, 20)
    await client.service.pay(form.payment_id)
    _, answer = await client.get(f"/api/Sale/{form.transaction_id}")
    paid = {"clientTransactionId": "form-2", "amount": 1150, "transactionStatus": "Aceptado"}
    assert paid.items() <= answer.items()
    assert await client.get("/api/Sale/client/form-2") == (200, [answer])
    assert form.transaction_id != sale_id
    again = await client.form(2)
    await client.service.pay(again.payment_id, declined=True)
    _, both = await client.get("/api/Sale/client/form-2")
    assert [one["transactionStatus"] for one in both] == ["Cancelado", "Aceptado"]
    # A push is answered there, and this is none.
    assert (await client.control("approve", sale=form.transaction_id))[0] == 404
