"""What is given to sessions and trackers, by arguments or the environment; what is wrong is told by what must be."""

from __future__ import annotations

import inspect
import os
import pydoc
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import payclient
import payclient.sync
from fake_service import sale
from payclient import PaySession, PrepareRequest, SaleRequest
from payclient.ledger import archive_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.simulator import PAYPHONE, Simulator, SimulatorThread
from payclient.telemetry import instrument
from payclient.tracking.context import TrackerOptions
from payclient.web import redirect_page, waiting_page
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
        ("connector", "an aiohttp connector; int was given"),
        ("transport", "an async function; int was given"),
        ("on_exchange", "a function; int was given"),
        ("status", "an async function of a TransactionRef; int was given"),
        ("clock", "a Clock, such as a simulator's; int was given"),
        ("keep_links", "True or False; int was given"),
        ("create", "True or False; int was given"),
        ("proxy", "a URL such as http://proxy.example:3128"),
        ("token", ".* an async callable; int was given"),
    ],
)
async def test_a_setting_of_another_type_is_named(option: str, words: str) -> None:
    with pytest.raises(payclient.ConfigurationError, match=f"^{option} must be {words}$"):
        async with payclient.open_tracker(**{"base_url": ADDRESS, "token": "token", option: 5}):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("option", ["schedule", "clock"])
async def test_a_function_is_no_schedule_and_no_clock(option: str) -> None:
    """It lacks what is called on every query: each would log an error."""
    with pytest.raises(payclient.ConfigurationError, match=f"^{option} must be a .*; function was given$"):
        async with payclient.open_tracker(**{"base_url": ADDRESS, "token": "token", option: lambda _: 5.0}):  # type: ignore[arg-type]
            pass


async def test_a_setting_of_the_tracker_that_is_refused_leaves_the_ledger_closed(tmp_path: Path) -> None:
    """Else the next one would find it in use."""
    url = f"sqlite:{tmp_path / 'charges.db'}"
    with pytest.raises(payclient.ConfigurationError, match=r"^drain must be "):
        async with payclient.open_tracker(ADDRESS, "token", ledger=url, drain=-1.0):
            pass
    async with payclient.open_tracker(ADDRESS, "token", ledger=url):
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


#: What is called with 5j in the place of one argument, which is named.
CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "request of sale": lambda tracker, _, wrong: PaySession(ADDRESS, "token").sale(wrong),
    "request of prepare": lambda tracker, _, wrong: PaySession(ADDRESS, "token").prepare(wrong),
    "timeouts": lambda tracker, _, wrong: PaySession(ADDRESS, "token").sale(sale(), timeouts=wrong),
    "session": lambda tracker, _, wrong: payclient.Tracker(wrong, MemoryLedger()),
    "ledger": lambda tracker, _, wrong: payclient.Tracker(PaySession(ADDRESS, "token"), wrong),
    "beside_open_form": lambda tracker, _, wrong: tracker.sale(sale("another"), beside_open_form=wrong),
    "notification": lambda tracker, _, wrong: tracker.notify(wrong),
    "pending of cancel": lambda tracker, _, wrong: tracker.cancel(wrong),
    "pending of reverse": lambda tracker, _, wrong: tracker.reverse(wrong),
    "make_request": lambda tracker, _, wrong: tracker.live_form("cart", wrong),
    "margin": lambda tracker, _, wrong: tracker.live_form("cart", lambda _: PREPARE, margin=wrong),
    "as_": lambda tracker, _, wrong: tracker.resolve("order-17", as_=wrong, actor="A", reason="seen"),
    "actor": lambda tracker, _, wrong: tracker.resolve("order-17", as_="refused", actor=wrong, reason="seen"),
    "reason": lambda tracker, _, wrong: tracker.resolve("order-17", as_="refused", actor="A", reason=wrong),
    "timeout": lambda _, pending, wrong: pending.wait(wrong),
    "pending of as_decided": lambda _, pending, wrong: anext(payclient.as_decided([pending, wrong])),
    "tracker": lambda tracker, _, wrong: payclient.charge_all(wrong, []),
    "requests": lambda tracker, _, wrong: payclient.charge_all(tracker, wrong),
    "max_in_flight": lambda tracker, _, wrong: payclient.charge_all(tracker, [], max_in_flight=wrong),
    "max_pending": lambda tracker, _, wrong: payclient.charge_all(tracker, [], max_pending=wrong),
    "rate": lambda tracker, _, wrong: payclient.charge_all(tracker, [], rate=wrong),
    "wait": lambda tracker, _, wrong: payclient.charge_all(tracker, [], wait=wrong),
    "retry": lambda tracker, _, wrong: payclient.charge_all(tracker, [], retry=wrong),
    "body": lambda *_: payclient.parse_notification(body="id=1"),  # type: ignore[arg-type]  # that is the test
    "body of an external one": lambda tracker, _, wrong: payclient.parse_external_notification(wrong),
    "base": lambda tracker, _, wrong: payclient.notification_url(wrong, "order-17", "s" * 16),
    "client_transaction_id": lambda tracker, _, wrong: payclient.notification_url(ADDRESS, wrong, "s" * 16),
    "settings": lambda tracker, _, wrong: payclient.ServiceProfile.parse(wrong),
    "before": lambda tracker, _, wrong: archive_ledger("sqlite:charges.db", wrong, "archive.jsonl"),
    "link": lambda tracker, _, wrong: redirect_page(wrong),
    "status_url": lambda _, pending, wrong: waiting_page(pending, wrong),
    "tracker of instrument": lambda tracker, _, wrong: instrument(wrong),
}


@pytest.mark.parametrize("name", CALLS)
async def test_an_argument_of_another_type_is_named(name: str) -> None:
    """Before anything is sent: nobody wonders in which line of payclient an attribute lacks."""
    async with Simulator() as service, payclient.open_tracker(service.url, "token") as tracker:
        pending = await tracker.sale(SaleRequest(**SALE))
        with pytest.raises((TypeError, payclient.ConfigurationError), match=f"^{name.split()[0]} must be "):
            found = CALLS[name](tracker, pending, 5j)
            await found
        assert service.counts.created == 1
        assert service.counts.prepared == 0


@pytest.mark.parametrize("name", ["pending of cancel", "pending of reverse", "make_request"])
def test_so_it_is_in_blocking_code(name: str) -> None:
    with SimulatorThread() as service, payclient.sync.open_tracker(service.url, "token") as tracker:
        with pytest.raises(TypeError, match=f"^{name.split()[0]} must be a "):
            CALLS[name](tracker, None, 5j)
        with pytest.raises(TypeError, match=r"^pending must be a PendingSale; complex was given$"):
            next(payclient.sync.as_decided([5j]))  # type: ignore[list-item]  # that is the test
        with pytest.raises(TypeError, match=r"^requests must be a Iterable; complex was given$"):
            payclient.sync.charge_all(tracker, 5j)  # type: ignore[arg-type]  # that is the test
        with pytest.raises(TypeError, match=r"^tracker must be a Tracker; complex was given$"):
            payclient.sync.charge_all(5j, [])  # type: ignore[arg-type]  # that is the test


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


# --- The environment's variables

TOKEN = "secret-of-the-environment"
ENVIRON = {
    "PAYCLIENT_BASE_URL": "https://pay.example",
    "PAYCLIENT_TOKEN": TOKEN,
    "PAYCLIENT_PROFILE": "payphone",
    "PAYCLIENT_LEDGER": "memory:",
}


async def test_a_tracker_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, token, profile and ledger are those of the process's environment."""
    async with Simulator(token=TOKEN, settings=PAYPHONE) as service:
        for name, value in (ENVIRON | {"PAYCLIENT_LEDGER": f"sqlite:{tmp_path}/a.db"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PAYCLIENT_BASE_URL", service.url)
        async with payclient.open_tracker_from_env() as tracker:
            assert tracker.profile is payclient.PAYPHONE
            assert (await tracker.sale(sale("order-1"))).state is payclient.State.PENDING
        assert (tmp_path / "a.db").exists()


async def test_the_token_of_a_file_is_read_again(tmp_path: Path) -> None:
    """After a 401 of a status query; it goes before PAYCLIENT_TOKEN."""
    file = tmp_path / "token"
    file.write_text("the-first\n", encoding="utf-8")
    async with Simulator(token="the-first", settings=PAYPHONE) as service:
        environ = ENVIRON | {"PAYCLIENT_BASE_URL": service.url, "PAYCLIENT_TOKEN_FILE": str(file)}
        async with payclient.open_tracker_from_env(environ) as tracker:
            pending = await tracker.sale(sale("order-1"))
            service.token = "the-second"
            file.write_text("the-second\n", encoding="utf-8")
            assert (await pending.check()).state is payclient.State.PENDING
            assert (await tracker.sale(sale("order-2", "0984111223"))).state is payclient.State.PENDING


def test_blocking_code_has_it_too() -> None:
    """The same settings without `await`; a fault comes when it is opened."""
    with (
        pytest.raises(payclient.ConfigurationError, match=r"^PAYCLIENT_TOKEN is not set"),
        payclient.sync.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN": ""}),
    ):
        pass


@pytest.mark.parametrize("name", ["PAYCLIENT_BASE_URL", "PAYCLIENT_TOKEN", "PAYCLIENT_LEDGER"])
@pytest.mark.parametrize("value", ["", None])
def test_a_variable_that_lacks_is_named(name: str, value: str | None) -> None:
    """Missing or empty, with no other's value shown; a ledger in memory must be written."""
    environ = {key: text for key, text in ENVIRON.items() if key != name} | (
        {} if value is None else {name: value}
    )
    environ["PAYCLIENT_PROFILE"] = "document"  # the preset has an address
    with pytest.raises(payclient.ConfigurationError, match=f"^{name} is not set") as caught:
        payclient.open_tracker_from_env(environ)
    assert TOKEN not in str(caught.value)
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)][1:]  # but the test's own
    assert TOKEN not in repr(frames)


def test_the_variables_are_not_shown_by_the_frames_of_a_session() -> None:
    """An error tracker would send every secret of the process with a setting that is misspelt."""
    environ = {**ENVIRON, "PAYCLIENT_PROFILE": "payfone"}
    with pytest.raises(payclient.ConfigurationError, match="the profile payfone cannot be read") as caught:
        payclient.PaySession.from_env(environ)
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)][1:]
    assert TOKEN not in repr(frames)


@pytest.mark.parametrize("content", [None, "", "Bearer x y"])
def test_a_token_file_that_holds_none(tmp_path: Path, content: str | None) -> None:
    """The file is named, its content is not shown, nor to an error tracker, which sends local variables."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(payclient.ConfigurationError, match=f"the token file {file}") as caught:
        payclient.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN_FILE": str(file)})
    frames = [frame.f_locals for frame, _ in traceback.walk_tb(caught.tb)][1:]  # but the test's own
    assert "Bearer x y" not in repr(frames)


@pytest.mark.parametrize("token", ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "c2Vj/cmV0", "x" * 300])
def test_a_token_in_the_place_of_its_file_is_not_shown(token: str) -> None:
    """Nobody has a file of that name."""
    with pytest.raises(
        payclient.ConfigurationError, match=r"^the token file \*\*\* cannot be read: "
    ) as caught:
        payclient.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN_FILE": token})
    assert token[:4] not in str(caught.value)


@pytest.mark.parametrize("thing", [payclient.PaySession, payclient.open_tracker_from_env])
def test_help_shows_no_variables(thing: object) -> None:
    """A default in a signature is shown by `help`, a notebook and every generator of documentation."""
    assert os.environ["PATH"] not in pydoc.plain(pydoc.render_doc(thing))


async def test_options_go_before_the_variables() -> None:
    """A ledger and a profile that are given need no variable."""
    environ = {name: ENVIRON[name] for name in ("PAYCLIENT_BASE_URL", "PAYCLIENT_TOKEN")}
    async with payclient.open_tracker_from_env(environ, ledger="memory:", profile="payphone") as tracker:
        assert tracker.profile is payclient.PAYPHONE


def test_its_keywords_are_those_of_open_tracker() -> None:
    """And a misspelt one is refused."""
    theirs = list(inspect.signature(payclient.open_tracker).parameters)
    ours = [
        name for name in inspect.signature(payclient.open_tracker_from_env).parameters if name != "options"
    ]
    assert sorted([*TrackerOptions.__annotations__, *ours, "base_url", "token"]) == sorted(
        [*theirs, "environ"]
    )
    with pytest.raises(TypeError, match="ledgr"):
        payclient.open_tracker_from_env(ENVIRON, ledgr="memory:")  # type: ignore[call-arg]  # that is the point
