"""The control API: what it refuses to foreign pages, its OpenAPI document, and a client in another language."""

import asyncio
import copy
import json
import os
import signal
import stat
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings

import control
import required
from control import sale_of
from payclient.cli import main
from payclient.simulator import SCENARIOS, Answers, Fault, ManualClock, Simulator, SimulatorThread
from payclient.simulator.control_api import OPERATIONS, openapi

ROOT = Path(__file__).parents[1]
DOCUMENT: dict[str, Any] = openapi(Simulator)

Answer = tuple[int, Any]


@pytest.fixture
async def service() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


async def ask(service: Simulator, method: str, path: str, **options: Any) -> int:
    """Send one request as a browser might, and return the status."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{service.url}/_simulator/{path}", **options) as response,
    ):
        assert response.content_type == "application/json"
        return response.status


def form_of(number: int = 1, **changes: object) -> dict[str, object]:
    return {
        **{
            name: value
            for name, value in sale_of(number).items()
            if name not in ("phoneNumber", "countryCode")
        },
        "clientTransactionId": f"cart-{number}",
        "storeId": "S1",
        "responseUrl": "https://shop.example/back",
        **changes,
    }


async def sell(service: Simulator | SimulatorThread, number: int = 1, **changes: object) -> int:
    """Send a Sale, and return the status."""
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session,
        session.post(f"{service.url}/api/Sale", json=sale_of(number, **changes)) as response,
    ):
        return response.status


async def until(condition: Callable[[], object]) -> None:
    """Until it holds: five seconds at most."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it has not come true")


# Foreign pages


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost"])
async def test_a_page_of_another_site_cannot_control(service: Simulator, origin: str) -> None:
    """A browser says from where a POST comes; the same from this address passes."""
    advance = partial(ask, service, "POST", "advance", json={"seconds": 1})
    assert await advance(headers={"Origin": origin}) == 403
    assert await advance(headers={"Origin": service.url}) == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_a_form_could_send_is_refused(service: Simulator, kind: str) -> None:
    """Only JSON, which no foreign page may send without being allowed to."""
    status = await ask(
        service, "POST", "fail_next", data=b'{"fault": {"kind": "reset"}}', headers={"Content-Type": kind}
    )
    assert (status, service.faults.script) == (415, [])


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("evil.example", False),
        ("evil.example:80", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
        ("localhost:8700", True),
        ("simulator", True),
        ("app.localhost", True),
        ("192.168.1.5:8700", True),
        ("[::1]:8700", True),
    ],
)
async def test_a_name_that_was_pointed_here_is_refused(service: Simulator, host: str, good: bool) -> None:
    """DNS rebinding: the page and its data are served under addresses and local names only."""
    for path in ("counts", "overview"):
        assert await ask(service, "GET", path, headers={"Host": host}) == (200 if good else 403)
    rebound = {"Host": host, "Origin": f"http://{host}"}
    assert await ask(service, "POST", "advance", json={"seconds": 0}, headers=rebound) == (
        200 if good else 403
    )


async def test_a_cross_site_read_is_refused(service: Simulator) -> None:
    """What a browser says of itself counts, too; the merchant's routes ask for nothing of it."""
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert await ask(service, "GET", "overview", headers=cross) == 403
    assert await sell(service) == 200


# What it does


def test_every_operation_is_of_python_by_the_same_names() -> None:
    """Nothing exists only in one of them."""
    lifecycle = {"url", "scenario", "start", "stop", "restart_soon", "serve", "tell"}
    of_python = {name for name in vars(Simulator) if not name.startswith("_")} - lifecycle
    assert of_python <= set(OPERATIONS)
    assert [name for name in OPERATIONS if not hasattr(Simulator(), name)] == []


async def test_a_sale_is_answered_forgotten_and_forged(service: Simulator) -> None:
    """Approve, reject and ignore, with 404 for no sale and 409 for one that is decided."""
    call = partial(control.call, service.url)
    for number in (1, 2, 3):
        assert await sell(service, number) == 200
    assert (await call("approve", sale=1001))[0] == 200
    assert (await call("reject", sale="order-2"))[0] == 200
    assert (await call("ignore", sale=1003))[0] == 200
    assert [sale.how for sale in service.sales.values()] == ["approved", "rejected", None]
    assert service.sales[1003].ignored
    for verb in ("approve", "reject", "ignore"):
        assert (await call(verb, sale=7))[0] == 404
        assert (await call(verb, sale="x"))[0] == 404
        assert (await call(verb, sale=1001))[0] == 409
    assert (await call("forge", sale=1001))[0] == 409  # there is no address
    assert (await call("forge", sale=7))[0] == 404
    assert await call("notification_query", sale=1001) == (200, "id=1001&clientTransactionID=order-1")


async def test_a_forged_notification_arrives() -> None:
    """With the sale's own id, or with any other."""
    async with Simulator() as service, Simulator() as merchant:
        await sell(service, responseUrl=f"{merchant.url}/paid")
        assert await control.call(service.url, "forge", sale=1001) == (200, None)
        assert await control.call(service.url, "forge", sale=1001, pretended_id=5) == (200, None)
        await control.call(service.url, "notifications_done")
        forged = [entry for entry in service.log if entry.kind == "notification"]
        assert [(entry.transaction_id, entry.status) for entry in forged] == [(1001, 404), (5, 404)]
        assert [entry.text for entry in merchant.log] == ["GET /paid"] * 2


async def test_a_form_is_paid_declined_and_closed(service: Simulator) -> None:
    """By either link; 404 for no form, 409 for one that is decided, and the address to which a browser is sent."""
    call = partial(control.call, service.url)
    made = [(await call("create_form", body=form_of(number)))[1]["payment_id"] for number in (1, 2, 3)]
    paid, declined, closed = made
    back = "https://shop.example/back?id=1001&clientTransactionId=cart-1"
    assert await call("pay", payment_id=paid, method="wallet") == (200, back)
    assert (await call("pay", payment_id=declined, declined=True))[0] == 200
    assert await call("cancel_form", payment_id=closed) == (200, None)
    decided = [(form.how, form.method) for form in service.forms.values()]
    assert decided == [("paid", "wallet"), ("declined", "card"), ("cancelled", "card")]
    for operation in ("pay", "cancel_form"):
        assert (await call(operation, payment_id="none"))[0] == 404
        assert (await call(operation, payment_id=paid))[0] == 409
    assert (await call("open_form", payment_id=paid))[1]["loaded"] == ["card", "wallet"]
    assert paid not in repr(service.log)


async def test_faults_are_scripted_drawn_counted_and_cleared(service: Simulator) -> None:
    """What is asked for happens, is counted, and what is left is told."""
    call = partial(control.call, service.url)
    assert await call("fail_next", fault={"kind": "error"}, times=2) == (200, None)
    assert await sell(service) == 503
    _, told = await call("faults")
    fault = {"kind": "error", "operation": "sale", "when": "before", "status": 503, "seconds": 1.0}
    assert told["script"] == [{**fault, "times": 1}]
    assert told["done"] == {"error": 1}
    assert (await call("fail_by_chance", fault={"kind": "html"}, chance=1))[0] == 200
    assert (await call("fail_by_chance", fault={"kind": "reset"}, chance=0.1))[0] == 409
    await call("clear_faults")
    _, told = await call("faults")
    assert (told["script"], told["chances"], told["done"]) == ([], [], {"error": 1})
    assert await sell(service) == 200


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("fail_next", {"fault": {"kind": "flood"}}),
        ("fail_next", {"fault": {"kind": "reset", "unheard": 1}}),
        ("fail_next", {"fault": {"kind": "error", "status": True}}),
        ("fail_next", {"fault": {"when": "after"}}),
        ("fail_next", {"fault": []}),
        ("fail_by_chance", {"fault": {"kind": "reset"}, "chance": "1"}),
        ("advance", {}),
        ("advance", {"seconds": True}),
        ("advance", {"seconds": 1, "minutes": 1}),
        ("use_scenario", {"name": 5}),
        ("approve", {"sale": 1.5}),
        ("pay", {"payment_id": "x", "method": ["card"]}),
        ("read_log", {"after": "x"}),
        ("create_sale", {"body": []}),
    ],
)
async def test_an_argument_of_another_type_is_told(
    service: Simulator, operation: str, arguments: Any
) -> None:
    """400 with a message, and nothing is changed."""
    status, told = await control.call(service.url, operation, **arguments)
    assert (status, list(told)) == (400, ["message"])
    assert (service.faults.script, service.faults.chances.chances) == ([], {})
    for raw in (b"{", b"[]"):
        headers = {"Content-Type": "application/json"}
        assert await ask(service, "POST", operation, data=raw, headers=headers) == 400


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("fail_next", {"fault": {"kind": "error", "status": 404}}),
        ("fail_next", {"fault": {"kind": "reset"}, "times": 0}),
        ("fail_by_chance", {"fault": {"kind": "reset"}, "chance": 2}),
        ("advance", {"seconds": -1}),
        ("advance", {"seconds": 1e12}),
        ("restart", {"down": -1}),
        ("use_scenario", {"name": "none"}),
    ],
)
async def test_a_value_that_cannot_be_is_told(service: Simulator, operation: str, arguments: Any) -> None:
    """409 with Python's own message, and nothing is changed."""
    status, told = await control.call(service.url, operation, **arguments)
    assert (status, list(told)) == (409, ["message"])
    assert (service.faults.script, service.faults.chances.chances) == ([], {})


async def test_time_passes_in_a_call(service: Simulator) -> None:
    """And what was due has happened when it returns."""
    await sell(service)
    before = service.clock.time()
    assert await control.call(service.url, "advance", seconds=300) == (200, None)
    assert (await control.call(service.url, "overview"))[1]["time"] - before >= 300
    assert service.counts.expired == 1


async def test_a_clock_that_cannot_jump_says_so() -> None:
    """409 where the clock is another's; a clock moved by hand is moved."""

    class Still(ManualClock):
        advance = None  # type: ignore[assignment]

    async with Simulator(clock=Still()) as service:
        assert (await control.call(service.url, "advance", seconds=1))[0] == 409
    clock = ManualClock()
    async with Simulator(clock=clock) as service:
        assert (await control.call(service.url, "advance", seconds=60))[0] == 200
        assert clock.monotonic() == 60


async def test_a_restart_keeps_the_state(service: Simulator) -> None:
    """It is answered first; then connections break, and all is as before."""
    await sell(service)
    assert await control.call(service.url, "restart") == (200, None)
    await until(lambda: [entry for entry in service.log if entry.text == "started again"])
    assert [sale["state"] for sale in (await control.call(service.url, "sales"))[1]] == ["Pendiente"]


async def test_closing_does_not_wait_for_a_restart() -> None:
    """A service that is down for an hour closes at once."""
    async with Simulator() as service:
        await control.call(service.url, "restart", down=3600)
        await until(lambda: [entry for entry in service.log if entry.text == "stopped"])


async def test_scenarios_are_listed_and_chosen(service: Simulator) -> None:
    """Each says in a line what it is."""
    _, choices = await control.call(service.url, "choices")
    assert choices["scenarios"] == {name: one.says for name, one in SCENARIOS.items()}
    assert (await control.call(service.url, "use_scenario", name="flaky-gateway"))[0] == 200
    assert service.faults.chances == SCENARIOS["flaky-gateway"].faults


async def test_the_log_is_read_on_from_a_number(service: Simulator) -> None:
    """Only what is new; no personal data is in it."""
    call = partial(control.call, service.url)
    await sell(service)
    _, first = await call("read_log")
    assert [(one["kind"], one["status"]) for one in first] == [("request", 200)]
    assert await call("read_log", after=1) == (200, [])
    await service.approve("order-1")
    _, more = await call("read_log", after=1)
    assert [one["text"] for one in more] == ["approved"]
    assert (await call("log"))[1] == first + more
    assert "0900000001" not in json.dumps(first + more)


async def test_the_log_stays_small_whatever_is_sent(service: Simulator) -> None:
    """An id of a megabyte is cut there, and nowhere else."""
    await sell(service, clientTransactionId="x" * 900_000)
    assert len(json.dumps((await control.call(service.url, "log"))[1])) < 1000
    assert [len(sale.client_transaction_id) for sale in service.sales.values()] == [900_000]


async def test_a_sale_and_a_form_are_made_without_a_token() -> None:
    """As the page makes its samples; what is refused is told in the service's words."""
    async with Simulator(token="secret") as service:
        call = partial(control.call, service.url)
        assert (await call("create_sale", body=sale_of()))[1]["transaction_id"] == 1001
        assert (await call("create_form", body=form_of()))[0] == 200
        status, error = await call("create_sale", body=sale_of())
        assert (status, error["errorCode"], error["errors"][0]["errorCode"]) == (409, 22, 2061)
        _, overview = await call("overview")
        assert [sale["transaction_id"] for sale in overview["pending"]] == [1001]
        assert set(overview["forms"][0]["links"]) == {"wallet", "card"}


async def test_a_sale_is_known_by_either_id(service: Simulator) -> None:
    """The newest of a client transaction id; LookupError for none."""
    await sell(service)
    await service.reject("order-1")
    await sell(service)
    await service.approve("order-1")
    assert [sale.how for sale in service.sales.values()] == ["rejected", "approved"]
    for unknown in (7, "none"):
        with pytest.raises(LookupError):
            await service.ignore(unknown)


# The OpenAPI document


async def test_the_document_is_served(service: Simulator) -> None:
    """As JSON, and the same for the whole life of the service."""
    address = f"{service.url}/_simulator/openapi.json"
    async with aiohttp.ClientSession() as session, session.get(address) as response:
        assert await response.json() == DOCUMENT


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
    schema = schemathesis.openapi.from_dict(narrowed)

    @given(case=schema[path]["post"].as_strategy())
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        # Not all of what a fault may be fits into a schema, such as "cut has no status": 400 is a right answer.
        case.call_and_validate(base_url=fuzzed.url, excluded_checks=[positive_data_acceptance])

    check()


# Another language


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[Path]:
    """A running `payclient simulate` and where it says that it listens."""
    path = tmp_path / "ready.json"
    command = [
        *(sys.executable, "-m", "payclient", "simulate", "--port", "0"),
        *("--scenario", "by-hand", "--token", "secret", "--ready-file", str(path)),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"listening on")
            for _ in range(1000):
                if path.exists():
                    break
                asyncio.run(asyncio.sleep(0.005))
            yield path
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=10)
    assert process.returncode == 0
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_curl_drives_a_sale_to_each_outcome(ready: Path) -> None:
    """A shell script, by the ready file and the control API alone."""
    told = json.loads(ready.read_text())
    assert sorted(told) == ["pid", "token", "url"]
    assert told["token"] == "secret"
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    required.program("curl")
    done = subprocess.run(
        [required.program("sh"), str(ROOT / "tests" / "drive_simulator.sh"), str(ready)],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == ""
    assert dict(line.split(": ") for line in done.stdout.splitlines()) == {
        "pending": "Pendiente",
        "accepted": "Aceptado",
        "cancelled": "Cancelado",
        "expired": "Cancelado 1",
        "busy": '"errorCode":2061',
        "refused": '"errorCode":22',
        "invalid": '"errorCode":800',
        "lost": "curl exit 56 Pendiente",
        "created": "5",
        "form": "paid Aceptado 1",
        "declined": "declined Cancelado 1",
        "closed": "https://shop.example/closed 1",
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "none"], "lost-answer"),
        (["--host", "0.0.0.0", "--port", "0", "--ready-file", "/nowhere/ready"], "whoever reaches"),
        (["--port", "0", "--ready-file", "/nowhere/ready"], "--ready-file"),
        (["--host", "192.0.2.1"], "--host"),
    ],
)
def test_what_the_command_refuses_or_warns_of(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line, exit 2; an open address is warned of before anything else can fail."""
    assert main(["simulate", *arguments]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert says in said
    assert "Traceback" not in said


def test_the_help_lists_the_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    """Each by its name."""
    assert main(["simulate", "--help"]) == 0
    told = capsys.readouterr().out
    assert [name for name in SCENARIOS if name not in told] == []


# In a thread of its own


def test_a_thread_is_controlled_from_code_without_a_loop() -> None:
    """Every control may be called from anywhere, by the names of `Simulator`, and says what is wrong."""
    with SimulatorThread(Simulator(answers=Answers.parse("ignore=1"))) as service:
        with pytest.raises(LookupError):
            service.approve(1001)
        for number in (1, 2, 3):
            assert asyncio.run(sell(service, number)) == 200
        assert service.approve("order-1").how == "approved"
        service.reject("order-2")
        service.ignore(1003)
        with pytest.raises(ValueError, match="not pending"):
            service.approve("order-1")
        service.advance(300)
        assert [sale.how for sale in service.sales.values()] == ["approved", "rejected", "expired"]
        assert (service.counts.created, service.counts.pending) == (3, 0)
        assert service.notification_query("order-1") == "id=1001&clientTransactionID=order-1"
        with pytest.raises(ValueError, match="responseUrl"):
            service.forge("order-1")
        service.notifications_done()
        service.use_scenario("by-hand")
        service.fail_next(Fault("error"))
        service.stop()
        service.start()
        assert asyncio.run(sell(service, 4)) == 503
        assert service.faults.done == {"error": 1}
        assert service.created_per_client_id == {"order-1": 1, "order-2": 1, "order-3": 1}
        assert service.log[-1].fault == "error"
        first, second = (service.create_form(form_of(number)).payment_id for number in (1, 2))
        assert service.pay(first, declined=True).startswith("https://shop.example/back?id=")
        assert service.cancel_form(second, "wallet") is None
        assert [form.how for form in service.forms.values()] == ["declined", "cancelled"]
        with pytest.raises(AttributeError, match="nothing_such"):
            service.nothing_such()
    with pytest.raises(RuntimeError, match="not open"):
        service.approve("order-1")


def test_a_thread_that_cannot_listen_says_why() -> None:
    """The error is raised where it was opened, and the clock must be one that threads may move."""
    with SimulatorThread() as service:
        port = int(service.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address"), SimulatorThread(Simulator(port=port)):
            pass
    with pytest.raises(TypeError):
        SimulatorThread(Simulator(clock=ManualClock()))
