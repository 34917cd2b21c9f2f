"""The control API: what it refuses to foreign pages, its OpenAPI file, and a client in another language."""

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
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings

import payclient.simulator
import required
from payclient.cli import main
from payclient.simulator import (
    SCENARIOS,
    Answers,
    Fault,
    ManualClock,
    Settings,
    Simulator,
    SimulatorThread,
    SystemClock,
)
from payclient.simulator.faults import KINDS, OPERATIONS

ROOT = Path(__file__).parents[1]
DOCUMENT: dict[str, Any] = json.loads(
    files(payclient.simulator).joinpath("control.openapi.json").read_text(encoding="utf-8")
)

Answer = tuple[int, Any]


@pytest.fixture
async def service() -> AsyncIterator[Simulator]:
    async with Simulator() as simulator:
        yield simulator


async def ask(service: Simulator, method: str, path: str, **options: Any) -> Answer:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{service.url}/_simulator/{path}", **options) as response,
    ):
        return response.status, json.loads(await response.read())


async def sell(service: Simulator, number: int = 1, **changes: object) -> Answer:
    body = {
        "phoneNumber": f"09{number:08}",
        "countryCode": "593",
        "amount": 1150,
        "amountWithoutTax": 1150,
        "currency": "USD",
        "clientTransactionId": f"order-{number}",
        **changes,
    }
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session,
        session.post(f"{service.url}/api/Sale", json=body) as response,
    ):
        return response.status, await response.json(content_type=None)


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
    status, _ = await ask(service, "POST", "clock", json={"advance": 1}, headers={"Origin": origin})
    assert status == 403
    assert (await ask(service, "DELETE", "faults", headers={"Origin": origin}))[0] == 403
    own = {"Origin": service.url}
    assert (await ask(service, "POST", "clock", json={"advance": 1}, headers=own))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_a_form_could_send_is_refused(service: Simulator, kind: str) -> None:
    """Only JSON, which no foreign page may send without being allowed to."""
    status, _ = await ask(
        service, "POST", "faults", data=b'{"kind": "reset"}', headers={"Content-Type": kind}
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
    for path in ("counts", "phone"):
        assert (await ask(service, "GET", path, headers={"Host": host}))[0] == (200 if good else 403)
    rebound = {"Host": host, "Origin": f"http://{host}"}
    assert (await ask(service, "POST", "clock", json={"advance": 0}, headers=rebound))[0] == (
        200 if good else 403
    )


async def test_the_merchants_routes_ask_for_no_origin(service: Simulator) -> None:
    """The guard stands before the control routes alone."""
    assert (await sell(service))[0] == 200


async def test_a_cross_site_read_is_refused(service: Simulator) -> None:
    """What a browser says of itself counts, too."""
    assert (await ask(service, "GET", "phone", headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403


# What it does


async def test_a_sale_is_answered_forgotten_and_forged(service: Simulator) -> None:
    """Approve, reject and ignore, with 404 for no sale and 409 for one that is decided."""
    for number in (1, 2, 3):
        assert (await sell(service, number))[0] == 200
    assert (await ask(service, "POST", "sales/1001/approve"))[0] == 200
    assert (await ask(service, "POST", "sales/1002/reject"))[0] == 200
    assert (await ask(service, "POST", "sales/1003/ignore"))[0] == 200
    assert [sale.how for sale in service.sales.values()] == ["approved", "rejected", None]
    assert service.sales[1003].ignored
    for verb in ("approve", "reject", "ignore"):
        assert (await ask(service, "POST", f"sales/7/{verb}"))[0] == 404
        assert (await ask(service, "POST", f"sales/x/{verb}"))[0] == 404
        assert (await ask(service, "POST", f"sales/1001/{verb}"))[0] == 409
    assert (await ask(service, "POST", "sales/1001/forge"))[0] == 409  # there is no address
    assert (await ask(service, "POST", "sales/7/forge"))[0] == 404
    assert (await ask(service, "POST", "sales/1001/forge", json={"transaction_id": 0}))[0] == 400
    assert (await ask(service, "POST", "sales/1001/forge", json=[]))[0] == 400


async def test_a_forged_notification_arrives() -> None:
    """With the sale's own id, or with any other."""
    async with Simulator() as service, Simulator() as merchant:
        await sell(service, responseUrl=f"{merchant.url}/_simulator/aside")
        assert (await ask(service, "POST", "sales/1001/forge")) == (202, {"transaction_id": 1001})
        assert (await ask(service, "POST", "sales/1001/forge", json={"transaction_id": 5}))[0] == 202
        await service.notifications_done()
        forged = [entry for entry in service.log if entry.kind == "notification"]
        assert [(entry.transaction_id, entry.status) for entry in forged] == [(1001, 404), (5, 404)]
        assert len([entry for entry in merchant.log if entry.text == "followed a redirect"]) == 2


async def test_a_form_is_paid_declined_and_closed(service: Simulator) -> None:
    """By either link; 404 for no form, 409 for one that is decided, and the address to which a browser is sent."""
    ids = []
    for _ in range(3):
        assert (await ask(service, "POST", "samples/form"))[0] == 201
        ids.append(list(service.forms)[-1])
    paid, declined, closed = ids
    status, told = await ask(service, "POST", f"forms/{paid}/pay", json={"method": "wallet"})
    assert (status, told) == (
        200,
        {"location": f"{service.url}/?id=1001&clientTransactionId=sample-1"},
    )
    assert (await ask(service, "POST", f"forms/{declined}/decline"))[0] == 200
    assert (await ask(service, "POST", f"forms/{closed}/cancel")) == (200, {"location": f"{service.url}/"})
    made = [(form.how, form.method) for form in service.forms.values()]
    assert made == [("paid", "wallet"), ("declined", "card"), ("cancelled", "card")]
    for verb in ("pay", "decline", "cancel"):
        assert (await ask(service, "POST", f"forms/none/{verb}"))[0] == 404
        assert (await ask(service, "POST", f"forms/{paid}/{verb}"))[0] == 409
        assert (await ask(service, "POST", f"forms/{paid}/{verb}", json={"method": ["card"]}))[0] == 400
    assert paid not in repr(service.log)


async def test_faults_are_scripted_drawn_counted_and_cleared(service: Simulator) -> None:
    """What is asked for happens, is counted, and what is left is told."""
    assert (await ask(service, "POST", "faults", json={"kind": "error", "times": 2}))[0] == 201
    assert (await sell(service))[0] == 503
    _, told = await ask(service, "GET", "faults")
    fault = {"kind": "error", "operation": "sale", "when": "before", "status": 503, "seconds": 1.0}
    assert told["script"] == [{**fault, "times": 1}]
    assert told["done"] == {"error": 1}
    assert (await ask(service, "POST", "faults", json={"kind": "html", "chance": 1}))[0] == 201
    assert (await ask(service, "POST", "faults", json={"kind": "reset", "chance": 0.1}))[0] == 400
    _, told = await ask(service, "DELETE", "faults")
    assert (told["script"], told["chances"], told["done"]) == ([], [], {"error": 1})
    assert (await sell(service))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("faults", {"kind": "flood"}),
        ("faults", {"kind": "reset", "times": 0}),
        ("faults", {"kind": "reset", "times": 1, "chance": 0.5}),
        ("faults", {"kind": "reset", "chance": "1"}),
        ("faults", []),
        ("clock", {}),
        ("clock", {"advance": -1}),
        ("clock", {"advance": True}),
        ("clock", {"advance": 1e12}),
        ("restart", {"down": 1e9}),
        ("scenario", {"name": "none"}),
        ("scenario", {"name": 5}),
        ("scenario", {}),
    ],
)
async def test_what_cannot_be_is_told(service: Simulator, path: str, body: object) -> None:
    """400 with a message, and nothing is changed."""
    status, told = await ask(service, "POST", path, json=body)
    assert (status, list(told)) == (400, ["message"])
    assert (service.faults.script, dict(service.faults.chances.chances)) == ([], {})
    broken = await ask(service, "POST", path, data=b"{", headers={"Content-Type": "application/json"})
    assert broken[0] == 400


async def test_time_passes_in_a_call(service: Simulator) -> None:
    """And what was due has happened when it returns."""
    await sell(service)
    before = (await ask(service, "GET", "clock"))[1]["time"]
    after = (await ask(service, "POST", "clock", json={"advance": 300}))[1]["time"]
    assert after - before >= 300
    assert (await ask(service, "GET", "counts"))[1]["expired"] == 1


async def test_a_clock_that_cannot_jump_says_so() -> None:
    """409 where the clock is another's; a clock moved by hand is moved."""
    async with Simulator(clock=SystemClock()) as service:
        assert (await ask(service, "POST", "clock", json={"advance": 1}))[0] == 409
    clock = ManualClock()
    async with Simulator(clock=clock) as service:
        assert (await ask(service, "POST", "clock", json={"advance": 60}))[0] == 200
        assert clock.monotonic() == 60


async def test_a_restart_keeps_the_state(service: Simulator) -> None:
    """It is answered first; then connections break, and all is as before."""
    await sell(service)
    assert (await ask(service, "POST", "restart", json={})) == (202, {"down": 0.0})
    await until(lambda: [entry for entry in service.log if entry.text == "started again"])
    assert [sale["state"] for sale in (await ask(service, "GET", "sales"))[1]] == ["Pendiente"]


async def test_closing_does_not_wait_for_a_restart() -> None:
    """A service that is down for an hour closes at once."""
    async with Simulator() as service:
        await ask(service, "POST", "restart", json={"down": 3600})
        await until(lambda: [entry for entry in service.log if entry.text == "stopped"])


async def test_scenarios_are_listed_and_chosen(service: Simulator) -> None:
    """Each says in a line what it is."""
    assert (await ask(service, "GET", "scenarios"))[1] == {name: one.says for name, one in SCENARIOS.items()}
    assert (await ask(service, "POST", "scenario", json={"name": "flaky-gateway"}))[0] == 200
    assert service.faults.chances == SCENARIOS["flaky-gateway"].faults


async def test_the_log_is_read_on_from_a_number_and_waits(service: Simulator) -> None:
    """Nothing new: it answers as soon as there is, or when the wait is over."""
    await sell(service)
    _, first = await ask(service, "GET", "log")
    assert [(one["kind"], one["status"]) for one in first["entries"]] == [("request", 200)]
    waiting = asyncio.create_task(ask(service, "GET", f"log?after={first['last']}&wait=20"))
    await asyncio.sleep(0)
    await service.approve("order-1")
    _, more = await waiting
    assert [one["text"] for one in more["entries"]] == ["approved"]
    assert (await ask(service, "GET", f"log?after={more['last']}&wait=0.01"))[1]["entries"] == []
    for query in ("after=-1", "after=x", "wait=26", "wait=nan"):
        assert (await ask(service, "GET", f"log?{query}"))[0] == 400
    assert "0900000001" not in json.dumps(first)


async def test_the_log_stays_small_whatever_is_sent(service: Simulator) -> None:
    """An id of a megabyte is cut there, and nowhere else."""
    await sell(service, clientTransactionId="x" * 900_000)
    assert len(json.dumps((await ask(service, "GET", "log"))[1])) < 1000
    assert [len(sale.client_transaction_id) for sale in service.sales.values()] == [900_000]


async def test_closing_ends_who_waits_for_the_log() -> None:
    """A reader does not hold the service open."""
    async with Simulator() as service:
        waiting = asyncio.create_task(ask(service, "GET", "log?wait=20"))
        await until(lambda: service._journal.readers)
    await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 5)


async def test_samples_are_made_up(service: Simulator) -> None:
    """A charge and a form, each under an id of its own."""
    made = [(await ask(service, "POST", f"samples/{kind}"))[1] for kind in ("sale", "form", "sale")]
    assert [one["client_transaction_id"] for one in made] == ["sample-1", "sample-2", "sample-3"]
    assert (service.counts.created, service.counts.prepared) == (2, 1)
    _, phone = await ask(service, "GET", "phone")
    assert len(phone["pushes"]) == 2
    assert set(phone["forms"][0]["links"]) == {"wallet", "card"}


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


# The OpenAPI file


def test_the_file_names_every_route_and_no_other() -> None:
    """The page's own files and where redirects lead aside."""
    simulator = Simulator()
    application = simulator._application()
    served = set()
    for route in application.router.routes():
        path = "" if route.resource is None else route.resource.canonical
        if path.startswith("/_simulator") and route.method not in ("HEAD", "*") and "{name}" not in path:
            verbs = ("pay", "decline", "cancel") if "/forms/" in path else ("approve", "reject")
            for verb in verbs if "{verb}" in path else ("",):
                for kind in ("sale", "form") if "{kind}" in path else ("",):
                    served.add((route.method, path.replace("{verb}", verb).replace("{kind}", kind)))
    told = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert told == served


def test_the_file_names_every_kind_of_fault() -> None:
    """And every scenario: what is added to a table is added there."""
    members = DOCUMENT["components"]["schemas"]["Fault"]["properties"]
    assert members["kind"]["enum"] == list(KINDS)
    assert members["operation"]["enum"] == list(OPERATIONS)
    body = DOCUMENT["paths"]["/_simulator/scenario"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["properties"]["name"]["enum"] == list(SCENARIOS)


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[SimulatorThread]:
    with SimulatorThread(Simulator(settings=Settings())) as running:
        yield running


def _operations() -> list[tuple[str, str]]:
    return [(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods]


@pytest.mark.parametrize(("method", "path"), _operations())
def test_the_server_is_what_the_file_says(fuzzed: SimulatorThread, method: str, path: str) -> None:
    """Whatever is sent, the status and the body are among those that the file names (schemathesis)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tool's own imports
        schemathesis = required.module("schemathesis")
        from schemathesis.specs.openapi.checks import positive_data_acceptance
    narrowed = copy.deepcopy(DOCUMENT)
    # Nobody waits, nothing is restarted for an hour, and some of the ids exist.
    narrowed["paths"]["/_simulator/log"]["get"]["parameters"][1]["schema"] = {"enum": [0]}
    restart = narrowed["paths"]["/_simulator/restart"]["post"]["requestBody"]
    restart["required"] = True
    restart["content"]["application/json"]["schema"] = {
        "type": "object",
        "required": ["down"],
        "properties": {"down": {"const": -1}},
    }
    for each in narrowed["paths"].values():
        for operation in each.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "transaction_id":
                    parameter["schema"] = {"enum": [1001, 1002, 1003, 7]}
    schema = schemathesis.openapi.from_dict(narrowed)

    @given(case=schema[path][method].as_strategy())
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
    """Every control may be called from anywhere, and says what is wrong."""
    with SimulatorThread(Simulator(answers=Answers.parse("ignore=1"))) as service:
        with pytest.raises(LookupError):
            service.approve(1001)
        asyncio.run(_sell_three(service))
        service.approve("order-1")
        service.reject("order-2")
        service.ignore(1003)
        with pytest.raises(ValueError, match="not pending"):
            service.approve("order-1")
        service.advance(300)
        assert [sale.how for sale in service.sales.values()] == ["approved", "rejected", "expired"]
        assert (service.counts.created, service.counts.pending) == (3, 0)
        assert service.notification("order-1") == "id=1001&clientTransactionID=order-1"
        with pytest.raises(ValueError, match="responseUrl"):
            service.forge("order-1")
        service.notifications_done()
        service.use_scenario("by-hand")
        service.fail_next(Fault("error"))
        service.stop()
        service.start()
        assert asyncio.run(_sell(service, 4)) == 503
        assert service.faults_done == {"error": 1}
        assert service.created_per_client_id == {"order-1": 1, "order-2": 1, "order-3": 1}
        assert service.log[-1].fault == "error"
        first, second = (asyncio.run(_prepare(service, number)) for number in (1, 2))
        assert service.pay(first, declined=True).startswith("https://shop.example/back?id=")
        assert service.cancel_form(second, "wallet") is None
        assert [form.how for form in service.forms.values()] == ["declined", "cancelled"]
    with pytest.raises(RuntimeError, match="not open"):
        service.approve("order-1")


async def _sell(service: SimulatorThread, number: int) -> int:
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session,
        session.post(
            f"{service.url}/api/Sale",
            json={
                "phoneNumber": f"09{number:08}",
                "countryCode": "593",
                "amount": 5,
                "tip": 5,
                "currency": "USD",
                "clientTransactionId": f"order-{number}",
            },
        ) as response,
    ):
        return response.status


async def _prepare(service: SimulatorThread, number: int) -> str:
    body = {
        "amount": 5,
        "tip": 5,
        "currency": "USD",
        "clientTransactionId": f"cart-{number}",
        "storeId": "S1",
        "responseUrl": "https://shop.example/back",
    }
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session,
        session.post(f"{service.url}/api/button/Prepare", json=body) as response,
    ):
        return str((await response.json(content_type=None))["paymentId"])


async def _sell_three(service: SimulatorThread) -> None:
    assert [await _sell(service, number) for number in (1, 2, 3)] == [200, 200, 200]


def test_a_thread_that_cannot_listen_says_why() -> None:
    """The error is raised where it was opened, and the clock must be one that threads may move."""
    with SimulatorThread() as service:
        port = int(service.url.rpartition(":")[2])
        with pytest.raises(OSError, match="address"), SimulatorThread(Simulator(port=port)):
            pass
    with pytest.raises(TypeError):
        SimulatorThread(Simulator(clock=ManualClock()))
