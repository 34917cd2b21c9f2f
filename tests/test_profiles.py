"""The preset: what it names, and that it is found by its name wherever a profile is taken."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import payclient
from fake_service import Scripted, answer, refusal
from payclient.cli.settings import ServiceOptions, profile_of
from payclient.errors import ConfigurationError
from payclient.profile import DOCUMENT, PAYPHONE, PRESETS, ServiceProfile, find_profile
from payclient.session import PaySession
from payclient.wire import encode_prepare, encode_sale

SHOP = 'name = "shop"\nnick_name_flag = "byNickName"\n'


def test_a_profile_is_found_by_itself_by_name_and_by_path(tmp_path: Path) -> None:
    """Everywhere a profile is taken, a preset's name or a path does."""
    path = tmp_path / "shop.toml"
    path.write_text(SHOP, encoding="utf-8")
    shop = ServiceProfile.load(path)
    assert find_profile(shop) is shop
    assert find_profile(path) == shop
    assert find_profile(os.fspath(path)) == shop
    for name, profile in (("document", DOCUMENT), ("payphone", PAYPHONE)):
        assert find_profile(name) is profile
        assert profile_of(name) is profile
        assert PaySession("https://pay.example", "token", profile=name).profile is profile


def test_a_name_of_nothing_is_told_the_presets(tmp_path: Path) -> None:
    """A slip of the pen is neither a preset nor a file; a file that is wrong is told what is wrong with it."""
    with pytest.raises(ConfigurationError, match=r"FileNotFoundError; the presets are document, payphone$"):
        find_profile("payfone")
    path = tmp_path / "shop.toml"
    path.write_text("name = 5", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"^profile setting name: must be a text$"):
        find_profile(path)


def test_a_preset_is_called_as_it_calls_itself() -> None:
    assert [profile.name for profile in PRESETS.values()] == list(PRESETS)


def test_a_preset_needs_no_address() -> None:
    """It knows its service's; another one, such as a simulator's, may be given."""
    real = "https://pay.payphonetodoesposible.com"
    assert PaySession(None, "token", profile="payphone").base_url == real
    assert PaySession("http://127.0.0.1:1", "token", profile="payphone").base_url == "http://127.0.0.1:1"
    environ = {"PAYCLIENT_TOKEN": "token", "PAYCLIENT_PROFILE": "payphone"}
    assert PaySession.from_env(environ).base_url == real
    assert ServiceOptions(profile="payphone").address() == real
    with pytest.raises(
        ConfigurationError, match=r"^base_url must be given, because the profile names no address$"
    ):
        PaySession(None, "token")


def sale(**fields: Any) -> dict[str, Any]:
    good = {
        "country_code": "593",
        "currency": "USD",
        "client_transaction_id": "order-1",
        "amount_without_tax": 100,
    }
    request = payclient.SaleRequest(**(good | fields))  # type: ignore[arg-type]  # any field, also a bad one
    return json.loads(encode_sale(request, PAYPHONE).body)  # type: ignore[no-any-return]  # an object


def test_names_are_the_services() -> None:
    """A nick name without a phone; the language of a form."""
    assert sale(by_nick_name=True, nick_name="ann") == {
        "countryCode": "593", "currency": "USD", "clientTransactionId": "order-1", "amount": 100,
        "amountWithoutTax": 100, "chargeByNickName": True, "nickName": "ann",
    }  # fmt: skip
    request = payclient.PrepareRequest(
        currency="USD", client_transaction_id="form-1", store_id="S1", response_url="https://shop.example/back",
        amount_without_tax=100, language="en",
    )  # fmt: skip
    body = json.loads(encode_prepare(request, PAYPHONE).body)
    assert (body["lang"], body["responseUrl"]) == ("en", "https://shop.example/back")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"amount_without_tax": 100_000_000}, "Amount"), ({"amount_without_tax": 0}, "Amount"),
        ({"tip": 100_000_000}, "tip"), ({"time_zone": -13}, "timeZone"), ({"time_zone": 15}, "timeZone"),
        ({"client_transaction_id": "x" * 51}, "clientTransactionId"), ({"reference": "x" * 101}, "reference"),
    ],
)  # fmt: skip
def test_lengths_and_ranges_are_checked_before_anything_is_sent(fields: dict[str, Any], name: str) -> None:
    """In the shape of the service's own code 800."""
    with pytest.raises(payclient.InvalidRequestError) as caught:
        sale(phone_number="0984111222", **fields)
    assert name in [detail.message for detail in caught.value.errors]


@pytest.mark.parametrize(
    ("word", "number", "state"),
    [("Pending", 1, "Pendiente"), ("Canceled", 2, "Cancelado"), ("Approved", 3, "Aceptado")],
)
async def test_state_words_numbers_and_paths_are_the_services(word: str, number: int, state: str) -> None:
    """An object by transaction id, an array by client transaction id; a number that says otherwise makes no state."""
    said = {"transactionId": 7, "clientTransactionId": "order-1", "transactionStatus": word}
    service = Scripted(
        *(answer(200, said | {"statusCode": code}) for code in (1, 2, 3)),
        answer(200, [said | {"statusCode": number}]),
        refusal(20, status=404),
    )
    async with PaySession(None, "token", profile="payphone", transport=service) as session:
        for code in (1, 2, 3):
            report = await session.status(transaction_id=7)
            assert report is not None
            assert report.state == (state if code == number else None)
        report = await session.status(client_transaction_id="order 1")
        assert report is not None
        assert report.state == state
        assert await session.status(client_transaction_id="form-1") is None, "an unpaid form"
    assert [request.path for request in service.requests][2:4] == [
        "/api/Sale/7",
        "/api/Sale/client/order%201",
    ]
    assert service.requests[0].headers == {"Authorization": "Bearer token", "Accept-Language": "es"}
