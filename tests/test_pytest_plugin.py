"""The fixtures for users' tests: here, and from an installed wheel in an empty project."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import payclient
import required
from payclient import State, Tracker
from payclient.pytest_plugin import PayService
from payclient.simulator.control_api import OPERATIONS

pytest_plugins = ["payclient.pytest_plugin"]

ROOT = Path(__file__).parents[1]

REQUEST = payclient.SaleRequest(
    phone_number="0984111222", country_code="593", amount_without_tax=500, currency="USD",
    client_transaction_id="order-1", store_id="S1",
)  # fmt: skip


# Here


async def test_a_sale_is_approved(pay_service: PayService, pay_tracker: Tracker) -> None:
    """The customer answers when the test says so."""
    pending = await pay_tracker.sale(REQUEST)
    assert pending.state is State.PENDING
    pay_service.control.approve("order-1")
    assert (await pending.wait()).paid is True
    assert pay_service.control.created_per_client_id == {"order-1": 1}


async def test_nothing_of_another_test_is_left(pay_service: PayService, pay_tracker: Tracker) -> None:
    """Each has a service of its own."""
    assert pay_service.control.counts.created == 0
    assert await pay_tracker.find("order-1") is None
    assert "token" not in repr(pay_service)


async def test_the_presets_service(payphone_service: PayService) -> None:
    """A form is prepared, paid and confirmed, and listed with its payment id."""
    control = payphone_service.control
    async with payphone_service.open_tracker() as tracker:
        form = await tracker.prepare(
            payclient.PrepareRequest(
                amount_without_tax=500, currency="USD", client_transaction_id="cart-1", store_id="S1",
                response_url="https://shop.example/back",
            )
        )  # fmt: skip
        back = control.pay(form.payment_id)
        outcome = await tracker.returned(back.partition("?")[2])
    assert (outcome.paid, control.counts.confirms) == (True, 1)
    assert list(control.forms) == [form.payment_id]


def test_the_thread_has_the_names_of_the_simulator(pay_service: PayService) -> None:
    """Whatever another process can do, a thread can, by the same names."""
    for name in (*OPERATIONS, "url", "settings", "clock"):
        assert getattr(pay_service.control, name) is not None


def test_a_tracker_in_a_loop_of_its_own(pay_service: PayService) -> None:
    """As an app opens one; the controls are called from code without a loop in between."""

    async def sell() -> None:
        async with pay_service.open_tracker(ledger="memory:") as tracker:
            await tracker.sale(REQUEST)

    asyncio.run(sell())
    pay_service.control.reject("order-1")
    assert pay_service.control.counts.rejected == 1


def test_timers_of_a_closed_loop_are_forgotten(pay_service: PayService) -> None:
    """The clock outlives the loops that set its timers."""

    async def leave_one() -> None:
        pay_service.clock.call_at(pay_service.clock.monotonic() + 1_000, pytest.fail)

    asyncio.run(leave_one())
    pay_service.control.advance(2_000)
    with pytest.raises(ValueError, match="0 or more"):
        pay_service.clock.advance(-1)


# In an empty project

ANYIO = """
import pytest
from test_client import REQUEST

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_under_anyio(pay_service, pay_tracker):
    pending = await pay_tracker.sale(REQUEST)
    pay_service.control.approve("order-1")
    assert (await pending.wait()).paid is True
"""

CLIENT = """
from contextlib import asynccontextmanager

import payclient
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

REQUEST = payclient.SaleRequest(
    phone_number="0984111222", country_code="593", amount_without_tax=500, currency="USD",
    client_transaction_id="order-1", store_id="S1", response_url="http://127.0.0.1:1/paid",
)

def test_under_starlettes_client(pay_service):
    @asynccontextmanager
    async def life(app):
        async with pay_service.open_tracker() as app.state.tracker:
            yield

    async def pay(request):
        await request.app.state.tracker.sale(REQUEST)
        return JSONResponse({}, 202)

    async def paid(request):
        notification = payclient.parse_notification(query=request.url.query)
        return JSONResponse({"receipt": await request.app.state.tracker.notify(notification)})

    async def look(request):
        outcome = await (await request.app.state.tracker.find("order-1")).wait()
        return JSONResponse({"paid": outcome.paid, "notified": outcome.notified_at is not None})

    routes = [Route("/pay", pay, methods=["POST"]), Route("/paid", paid), Route("/look", look)]
    with TestClient(Starlette(routes=routes, lifespan=life)) as client:
        assert client.post("/pay").status_code == 202
        sale = pay_service.control.approve("order-1")
        query = {"id": sale.transaction_id, "clientTransactionID": "order-1"}
        assert client.get("/paid", params=query).json()["receipt"] in ("matched", "late")
        assert client.get("/look").json()["paid"] is True
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sources and unpacked as pip would."""
    required.module("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (wheel,) = out.glob("*.whl")
    target = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(project: Path, installed: Path, *options: str, code: int = 0) -> str:
    """What pytest says in the project; it loads only the plugins that are named, of all that are installed here."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=project, capture_output=True, text=True, timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_guides_example_runs_from_a_wheel_in_an_empty_project(installed: Path, tmp_path: Path) -> None:
    """As it stands in the guide, beside tests of anyio and of Starlette's client; those without pytest-asyncio too."""
    for name in ("pytest_asyncio", "anyio", "starlette", "httpx"):
        required.module(name)
    guide = (ROOT / "payclient" / "guide" / "testing.md").read_text(encoding="utf-8")
    (example,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
        if "pytest_plugins" in block
    ]
    where = f"\ndef test_where():\n    assert payclient.__file__.startswith({str(installed)!r})\n"
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["payclient.pytest_plugin"]\n', encoding="utf-8")
    (tmp_path / "test_shop.py").write_text(example + where, encoding="utf-8")
    (tmp_path / "test_anyio.py").write_text(ANYIO, encoding="utf-8")
    (tmp_path / "test_client.py").write_text(CLIENT, encoding="utf-8")
    assert "4 passed" in run(tmp_path, installed, "-p", "asyncio", "-p", "anyio")
    assert "2 passed" in run(tmp_path, installed, "-p", "anyio", "test_anyio.py", "test_client.py")
    auto = run(tmp_path, installed, "-p", "asyncio", "-p", "anyio", "-o", "asyncio_mode=auto", code=1)
    assert "3 passed, " in auto
    assert "this tracker belongs to another event loop" in auto


def test_the_wheel_has_the_page(installed: Path) -> None:
    """What the simulator serves and the guides are shipped."""
    assert (installed / "payclient" / "guide" / "es" / "empezar.md").is_file()
    folder = installed / "payclient" / "simulator"
    for name in ("page.html", "page.js", "style.css", "form.html", "messages.json"):
        assert (folder / name).stat().st_size > 300
