"""The control API: what it refuses to foreign pages, its OpenAPI document, and a client in another language."""

import copy
import gc
import json
import os
import signal
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

import required
from manual_clock import ManualClock
from payclient.cli import main
from payclient.simulator import SCENARIOS, Answers, Fault, Settings, Simulator, SimulatorThread
from payclient.simulator.control_api import OPERATIONS, openapi
from payclient.simulator.messages import say
from simulated import TYPED, Client, Merchant, client_of, merchant, prepare_of, sale_of, until

__all__ = ["merchant"]

ROOT = Path(__file__).parents[1]
DOCUMENT: dict[str, Any] = openapi(Simulator)


@pytest.fixture
async def client() -> Any:
    async with client_of(Settings()) as it:
        yield it


@pytest.fixture
def service(client: Client) -> Simulator:
    return client.service


@pytest.fixture
def call(client: Client) -> Any:
    return client.control


# Foreign pages


async def status_of(client: Client, method: str, operation: str, **options: Any) -> int:
    """Send one request as a browser might."""
    return (await client.send(method, f"/_simulator/{operation}", **{"headers": {}, **options}))[0]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        *(({"headers": {"Origin": origin}, "json": {}}, 403)
          for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://localhost")),
        ({"headers": {"Sec-Fetch-Site": "cross-site"}, "json": {}}, 403),
        *(({"headers": {"Content-Type": kind}, "data": b"{}"}, 415)
          for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")),
        *(({"headers": {"Content-Type": "application/json"}, "data": raw}, 400) for raw in (b"{", b"[]")),
    ],
)  # fmt: skip
async def test_a_foreign_page_cannot_control(client: Client, sent: dict[str, Any], expected: int) -> None:
    """A browser says from where a request comes, and a foreign page may send no JSON; the same from here passes."""
    client.service.fail_next(Fault("reset"))
    assert await status_of(client, "POST", "clear_faults", **sent) == expected
    assert len(client.service.faults.script) == 1
    own = {"Origin": client.service.url}
    assert await status_of(client, "POST", "clear_faults", json={}, headers=own) == 200
    await client.sale()  # the merchant's routes ask for nothing of it


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("evil.example", 403), ("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("[", 403),
        ("[::1]:8700", 200), ("localhost:8700", 200), ("simulator", 200), ("app.localhost", 200),
        ("192.168.1.5:8700", 200),
    ],
)  # fmt: skip
async def test_a_name_that_was_pointed_here_is_refused(client: Client, host: str, expected: int) -> None:
    """DNS rebinding: the page and its data are served under addresses and local names only."""
    for path in ("openapi.json", "page.js", "../"):
        assert await status_of(client, "GET", path, headers={"Host": host}) == expected
    rebound = {"Host": host, "Origin": f"http://{host}"}
    assert await status_of(client, "POST", "advance", json={"seconds": 0}, headers=rebound) == expected


@pytest.mark.parametrize(
    ("host", "has_control", "there"),
    [("127.0.0.1", None, 200), ("127.0.0.1", False, 404), ("0.0.0.0", None, 404), ("0.0.0.0", True, 200)],
)
async def test_control_routes_stay_on_the_machine(host: str, has_control: bool | None, there: int) -> None:
    """Open to everybody, they exist beyond a loopback host only when asked for."""
    async with client_of(host=host, control=has_control) as client:
        assert (await client.control("counts"))[0] == there


# What it does


async def test_every_operation_is_of_python_by_the_same_names(client: Client) -> None:
    """And each is in the OpenAPI document that is served."""
    lifecycle = {"url", "scenario", "start", "stop", "restart_soon", "serve", "notify_merchant"}
    of_python = {name for name in vars(Simulator) if not name.startswith("_")} - lifecycle
    assert of_python <= set(OPERATIONS)
    assert [name for name in OPERATIONS if not hasattr(Simulator(), name)] == []
    assert await client.get("/_simulator/openapi.json") == (200, DOCUMENT)
    assert DOCUMENT["paths"].keys() == {f"/_simulator/{name}" for name in OPERATIONS}
    assert await status_of(client, "GET", "counts") == 405


async def test_a_sale_is_answered_forgotten_and_listed(client: Client, call: Any) -> None:
    """Approve, reject and ignore by either id, 404 for no sale, 409 for a decided one; without personal data."""
    for number in (1, 2, 3):
        await client.sale(number)
    _, first = await call("read_log")
    assert [(one["kind"], one["status"]) for one in first] == [("request", 200)] * 3
    status, sale = await call("approve", sale=1001)
    assert (status, sale["state"], sale["how"]) == (200, "Aceptado", "approved")
    _, more = await call("read_log", after=3)
    assert [one["text"] for one in more] == ["approved"], "only what is new"
    assert await call("read_log", after=4) == (200, [])
    assert (await call("log"))[1] == first + more
    assert (await call("reject", sale="order-2"))[1]["how"] == "rejected"
    assert (await call("ignore", sale=1003))[1]["ignored"] is True
    for verb in ("approve", "reject", "ignore"):
        assert [(await call(verb, sale=one))[0] for one in (7, "x", 1001)] == [404, 404, 409]
    assert (await call("forge", sale=1001))[0] == 409  # there is no address
    assert (await call("forge", sale=7))[0] == 404
    _, sales = await call("sales")
    assert sales == [one.as_json() for one in client.service.sales.values()]
    assert {"client_transaction_id": "order-1", "how": "approved", "amount": 1150}.items() <= sales[0].items()
    assert "0900000001" not in json.dumps([sales, (await call("log"))[1]])
    await client.sale(4, clientTransactionId="order-1")
    counts = {name: count for name, count in (await call("counts"))[1].items() if count}
    executed = {"requests": 4, "created": 4, "approved": 1, "rejected": 1, "pending": 2, "collected": 1150}
    assert counts == {**executed, "duplicates": {"order-1": 2}}
    assert (await call("reject", sale="order-1"))[1]["transaction_id"] == 1004, "the newest"


async def test_a_forged_notification_arrives(client: Client, call: Any, merchant: Merchant) -> None:
    """With the sale's own id, or with any other; an id of a megabyte is cut in the log, and nowhere else."""
    await client.sale(responseUrl=f"{merchant.url}/paid")
    assert await call("forge", sale=1001) == (200, None)
    assert await call("forge", sale=1001, pretended_id=5) == (200, None)
    await call("notifications_done")
    forged = [entry for entry in client.service.log if entry.kind == "notification"]
    assert [(entry.transaction_id, entry.status) for entry in forged] == [(1001, 200), (5, 200)]
    assert [dict(query)["id"] for _, query, _ in merchant.received] == ["1001", "5"]
    await client.sale(2, clientTransactionId="x" * 900_000)
    assert len(json.dumps((await call("log"))[1])) < 3000
    assert len(client.service.sales[1002].client_transaction_id) == 900_000


async def test_a_form_is_paid_declined_and_closed(service: Simulator, call: Any) -> None:
    """By either link; 404 for no form, 409 for one that is decided, and the address to which a browser is sent."""
    assert (await call("forms"))[1] == (await call("sales"))[1] == []
    bodies = [prepare_of(number, cancellationUrl=None) for number in (1, 2, 3)]
    paid, declined, closed = [(await call("create_form", body=body))[1]["payment_id"] for body in bodies]
    back = "https://shop.example/paid?id=1001&clientTransactionId=form-1"
    assert await call("pay", payment_id=paid, method="wallet") == (200, back)
    assert (await call("pay", payment_id=declined, declined=True))[0] == 200
    assert await call("cancel_form", payment_id=closed) == (200, None)
    for operation in ("pay", "cancel_form"):
        assert (await call(operation, payment_id="none"))[0] == 404
        assert (await call(operation, payment_id=paid))[0] == 409
    assert (await call("open_form", payment_id=paid))[1]["loaded"] == ["card", "wallet"]
    _, listed = await call("forms")
    decided = [(paid, "paid", "wallet"), (declined, "declined", "card"), (closed, "cancelled", "card")]
    assert [(form["payment_id"], form["how"], form["method"]) for form in listed] == decided
    assert listed == [form.as_json() for form in service.forms.values()]
    for secret in (*TYPED.values(), "shop.example"):
        assert secret not in json.dumps(listed)
    assert (service.counts.prepared, service.counts.forms_paid, service.counts.requests) == (3, 1, 0)
    assert paid not in repr(service.log)


async def test_faults_are_scripted_drawn_counted_and_cleared(client: Client, call: Any) -> None:
    """What is asked for happens, is counted, and what is left is told."""
    assert await call("fail_next", fault={"kind": "error"}, times=2) == (200, None)
    assert (await client.sell(sale_of()))[0] == 503
    _, told = await call("faults")
    fault = {"kind": "error", "operation": "sale", "when": "before", "status": 503, "seconds": 1.0}
    assert (told["script"], told["done"]) == ([{**fault, "times": 1}], {"error": 1})
    assert (await call("fail_by_chance", fault={"kind": "html"}, chance=1))[0] == 200
    assert (await call("fail_by_chance", fault={"kind": "reset"}, chance=0.1))[0] == 409
    await call("clear_faults")
    _, told = await call("faults")
    assert (told["script"], told["chances"], told["done"]) == ([], [], {"error": 1})
    await client.sale()


@pytest.mark.parametrize(
    ("operation", "arguments", "expected"),
    [
        # 400: of another type
        ("fail_next", {"fault": {"kind": "flood"}}, 400), ("fail_next", {"fault": {"kind": "reset", "more": 1}}, 400),
        ("fail_next", {"fault": {"kind": "error", "status": True}}, 400), ("fail_next", {"fault": []}, 400),
        ("fail_next", {"fault": {"when": "after"}}, 400),
        ("fail_by_chance", {"fault": {"kind": "reset"}, "chance": "1"}, 400),
        ("advance", {}, 400), ("advance", {"seconds": True}, 400), ("advance", {"seconds": 1, "minutes": 1}, 400),
        ("use_scenario", {"name": 5}, 400), ("approve", {"sale": 1.5}, 400),
        ("reject", {"sale": 1001, "reason": "bad mood"}, 400), ("pay", {"payment_id": "x", "method": ["card"]}, 400),
        ("create_sale", {"body": []}, 400),
        # 409, with Python's own message: a value that cannot be
        ("fail_next", {"fault": {"kind": "error", "status": 404}}, 409),
        ("fail_next", {"fault": {"kind": "reset"}, "times": 0}, 409), ("use_scenario", {"name": "none"}, 409),
        ("fail_by_chance", {"fault": {"kind": "reset"}, "chance": 2}, 409), ("restart", {"down": -1}, 409),
        ("advance", {"seconds": -1}, 409), ("advance", {"seconds": 1e12}, 409),
    ],
)  # fmt: skip
async def test_an_argument_that_cannot_be_is_told(
    client: Client, call: Any, operation: str, arguments: Any, expected: int
) -> None:
    """With a message, and nothing is changed."""
    status, told = await call(operation, **arguments)
    assert (status, list(told)) == (expected, ["message"])
    assert (client.service.faults.script, client.service.faults.chances) == ([], {})


async def test_time_passes_and_a_restart_keeps_all(client: Client, call: Any, service: Simulator) -> None:
    """What was due has happened when a jump returns; a restart is answered first, and closing does not wait for one."""
    await client.sale()
    before = service.clock.time()
    assert await call("advance", seconds=300) == (200, None)
    assert (await call("overview"))[1]["time"] - before >= 300
    assert service.counts.expired == 1
    assert await call("restart") == (200, None)
    await until(lambda: [entry for entry in service.log if entry.text == "started again"])
    assert [sale["how"] for sale in (await call("sales"))[1]] == ["expired"]

    class Still(ManualClock):
        advance = None  # type: ignore[assignment]  # a clock that cannot jump

    for clock, status, passed in ((Still(), 409, 0), (ManualClock(), 200, 60)):
        async with client_of(clock=clock) as other:
            assert (await other.control("advance", seconds=60))[0] == status
            assert clock.monotonic() == passed
    await call("restart", down=3600)
    await until(lambda: [entry.text for entry in service.log].count("stopped") == 2)


async def test_samples_are_made_without_a_token_and_scenarios_chosen() -> None:
    """What is refused is told in the service's words; the reasons of a decline say what they mean."""
    async with client_of(token="secret") as client:
        call, service = client.control, client.service
        assert (await call("create_sale", body=sale_of()))[1]["transaction_id"] == 1001
        assert (await call("create_form", body=prepare_of()))[0] == 200
        status, error = await call("create_sale", body=sale_of())
        assert (status, error["errorCode"], error["errors"][0]["errorCode"]) == (409, 22, 2061)
        _, overview = await call("overview")
        assert [sale["transaction_id"] for sale in overview["pending"]] == [1001]
        assert set(overview["forms"][0]["links"]) == {"wallet", "card"}
        assert (await call("reasons"))[1]["fraud"] == say("fraud", "en")
        assert (await call("use_scenario", name="flaky-gateway"))[0] == 200
        chosen = SCENARIOS["flaky-gateway"]
        assert (service.faults.chances, service.answers) == (chosen.chances, chosen.answers)


# The OpenAPI document


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[SimulatorThread]:
    with SimulatorThread() as running:
        for number in (1, 2, 3):
            running.create_sale(sale_of(number))
        yield running


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_server_is_what_the_document_says(fuzzed: SimulatorThread, operation: str) -> None:
    """Whatever is sent, the status and the body are among those that the document names (schemathesis)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tool's own imports
        schemathesis = required.module("schemathesis")
        from schemathesis.specs.openapi.checks import positive_data_acceptance
    narrowed = copy.deepcopy(DOCUMENT)
    path = f"/_simulator/{operation}"
    content = narrowed["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    arguments = content["schema"]["properties"]
    # Nothing is restarted for an hour, and some of the ids exist.
    narrow = {"down": {"const": -1}, "sale": {"enum": [1001, "order-2", 7]}}
    arguments.update({name: schema for name, schema in narrow.items() if name in arguments})
    if operation == "restart":
        content["schema"]["required"] = ["down"]
        narrowed["paths"][path]["post"]["requestBody"]["required"] = True
    schema = schemathesis.openapi.from_dict(narrowed)

    @given(case=schema[path]["post"].as_strategy())
    @hypothesis_settings(max_examples=4, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # Not all of what a fault may be fits into a schema, such as "cut has no status": 400 is a right answer.
        case.call_and_validate(base_url=fuzzed.url, excluded_checks=[positive_data_acceptance])

    check()


# Another language


@contextmanager
def simulating(folder: Path, *options: str) -> Iterator[dict[str, Any]]:
    """A running `payclient simulate`: what it says in its ready file, which is gone at the end."""
    path = folder / "ready.json"
    service = [sys.executable, "-m", "payclient", "simulate", "--port", "0", "--ready-file", str(path)]
    with subprocess.Popen([*service, *options], cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"listening on")
            while not path.exists():
                assert process.poll() is None
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            yield json.loads(path.read_text())
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
    assert list(folder.iterdir()) == []


def test_curl_drives_a_sale_to_each_outcome(tmp_path: Path) -> None:
    """A shell script, by the ready file and the control API alone."""
    required.program("curl")
    driver = str(ROOT / "tests" / "drive_simulator.sh")
    script = [required.program("sh"), driver, str(tmp_path / "ready.json")]
    with simulating(tmp_path, "--scenario", "by-hand", "--token", "secret") as told:
        assert (sorted(told), told["token"]) == (["pid", "token", "url"], "secret")
        done = subprocess.run(
            script, capture_output=True, text=True, timeout=30, env={"PATH": os.environ["PATH"]}
        )
    assert done.stderr == ""
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        "pending": "Pendiente", "accepted": "Aceptado", "cancelled": "Cancelado", "expired": "Cancelado 1",
        "busy": '"errorCode":2061', "lost": "curl exit 56 Pendiente", "created": "4", "form": "paid Aceptado 1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "none"], ", ".join(SCENARIOS)),
        (["--set", "stors=S1"], "not a setting: stors; the settings are sale_window, "),
        (["--set", "phone_pattern=("], "phone_pattern: missing )"),
        (["--set", "utc_offset=24"], "utc_offset: 'utc_offset' must be < 24"),
        (["--set", "stores"], "--set: must be NAME=VALUE"), (["--set", "cors=perhaps"], "cors"),
        (["--set", "application=APP"], "application"), (["--time-of-day", "25:00"], "the time of day must be HH:MM"),
        (["--host", "0.0.0.0", "--port", "0", "--ready-file", 250 * "r"], "whoever reaches"),
        (["--port", "0", "--ready-file", "/nowhere/ready"], "--ready-file"), (["--host", "192.0.2.1"], "--host"),
        (["--port", "0", "--ready-file", __file__], "is there already, and payclient did not write it"),
        (["--sale-window", "0"], "sale_window"), (["--form-window", "-1"], "--form-window"),
    ],
)  # fmt: skip
def test_what_the_command_refuses_or_warns_of(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, exit 2; an open address is warned of before anything else can fail."""
    assert main(["simulate", *arguments]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert says in said
    assert "Traceback" not in said


def test_a_ready_file_may_be_empty(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As `mktemp` makes one."""
    ready = tmp_path / "ready.json"
    ready.touch()
    assert main(["simulate", "--host", "192.0.2.1", "--ready-file", str(ready)]) == 2
    assert "cannot listen" in capfd.readouterr().err


def test_a_ready_file_is_no_pipe_and_no_device(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file took its place, and the end deleted that: `/dev/null`, for root."""
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    assert main(["simulate", "--host", "192.0.2.1", "--ready-file", str(ready)]) == 2
    assert "must be a regular file" in capfd.readouterr().err


async def test_the_options_set_what_a_client_meets(tmp_path: Path, merchant: Merchant) -> None:
    """Accounts, CORS, stores, the least amount and the names of a notification, of a service in another process."""
    options = [
        "--profile", "payphone", "--time-of-day", "19:59", "--answers", "approve=1",
        "--account", "one=first", "--account", "two=second", "--set", "least_amount=100", "--set", "cors=true",
        "--set", "stores=S1,S2", "--set", "notification_names=id,clientTransactionId",
    ]  # fmt: skip
    with simulating(tmp_path, *options) as told:
        async with aiohttp.ClientSession() as session:
            client = Client(cast("Any", SimpleNamespace(url=told["url"])), session)
            first, second = ({"headers": {"Authorization": f"Bearer {one}"}} for one in ("first", "second"))
            small = sale_of(amount=50, amountWithTax=..., amountWithoutTax=50, tax=...)
            assert (await client.sell(small, **first))[1]["errorCode"] == 107
            assert client.headers["Access-Control-Allow-Origin"]
            status, error = await client.control("create_sale", body=sale_of(2, storeId="S3"))
            assert (status, error["errorCode"]) == (409, 100)
            number = (await client.sell(sale_of(responseUrl=merchant.url), **first))[1]["transactionId"]
            await client.control("advance", seconds=290)  # half of the customers answer within 20 s
            await until(lambda: merchant.received)
            ids = [("id", str(number)), ("clientTransactionId", "order-1")]
            assert merchant.received == [("GET", ids, None)]
            by_client_id = "/api/Sale/client/order-1"
            assert (await client.get(by_client_id, **first))[1][0]["transactionStatus"] == "Approved"
            assert (await client.get(by_client_id, **second))[0] == 404  # another account's
            assert (await client.get(by_client_id))[0] == 401


async def test_the_windows_are_options(tmp_path: Path) -> None:
    """A push and a form's link that live for seconds, whatever the profile has (§8)."""
    options = ("--sale-window", "5", "--form-window", "7.5", "--scenario", "by-hand", "--profile", "payphone")
    with simulating(tmp_path, *options) as told:
        async with aiohttp.ClientSession() as session:
            client = Client(cast("Any", SimpleNamespace(url=told["url"])), session)
            await client.sell(sale_of())
            form = (await client.prepare(prepare_of()))[1]["payWithCard"]
            for seconds, state, status in ((0, "Pending", 200), (5, "Canceled", 200), (2.5, "Canceled", 410)):
                await client.control("advance", seconds=seconds)
                async with session.get(form, headers={"Referer": "https://shop.example/"}) as page:
                    assert page.status == status
                assert (await client.get("/api/Sale/client/order-1"))[1][0]["transactionStatus"] == state


# In a thread of its own


def test_a_thread_is_controlled_from_code_without_a_loop() -> None:
    """Every control may be called from anywhere, by the names of `Simulator`, and says what is wrong."""
    with SimulatorThread(Simulator(answers=Answers.parse("ignore=1"))) as service:
        with pytest.raises(LookupError):
            service.approve(1001)
        for number in (1, 2):
            service.create_sale(sale_of(number))
        assert service.approve("order-1").how == "approved"
        with pytest.raises(ValueError, match="not pending"):
            service.approve("order-1")
        service.answers = Answers.parse("approve=1")
        service.create_sale(sale_of(3))
        service.advance(300)
        assert [sale.how for sale in service.sales.values()] == ["approved", "expired", "approved"]
        assert (service.counts.created, service.counts.pending) == (3, 0)
        service.notifications_done()
        service.use_scenario("by-hand")
        service.fail_next(Fault("error"))
        service.stop()
        service.start()
        with pytest.raises(HTTPError, match="503") as refused:
            urlopen(Request(f"{service.url}/api/Sale", b"{}"))  # noqa: S310 - our own
        refused.value.close()
        assert (service.faults.done, service.log[-1].fault) == ({"error": 1}, "error")
        assert service.created_per_client_id == {"order-1": 1, "order-2": 1, "order-3": 1}
        form = service.create_form(prepare_of())
        assert service.pay(form.payment_id, declined=True).startswith("https://shop.example/paid?id=")
        assert [form.how for form in service.forms.values()] == ["declined"]
        with pytest.raises(AttributeError, match="nothing_such"):
            service.nothing_such()
        port = int(service.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address"), SimulatorThread(Simulator(port=port)):
            pass
    with pytest.raises(RuntimeError, match="not open"):
        service.approve("order-1")
    with pytest.raises(TypeError):  # a clock must be one that threads may move
        SimulatorThread(Simulator(clock=ManualClock()))
    gc.collect()  # what the one that could not listen left open would warn here, and a warning is an error
