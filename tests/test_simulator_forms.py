"""Button/Prepare and the two form pages, asked over real HTTP; time is moved by hand."""

import asyncio
import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import control
from payclient.simulator import Form, ManualClock, Settings, Simulator
from test_simulator import JSON

BEARER = {"Authorization": "Bearer token-1"}
SHOP = {"Referer": "https://shop.example/"}
PREPARE = "/api/button/Prepare"
SAMPLE = json.loads((Path(__file__).parent / "samples" / "prepare_request.json").read_text(encoding="utf-8"))
TYPED = {"phoneNumber": "+593984111222", "email": "ann@shop.example", "documentId": "0102030405"}
QUERIES = Settings(
    status_by_transaction_id="/api/Sale/{transaction_id}",
    status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
)


def body_of(number: int = 1, /, **changes: Any) -> dict[str, object]:
    """A valid Button/Prepare with everything for which a form would ask; `...` takes a field out."""
    body: dict[str, object] = {
        "amount": 1150,
        "amountWithTax": 1000,
        "tax": 150,
        "currency": "USD",
        "clientTransactionId": f"order-{number}",
        "storeId": "S1",
        "responseUrl": "https://shop.example/paid",
        "cancellationUrl": "https://shop.example/cancelled",
        **TYPED,
    }
    return {name: value for name, value in {**body, **changes}.items() if value is not ...}


class Answered:
    """One answer: its status, headers and text."""

    def __init__(self, response: aiohttp.ClientResponse, text: str) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = text

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def location(self) -> str:
        assert self.status == 303, self.text
        return self.headers["Location"]

    @property
    def inputs(self) -> list[str]:
        return [name for name in TYPED if f'name="{name}"' in self.text]

    @property
    def is_form(self) -> bool:
        return 'value="pay"' in self.text


async def ask(method: str, url: str, **options: Any) -> Answered:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url, allow_redirects=False, **options) as response,
    ):
        return Answered(response, await response.text())


async def post(service: Simulator, body: object, **options: Any) -> Answered:
    return await ask("POST", service.url + PREPARE, **{"headers": BEARER, "json": body, **options})


class Prepared:
    """A prepared payment as the merchant knows it."""

    def __init__(self, service: Simulator, answer: dict[str, str]) -> None:
        self.id = answer["paymentId"]
        self.card = answer["payWithCard"]
        self.wallet = answer["payWithWallet"]
        self.form: Form = service.forms[self.id]


async def prepared(service: Simulator, body: object) -> Prepared:
    answered = await post(service, body)
    assert answered.status == 200, answered.text
    return Prepared(service, answered.json)


async def load(link: str, headers: dict[str, str] = SHOP) -> Answered:
    return await ask("GET", link, headers=headers)


async def press(link: str, outcome: str | None = "pay", **typed: str) -> Answered:
    return await ask("POST", link, data={**typed, **({} if outcome is None else {"outcome": outcome})})


def failing(answered: Answered) -> list[str]:
    assert answered.status == 400
    assert answered.json["errorCode"] == 800
    for entry in answered.json["errors"]:
        assert entry["errorCode"] == 0
        assert entry["errorDescriptions"]
    return [entry["message"] for entry in answered.json["errors"]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def service(clock: ManualClock) -> AsyncIterator[Simulator]:
    async with Simulator(clock=clock, settings=QUERIES) as simulator:
        yield simulator


# Preparing


async def test_a_valid_request_gives_an_id_and_two_links(service: Simulator, clock: ManualClock) -> None:
    """The sample is prepared: an id that nobody guesses, and a link for the wallet and for the card (§2.6)."""
    first, second = await post(service, SAMPLE), await post(service, SAMPLE)
    answer = first.json
    payment_id = answer["paymentId"]
    assert answer == {
        "paymentId": payment_id,
        "payWithWallet": f"{service.url}/form/wallet?paymentId={payment_id}",
        "payWithCard": f"{service.url}/form/card?paymentId={payment_id}",
    }
    assert len(payment_id) >= 20
    assert second.json["paymentId"] != payment_id
    form = service.forms[payment_id]
    assert (form.client_transaction_id, form.amount, form.currency) == (
        SAMPLE["clientTransactionId"],
        315,
        "USD",
    )
    assert (form.state, form.how, form.transaction_id, form.created_at) == (
        "Pendiente",
        None,
        None,
        clock.time(),
    )
    assert (service.counts.prepared, service.counts.created, service.counts.requests) == (2, 0, 2)


async def test_what_is_secret_is_not_in_a_repr(service: Simulator) -> None:
    """Who has the payment id has the links, and the cardholder's data is nobody's business."""
    payment = await prepared(service, body_of(reference="private"))
    for secret in (payment.id, "private", "shop.example/paid", *TYPED.values()):
        assert secret not in repr(payment.form)


async def test_without_a_bearer_token_nothing_is_prepared(service: Simulator) -> None:
    """Every request carries a bearer token and JSON (§5)."""
    assert (await post(service, body_of(), headers={})).status == 401
    plain = {**BEARER, "Content-Type": "text/plain"}
    assert failing(await post(service, None, json=None, data=b"{}", headers=plain)) == ["Content-Type"]
    assert (service.counts.prepared, service.counts.refused) == (0, 2)


@pytest.mark.parametrize("absent", [..., None, "", " "])
async def test_required_fields_are_named_together(service: Simulator, absent: object) -> None:
    """Each missing required field gives an entry of one error object (§2.3, §7.5)."""
    names = ["amount", "currency", "clientTransactionId", "storeId", "responseUrl"]
    found = failing(await post(service, body_of(**dict.fromkeys(names, absent))))
    assert found == names
    assert not service.forms


async def test_the_cardholders_data_may_be_null(service: Simulator) -> None:
    """null stands for an absent optional field, and an unknown field is nobody's fault."""
    changes = dict.fromkeys([*TYPED, "cancellationUrl", "reference", "order", "tip"])
    payment = await prepared(service, body_of(**changes, unheardOf=[1]))
    assert payment.form.cancellation_url is None
    assert not payment.form.texts.keys() & TYPED.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("amount", True),
        ("amount", "1150"),
        ("amount", 1150.0),
        ("tip", "0"),
        ("storeId", 7),
        ("email", 7),
        ("documentId", 102030405),
        ("optionalParameter", {}),
        ("timeZone", "-5"),
        ("lat", 1.5),
        ("order", []),
        ("responseUrl", 7),
        ("responseUrl", "shop.example/paid"),
        ("responseUrl", "https://"),
        ("responseUrl", "http://["),
        ("responseUrl", "https://shop.example:port/"),
        ("responseUrl", "https://shop.example/\r\nSet-Cookie: a=b"),
        ("cancellationUrl", "nowhere"),
        ("phoneNumber", "0984111222"),
        ("phoneNumber", "+0984111222"),
        ("phoneNumber", "+593 984111222"),
        ("phoneNumber", "+٥٩٣٩"),
        ("phoneNumber", ""),
        ("phoneNumber", 593984111222),
    ],
)
async def test_a_wrong_field_is_named(service: Simulator, field: str, value: object) -> None:
    """Types are as listed, a phone is `+`, country code and number, and an address is one (§2.3)."""
    assert failing(await post(service, body_of(**{field: value}))) == [field]


async def test_the_parts_of_the_sum(service: Simulator) -> None:
    """A wrong sum and a total without components fail as Amount; a mixed charge needs its tax (§2.1, §7.6)."""
    assert failing(await post(service, body_of(amount=1151))) == ["Amount"]
    assert failing(await post(service, body_of(amountWithTax=..., tax=...))) == ["Amount"]
    assert failing(await post(service, body_of(amountWithoutTax=150, tax=...))) == ["tax"]


async def test_the_order_is_checked_as_in_a_sale(service: Simulator) -> None:
    """Faults inside `order` (§2.4) are named by their path."""
    order = {"billTo": {"country": 593}, "lineItems": [{"quantity": "1"}]}
    names = failing(await post(service, body_of(order=order)))
    assert names == ["order.billTo.country", "order.lineItems[0].quantity"]


async def test_both_spellings_of_the_redirect_field_are_taken(service: Simulator) -> None:
    """Samples have `responseUrl` and `ResponseUrl` (§2.3)."""
    address = "https://shop.example/other"
    payment = await prepared(service, body_of(responseUrl=..., ResponseUrl=address))
    assert payment.form.response_url == address
    assert failing(await post(service, body_of(responseUrl=..., ResponseUrl="x"))) == ["responseUrl"]


async def test_the_name_of_the_language_parameter_is_a_setting() -> None:
    """With a name the parameter takes `en` and `es`; without one it is an unknown field (§2.3)."""
    async with Simulator(settings=Settings(language_field="lang")) as service:
        for given_language, language in (("en", "en"), ("es", "es"), (..., "es"), (None, "es")):
            assert (await prepared(service, body_of(lang=given_language))).form.language == language
        assert failing(await post(service, body_of(lang="fr"))) == ["lang"]
        assert failing(await post(service, body_of(lang=1))) == ["lang"]
    async with Simulator() as service:
        assert (await prepared(service, body_of(lang="en"))).form.language == "es"


async def test_the_wallet_links_name_is_a_setting() -> None:
    """The wallet link's field carries the service's brand in its real name (§2.6)."""
    async with Simulator(settings=Settings(wallet_link_field="payWithBrand")) as service:
        answer = (await post(service, body_of())).json
        assert list(answer) == ["paymentId", "payWithBrand", "payWithCard"]


async def test_a_transactions_id_is_refused_where_the_service_has_a_code_for_it() -> None:
    """With `duplicate_code` an id that has a transaction is refused; one that was only prepared is free."""
    async with Simulator(settings=Settings(duplicate_code=23)) as service:
        await prepared(service, body_of(1))
        payment = await prepared(service, body_of(1))
        await service.pay(payment.id)
        answered = await post(service, body_of(1))
        assert (answered.status, answered.json["errorCode"]) == (400, 23)
        sale = {**body_of(1), "phoneNumber": "0984111222", "countryCode": "593"}
        answered = await ask("POST", service.url + "/api/Sale", headers=BEARER, json=sale)
        assert answered.json["errorCode"] == 23


_FIELDS = st.sampled_from(
    [*body_of(), "ResponseUrl", "reference", "lang", "order", "tip", "optionalParameter"]
)
_ADDRESSES = st.text().map(lambda text: "https://shop.example/" + text) | st.text().map("https://".__add__)


@given(
    changes=st.lists(st.dictionaries(_FIELDS, JSON | _ADDRESSES), max_size=5),
    others=st.lists(JSON, max_size=3),
)
@hypothesis_settings(max_examples=60, deadline=None)
async def test_no_json_crashes_prepare_or_its_form(
    changes: list[dict[str, object]], others: list[object]
) -> None:
    """Whatever JSON arrives, the answer is a payment or an error object, and every payment can be made."""
    async with Simulator(clock=ManualClock(), settings=Settings(language_field="lang")) as service:
        bodies = [body_of(**change) for change in changes] + others
        for body in bodies:
            answered = await post(service, body)
            assert answered.status in {200, 400}
            assert ("paymentId" in answered.json) != ("errorCode" in answered.json)
            if "paymentId" in answered.json:
                link = answered.json["payWithCard"]
                assert (await load(link)).is_form
                assert (await press(link, **TYPED)).location.isascii()
        counts = service.counts
        assert counts.prepared + counts.refused == counts.requests == len(bodies)
        assert counts.forms_paid == counts.prepared


# Who may open a form


@pytest.mark.parametrize("link", ["card", "wallet"])
@pytest.mark.parametrize(
    "referrer", [None, "", "shop.example", "about:blank", "http://[", "file:///a", "\udcff"]
)
async def test_a_form_does_not_open_without_a_referrer(
    service: Simulator, link: str, referrer: str | None
) -> None:
    """A link that is opened directly shows the access-denied page (§4, §7.7) and starts no ten minutes."""
    payment = await prepared(service, body_of())
    headers = {} if referrer is None else {"Referer": referrer}
    page = await load(getattr(payment, link), headers)
    assert page.status == 200
    assert "No autorizado" in page.text
    assert service.log[-1].text.endswith(", denied: no referrer came")  # its status may well be 200
    assert "Not authorized" in page.text
    assert not page.is_form
    assert "order-1" not in page.text
    assert payment.form.deadlines == {}


@pytest.mark.parametrize(
    ("referrer", "opens"),
    [
        ("https://shop.example", True),
        ("https://SHOP.example:8443/cart?a=b", True),
        ("http://shop.example/", True),
        ("https://other.example/", False),
        ("https://www.shop.example/", False),
        ("https://shop.example.other.example/", False),
        ("https://shop.example@other.example/", False),
        ("https://<b>.example/", False),
    ],
)
async def test_only_a_registered_domain_opens_a_form(referrer: str, opens: bool) -> None:
    """The form opens from the registered host alone (§4)."""
    settings = Settings(registered_domains=frozenset({"shop.example"}))
    async with Simulator(settings=settings) as service:
        payment = await prepared(service, body_of())
        page = await load(payment.card, {"Referer": referrer})
        assert (page.is_form, page.status) == (opens, 200)
        assert "<b>" not in page.text


async def test_a_button_is_pressed_only_where_a_form_was_opened(service: Simulator) -> None:
    """Without the page of this very link there is nothing to post."""
    payment = await prepared(service, body_of())
    assert "No autorizado" in (await press(payment.card)).text
    await load(payment.wallet)
    assert "No autorizado" in (await press(payment.card)).text
    assert "No autorizado" in (await press(f"{service.url}/form/card?paymentId=x")).text
    assert payment.form.how is None


async def test_an_unknown_payment_has_no_form(service: Simulator) -> None:
    """A link with a wrong or no payment id, or of another method, says so."""
    for path in ("/form/card?paymentId=x", "/form/card", "/form/wallet?paymentId=%FF"):
        page = await load(service.url + path)
        assert (page.status, page.is_form) == (404, False)
        assert "no existe" in page.text
    assert (await load(service.url + "/form/cash?paymentId=x")).status == 404


# The ten minutes


async def test_each_link_lives_ten_minutes_from_its_own_first_load(
    service: Simulator, clock: ManualClock
) -> None:
    """Before its load a link waits, a reload adds nothing, and the other link has its own time (§8)."""
    payment = await prepared(service, body_of())
    await clock.advance(86_400)
    assert (await load(payment.card)).is_form
    await clock.advance(599)
    clock.jump_wall(86_400)
    assert (await load(payment.card)).is_form
    assert (await ask("HEAD", payment.wallet, headers=SHOP)).status == 405
    await clock.advance(1)
    page = await load(payment.card)
    assert (page.status, page.is_form) == (410, False)
    assert "uno nuevo" in page.text
    for outcome in ("pay", "reject", "cancel"):
        assert (await press(payment.card, outcome)).status == 410
    with pytest.raises(ValueError, match="expired"):
        await service.pay(payment.id)
    assert payment.form.how is None
    assert (await load(payment.wallet)).is_form
    await clock.advance(599.9)
    assert (await press(payment.wallet)).location
    assert payment.form.how == "paid"


async def test_the_window_is_a_setting(clock: ManualClock) -> None:
    """Demos and tests shorten the ten minutes."""
    async with Simulator(clock=clock, settings=Settings(form_window=5)) as service:
        payment = await prepared(service, body_of())
        await load(payment.card)
        await clock.advance(5)
        assert (await load(payment.card)).status == 410


# The page


class _Checker(HTMLParser):
    """Notes what a page loads, and the tags that are open at its end."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "link", "input"}:
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "action"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("language", "words"),
    [
        (
            "es",
            ["Servicio simulado: no se mueve dinero real", "Pagar", "Comercio", "Motivo", "Cancelar el pago"],
        ),
        (
            "en",
            ["Simulated service: no real money moves", "Pay", "Merchant", "Reference", "Cancel the payment"],
        ),
    ],
)
async def test_the_page_shows_what_is_paid(language: str, words: list[str]) -> None:
    """In either language: the money, the store, the reference, that nothing is real, and two ways out."""
    async with Simulator(settings=Settings(language_field="lang")) as service:
        payment = await prepared(service, body_of(lang=language, reference="Two coffees"))
        for link in (payment.card, payment.wallet):
            page = await load(link)
            assert page.is_form
            assert f'<html lang="{language}">' in page.text
            for word in [*words, "USD 11.50", "S1", "Two coffees", "order-1", 'value="cancel"']:
                assert word in page.text
            checker = _Checker(page.text)
            assert (checker.addresses, checker.open) == (["/style.css"], [])
            assert 'name="viewport" content="width=device-width, initial-scale=1"' in page.text
            assert page.headers["Cache-Control"] == "no-store"
            assert page.headers["Referrer-Policy"] == "no-referrer"
            policy = page.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; style-src 'self';")
            assert "unsafe" not in policy


async def test_what_comes_from_outside_is_escaped(service: Simulator) -> None:
    """Neither the merchant's fields nor what was typed becomes markup."""
    evil = "<script>\"'&amp;</script>"
    fields = dict.fromkeys(["currency", "clientTransactionId", "storeId", "reference"], evil)
    payment = await prepared(service, body_of(**fields, phoneNumber=None, email=None))
    for page in (await load(payment.card), await press(payment.card, email=f'">{evil}')):
        assert "script" not in _Checker(page.text).tags
        assert "&lt;script&gt;&quot;&#x27;&amp;amp;" in page.text
    assert 'value="&quot;&gt;' in page.text
    await service.pay(payment.id)
    assert "script" not in _Checker((await load(payment.card)).text).tags


@pytest.mark.parametrize(
    ("amount", "shown"), [(5, "USD 0.05"), (100, "USD 1.00"), (123456, "USD 1234.56"), (-5, "USD -0.05")]
)
async def test_cents_are_shown_in_units(service: Simulator, amount: int, shown: str) -> None:
    """Amounts are cents (§1), and the page shows units."""
    payment = await prepared(service, body_of(amount=amount, amountWithTax=..., tax=..., tip=amount))
    assert f">{shown}<" in (await load(payment.card)).text


async def test_the_form_asks_for_what_was_not_given(service: Simulator) -> None:
    """Phone, e-mail and document are asked for if they were not given (§2.3), and must then be there."""
    assert (await load((await prepared(service, body_of())).card)).inputs == []
    payment = await prepared(service, body_of(email=None, documentId=""))
    assert (await load(payment.card)).inputs == ["email", "documentId"]
    page = await press(payment.card, email="ann@shop.example", documentId=" ")
    assert (page.status, page.is_form) == (400, True)
    assert "Complete los datos que faltan" in page.text
    assert 'value="ann@shop.example"' in page.text
    assert payment.form.how is None
    assert (await press(payment.card, **{**TYPED, "phoneNumber": "+1555"})).location
    # What was given stays.
    assert {name: payment.form.texts[name] for name in TYPED} == {**TYPED, "email": "ann@shop.example"}


# Paying, declining, cancelling


@pytest.mark.parametrize("method", ["card", "wallet"])
async def test_a_paid_form_redirects_with_both_ids(
    service: Simulator, clock: ManualClock, method: str
) -> None:
    """Pay accepts the payment and sends the browser to `responseUrl`, whose query is kept (§6)."""
    body = body_of(responseUrl="https://shop.example/päid?cart=7#top", clientTransactionId="órder 1&2")
    payment = await prepared(service, body)
    await load(getattr(payment, method))
    await clock.advance(20)
    location = (await press(getattr(payment, method), outcome=None)).location
    form = payment.form
    assert (form.state, form.how, form.method, form.decided_at) == ("Aceptado", "paid", method, clock.time())
    assert type(form.transaction_id) is int
    assert location.startswith("https://shop.example/p%C3%A4id?cart=7&id=")
    parts = urlsplit(location)
    assert parse_qsl(parts.query) == [
        ("cart", "7"),
        ("id", str(form.transaction_id)),
        ("clientTransactionId", "órder 1&2"),
    ]
    assert parts.fragment == "top"
    assert (service.counts.forms_paid, service.counts.notifications_sent) == (1, 0)


async def test_a_declined_payment_redirects_to_the_merchant_too(service: Simulator) -> None:
    """The merchant gets the same result for a rejected payment (§1), which asks for no data."""
    payment = await prepared(service, body_of(email=None))
    await load(payment.card)
    location = (await press(payment.card, "reject")).location
    assert (
        location == f"https://shop.example/paid?id={payment.form.transaction_id}&clientTransactionId=order-1"
    )
    assert (payment.form.state, payment.form.how) == ("Cancelado", "declined")
    assert (service.counts.forms_declined, service.counts.forms_paid) == (1, 0)
    assert "rechazado" in (await load(payment.card)).text


async def test_the_x_redirects_to_the_cancellation_address(service: Simulator) -> None:
    """The X cancels and leads to `cancellationUrl` (§2.3); afterwards neither link pays."""
    payment = await prepared(service, body_of(email=None))
    await load(payment.card)
    await load(payment.wallet)
    assert (await press(payment.card, "cancel")).location == "https://shop.example/cancelled"
    form = payment.form
    assert (form.state, form.how, form.transaction_id) == ("Cancelado", "cancelled", None)
    for page in (await load(payment.wallet), await press(payment.wallet, **TYPED)):
        assert "fue cancelado" in page.text
        assert not page.is_form
    assert (service.counts.forms_cancelled, service.counts.forms_paid) == (1, 0)


async def test_without_a_cancellation_address_the_x_says_that_it_cancelled(service: Simulator) -> None:
    """`cancellationUrl` is optional (§2.3); without it the customer stays on a page that says it."""
    payment = await prepared(service, body_of(cancellationUrl=None))
    await load(payment.card)
    page = await press(payment.card, "cancel")
    assert page.status == 200
    assert "fue cancelado" in page.text
    assert await service.cancel_form((await prepared(service, body_of(2, cancellationUrl=None))).id) is None


async def test_a_payment_is_made_once_by_either_link(service: Simulator) -> None:
    """Two links, opened and pressed at once, make one payment; the others are told that it was made."""
    payment = await prepared(service, body_of())
    links = [payment.card, payment.wallet]
    for link in links:
        await load(link)
    pages = await asyncio.gather(*(press(link) for link in links * 5))
    assert sorted(page.status for page in pages) == [200] * 9 + [303]
    assert sum("ya fue realizado" in page.text for page in pages) == 9
    for link in links:
        assert "ya fue realizado" in (await load(link)).text
        assert "ya fue realizado" in (await press(link, "cancel")).text
    assert service.counts.forms_paid == 1


@pytest.mark.parametrize(
    "data", [b"&".join(b"a=b" for _ in range(30)), b"outcome=", b"outcome=steal", b"\xff"]
)
async def test_what_cannot_be_read_decides_nothing(service: Simulator, data: bytes) -> None:
    """A post of the form that no page has is answered with a page, and nothing is paid by mistake."""
    payment = await prepared(service, body_of(email=None))
    await load(payment.card)
    page = await ask(
        "POST", payment.card, data=data, headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert page.status == 400
    assert payment.form.how is None


async def test_the_parameters_of_the_redirects_are_settings() -> None:
    """The parameters that a form adds are not shown (§6), so their names and the cancelled id can be set."""
    settings = Settings(
        redirect_names=("transaction", "order"),
        returns_without_payment=True,
        states={"approved": "Cancelado"},
    )
    async with Simulator(settings=settings) as service:
        first = await prepared(service, body_of(1))
        address = await service.pay(first.id)
        assert address == f"https://shop.example/paid?transaction={first.form.transaction_id}&order=order-1"
        assert first.form.state == "Cancelado"
        second = await prepared(service, body_of(2))
        cancelled = await service.cancel_form(second.id)
        assert cancelled == "https://shop.example/cancelled?transaction=0&order=order-2"


async def test_a_test_pays_without_a_browser(service: Simulator) -> None:
    """`pay` and `cancel_form` stand for a customer who opens the link; what cannot be is an error."""
    payment = await prepared(service, body_of(email=None))
    await service.pay(payment.id, method="wallet", declined=True)
    assert (payment.form.how, payment.form.method) == ("declined", "wallet")
    with pytest.raises(ValueError, match="already declined"):
        await service.pay(payment.id)
    with pytest.raises(ValueError, match="already declined"):
        await service.cancel_form(payment.id)
    with pytest.raises(LookupError, match="payment id"):
        await service.pay("x")
    with pytest.raises(ValueError, match="wallet, card"):
        await service.pay(payment.id, "cash")  # type: ignore[arg-type]


# What the merchant sees of it


async def test_a_paid_form_is_found_by_both_ids(service: Simulator) -> None:
    """Unpaid there is no transaction to find; paid it is one, in the same row of ids as the sales."""

    async def status(path: str) -> Answered:
        return await ask("GET", f"{service.url}/api/Sale/{path}", headers=BEARER)

    sale = {**body_of(1), "phoneNumber": "0984111222", "countryCode": "593"}
    sale_id = (await ask("POST", service.url + "/api/Sale", headers=BEARER, json=sale)).json["transactionId"]
    payment, cancelled = await prepared(service, body_of(2)), await prepared(service, body_of(3))
    await service.cancel_form(cancelled.id)
    for name in ("order-2", "order-3"):
        page = await status(f"client/{name}")
        assert (page.status, page.json["errorCode"]) == (404, 20)
    await service.pay(payment.id)
    answer = {
        "transactionId": payment.form.transaction_id,
        "clientTransactionId": "order-2",
        "amount": 1150,
        "currency": "USD",
        "transactionStatus": "Aceptado",
        "statusCode": 3,
    }
    assert payment.form.transaction_id != sale_id
    assert (await status("client/order-2")).json == [answer]
    assert (await status(str(payment.form.transaction_id))).json == answer
    again = await prepared(service, body_of(2))
    await service.pay(again.id, declined=True)
    states = [one["transactionStatus"] for one in (await status("client/order-2")).json]
    assert states == ["Cancelado", "Aceptado"]
    # A push is answered there, and this is none.
    assert (await control.call(service.url, "approve", sale=payment.form.transaction_id))[0] == 404


async def test_another_process_lists_the_forms(service: Simulator) -> None:
    """The control surface says what became of each payment, with its id, but gives away no contact data."""
    payment = await prepared(service, body_of(1))
    await prepared(service, body_of(2))
    await load(payment.wallet)
    await service.pay(payment.id)
    _, (first, second) = await control.call(service.url, "forms")
    assert first == payment.form.as_json()
    assert (first["payment_id"], first["how"], first["method"]) == (payment.id, "paid", "card")
    assert (first["loaded"], first["transaction_id"]) == (["card", "wallet"], payment.form.transaction_id)
    assert (second["how"], second["state"], second["transaction_id"]) == (None, "Pendiente", None)
    for secret in (*TYPED.values(), "shop.example"):
        assert secret not in json.dumps([first, second])
    _, counts = await control.call(service.url, "counts")
    assert (counts["prepared"], counts["forms_paid"], counts["requests"]) == (2, 1, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"registered_domains": frozenset({"https://shop.example"})},
        {"registered_domains": frozenset({"shop.example:8000"})},
        {"registered_domains": frozenset({"Shop.example"})},
        {"wallet_link_field": "payWithCard"},
        {"wallet_link_field": ""},
        {"form_window": 0},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    """A domain is a host in small letters, and the wallet link needs a name of its own."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
