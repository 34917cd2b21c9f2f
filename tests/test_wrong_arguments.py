"""What a newcomer gets wrong is answered by an error that says what must be given."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import payclient
from payclient import PrepareRequest, SaleRequest
from payclient.simulator import Simulator
from test_ledger import url_of

SALE: dict[str, Any] = {
    "phone_number": "0984111222", "country_code": "593", "currency": "USD", "client_transaction_id": "order-17",
    "amount_with_tax": 1000, "tax": 150,
}  # fmt: skip
FORM = {name: value for name, value in SALE.items() if name not in ("phone_number", "country_code")}
PREPARE = PrepareRequest(**FORM, store_id="S1", response_url="https://shop.example/back")
ADDRESS = "https://pay.example"


def test_a_misspelt_option_is_open_trackers_own_error() -> None:
    """At the call, not at `async with`."""
    with pytest.raises(TypeError, match=r"open_tracker\(\) got an unexpected keyword argument 'ledgr'"):
        payclient.open_tracker(ADDRESS, "token", ledgr="memory:")  # type: ignore[call-arg]  # that is the test


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("schedule", r"a Schedule, such as Fixed\(5\) or Attentive\(\); int was given"),
        ("timeouts", r"Timeouts\(connect=10, total=30\); int was given"),
        ("profile", r"a ServiceProfile, a preset.s name or a file.s path; int was given"),
        ("token", ".* an async callable; int was given"),
    ],
)
async def test_a_setting_of_another_type_is_named(option: str, words: str) -> None:
    with pytest.raises(payclient.ConfigurationError, match=f"^{option} must be {words}$"):
        async with payclient.open_tracker(**{"base_url": ADDRESS, "token": "token", option: 5}):  # type: ignore[arg-type]
            pass


@pytest.mark.usefixtures("delays")
async def test_an_address_without_host_is_told_from_one_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the host that has no address, and says that nothing was sent."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with payclient.PaySession("https://pay.invalid", "token") as session:
        with pytest.raises(payclient.NotSentError) as caught:
            await session.sale(SaleRequest(**SALE))
    assert str(caught.value) == "no address found for pay.invalid (DNS); nothing was sent"


async def test_no_profile_is_the_documents() -> None:
    """As a setting that was left empty comes."""
    async with payclient.open_tracker("http://127.0.0.1:9", "token", profile=None) as tracker:
        assert tracker.profile is payclient.DOCUMENT
    assert payclient.PaySession(ADDRESS, "token", profile=None).profile is payclient.DOCUMENT


async def test_a_request_of_another_type_is_refused_before_anything() -> None:
    """Nothing is sent for a dict, for a form's request as a sale, or for a number as an id."""
    async with Simulator() as service, payclient.open_tracker(service.url, "token") as tracker:
        wrong: Any = tracker
        for request, kind in ((SALE, "dict"), (PREPARE, "PrepareRequest"), (None, "NoneType")):
            with pytest.raises(TypeError, match=f"^request must be a SaleRequest; {kind} was given$"):
                await wrong.sale(request)
        with pytest.raises(TypeError, match=r"^request must be a PrepareRequest; SaleRequest was given"):
            await wrong.prepare(SaleRequest(**SALE))
        with pytest.raises(TypeError, match=r"^client_transaction_id must be a str; int was given"):
            await wrong.find(17)
        assert service.counts.created == 0
        with pytest.raises(
            TypeError, match=r'^fault must be a Fault, such as Fault\("reset"\); str was given$'
        ):
            service.fail_next("reset")  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("identifier", ["order\0", "order\ud800", "x" * 5000])
async def test_what_no_ask_can_be_called_is_not_there(
    kind: str, identifier: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """As `/orders/%00` brings it: the ledger is not called unavailable, and no purchase unpaid."""
    url = await url_of(kind, request, tmp_path)
    async with payclient.open_tracker(ADDRESS, "token", ledger=url) as tracker:
        assert await tracker.find(identifier) is None
        assert await tracker.history(identifier) == []
        for key in (identifier, "order ", 17):
            with pytest.raises(payclient.InvalidRequestError, match=r"^purchase: must "):
                await tracker.purchase(key)  # type: ignore[arg-type]  # that is the test
