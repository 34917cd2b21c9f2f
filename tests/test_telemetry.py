"""`payclient.telemetry`: spans and metrics by the SDK's exporters in memory, and nothing where it is not used."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import payclient
from fake_ledgers import SharedLedger
from fake_service import (
    PROFILE,
    FakeService,
    Gate,
    Scripted,
    answer,
    error_of,
    lost_answer,
    outcome_of,
    paid,
    pending_of,
    refuses,
    sale,
    tracking,
    two_processes,
)
from payclient import sync, telemetry
from payclient.models import Notification
from payclient.simulator import PAYPHONE, Simulator, SimulatorThread
from required import module
from test_reversals import PROFILE as REVERSIBLE
from test_reversals import Service as Reversing


class Exported:
    """What was exported, as plain values."""

    def __init__(self) -> None:
        trace, metrics = module("opentelemetry.sdk.trace"), module("opentelemetry.sdk.metrics")
        self._spans = module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
        self._reader = module("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
        self.tracer_provider = trace.TracerProvider(shutdown_on_exit=False)
        processor = module("opentelemetry.sdk.trace.export").SimpleSpanProcessor(self._spans)
        self.tracer_provider.add_span_processor(processor)
        self.meter_provider = metrics.MeterProvider([self._reader], shutdown_on_exit=False)

    def instrument(self, tracker: payclient.Tracker | sync.Tracker) -> None:
        telemetry.instrument(
            tracker, tracer_provider=self.tracer_provider, meter_provider=self.meter_provider
        )

    def spans(self) -> list[Any]:
        return list(self._spans.get_finished_spans())

    def points(self, name: str) -> dict[frozenset[tuple[str, object]], Any]:
        """The points of a metric by their attributes."""
        data = self._reader.get_metrics_data()
        return {
            frozenset(point.attributes.items()): point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    def everything(self) -> str:
        data = self._reader.get_metrics_data()
        return repr([span.to_json() for span in self.spans()]) + (data.to_json() if data else "")

    def close(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    yield made
    made.close()


def labels(**values: object) -> frozenset[tuple[str, object]]:
    return frozenset((name.replace("__", "."), value) for name, value in values.items())


async def test_a_sale_and_its_queries(exported: Exported) -> None:
    """The sale's span is a child of the caller's; queries, which are made for all, are not."""
    service = FakeService()
    async with tracking(service) as tracker:
        exported.instrument(tracker)
        with exported.tracer_provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
            personal = sale(amount_with_tax=987600, tax=12345, optional_parameter1="Ana Pérez")
            pending = await tracker.sale(personal)
        await tracker.notify(Notification(transaction_id=1000, client_transaction_id="order-17"))
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        # No amount, phone, name or token anywhere. Whole numbers: an id of a span or a time may have the same digits.
        text = exported.everything()
        assert not re.search(r"0984111222|\b(987600|999945|12345)\b|Ana|token", text)
        names = ("exchange.duration", "decision.duration", "asks", "oldest_unknown.age")
        told = [key for name in names for point in exported.points(f"payclient.{name}") for key, _ in point]
        assert set(told) == {
            "payclient.operation", "payclient.kind", "payclient.state", "http.response.status_code",
        }, "ids are on spans only"  # fmt: skip
    spans = exported.spans()
    (sent,) = [span for span in spans if span.name == "POST sale"]
    assert sent.parent.span_id == checkout.get_span_context().span_id
    assert dict(sent.attributes) == {
        "http.request.method": "POST", "http.response.status_code": 200, "server.address": "pay.example",
        "server.port": 443, "url.full": "https://pay.example/api/Sale", "payclient.operation": "sale",
        "payclient.sent": True, "payclient.client_transaction_id": "order-17", "payclient.transaction_id": 1000,
    }  # fmt: skip
    assert sent.start_time <= sent.end_time
    queries = [span for span in spans if span.name == "GET status"]
    assert queries
    assert {span.parent for span in queries} == {None}
    (whole,) = [span for span in spans if span.name == "payclient sale"]
    assert dict(whole.attributes) == {
        "payclient.kind": "sale", "payclient.state": "accepted", "payclient.evidence": "query",
        "payclient.client_transaction_id": "order-17", "payclient.attempt": 1, "payclient.transaction_id": 1000,
    }  # fmt: skip
    assert [event.name for event in whole.events] == ["payclient.notified", "payclient.state_changed"]
    assert dict(whole.events[1].attributes) == {"payclient.state": "accepted"}
    assert whole.start_time <= whole.events[0].timestamp <= whole.events[1].timestamp <= whole.end_time
    (point,) = exported.points("payclient.decision.duration").values()
    assert point.count == 1
    assert point.sum == pytest.approx((whole.end_time - whole.start_time) / 1e9, abs=0.01)
    of_sales = exported.points("payclient.exchange.duration")[
        labels(payclient__operation="sale", http__response__status_code=200)
    ]
    assert of_sales.count == 1


async def test_a_query_that_a_caller_makes_has_no_parent(exported: Exported) -> None:
    """It is shared by all who wait, as those that the tracker makes by itself are. The hook is called all the same."""
    service, told = FakeService(), list[payclient.Exchange]()
    async with payclient.open_tracker(
        "https://pay.example", "token", profile=PROFILE, transport=service, on_exchange=told.append
    ) as tracker:
        exported.instrument(tracker)
        with exported.tracer_provider.get_tracer("shop").start_as_current_span("checkout"):
            await (await tracker.sale(sale())).check()
    (query,) = [span for span in exported.spans() if span.name == "GET status"]
    assert query.parent is None
    assert (query.end_time - query.start_time) / 1e9 == pytest.approx(told[1].seconds, abs=1e-5)
    assert [each.operation for each in told] == ["sale", "status"]


async def test_the_states_of_many_open_asks_are_not_all_kept(
    exported: Exported, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of more may be decided by another process: their states would stay for ever."""
    monkeypatch.setattr(telemetry, "KEPT", 1)
    async with tracking(service) as tracker:
        exported.instrument(tracker)
        for number in range(2):
            service.scripts.append(lost_answer)
            pending = await tracker.sale(sale(f"order-{number}", phone=f"098411122{number}"))
            await service.clock.advance(60)
            assert pending.state is payclient.State.PENDING
        for transaction_id in (1000, 1001):
            service.decide("Aceptado", transaction_id)
        await service.clock.advance(60)
    states = {
        span.attributes["payclient.client_transaction_id"]: [
            event.attributes["payclient.state"] for event in span.events
        ]
        for span in exported.spans()
        if span.name == "payclient sale"
    }
    assert states == {"order-0": ["accepted"], "order-1": ["pending", "accepted"]}


async def test_the_states_of_a_lost_answer(exported: Exported) -> None:
    """Each state is an event of the span, at its time; a correction is a span of its own."""
    service = FakeService()
    async with tracking(service) as tracker:
        exported.instrument(tracker)
        service.scripts.append(lost_answer)
        pending = await tracker.sale(sale())
        await service.clock.advance(60)
        assert pending.state is payclient.State.PENDING
        await service.clock.advance(60)
        service.decide("Cancelado")
        assert (await outcome_of(service, pending)).paid is False
        service.decide("Aceptado")
        await tracker.notify(Notification(transaction_id=1000, client_transaction_id="order-17"))
        for _ in range(5):
            await service.clock.advance(1.0)
    whole, corrected = [span for span in exported.spans() if span.name == "payclient sale"]
    assert [event.attributes["payclient.state"] for event in whole.events] == ["pending", "cancelled"]
    assert whole.events[1].timestamp - whole.events[0].timestamp >= 60e9
    told = [event.attributes.get("payclient.state") for event in corrected.events]
    assert [state for state in told if state is not None] == ["accepted"]
    (sent,) = [span for span in exported.spans() if span.name == "POST sale"]
    assert (sent.attributes["payclient.sent"], sent.attributes.get("http.response.status_code")) == (
        True,
        None,
    )
    decided = exported.points("payclient.decision.duration")
    assert set(decided) == {labels(payclient__kind="sale", payclient__state="cancelled")}, (
        "it is decided once"
    )


async def test_what_fails_and_what_is_open(exported: Exported) -> None:
    """Errors by their class, asks by state, and the age of the oldest unknown one."""
    service = FakeService()
    async with tracking(service, status=never) as tracker:
        exported.instrument(tracker)
        service.scripts += [lost_answer, refuses(111)]
        await tracker.sale(sale())
        with pytest.raises(payclient.RefusedError):
            await tracker.sale(sale("order-18", phone="0984111333"))
        await tracker.sale(sale("order-19", phone="0984111444"))
        await service.clock.advance(40)
        asks = exported.points("payclient.asks")
        assert asks[labels(payclient__kind="sale", payclient__state="unknown")].value == 1
        assert asks[labels(payclient__kind="sale", payclient__state="pending")].value == 1
        assert asks[labels(payclient__kind="form", payclient__state="pending")].value == 0
        (age,) = exported.points("payclient.oldest_unknown.age").values()
        assert age.value == 40.0
    found = exported.points("payclient.exchange.duration")
    assert labels(payclient__operation="sale", error__type="OutcomeUnknownError") in found
    assert (
        labels(payclient__operation="sale", http__response__status_code=400, error__type="RefusedError")
        in found
    )
    assert exported.points("payclient.asks") == {}, "a closed tracker follows nothing"
    failed = [span for span in exported.spans() if not span.status.is_ok and "error.type" in span.attributes]
    assert len(failed) == 2


async def test_a_sale_that_is_refused_at_once(exported: Exported) -> None:
    """It is decided as others are, though nothing follows it."""
    service = FakeService()
    service.scripts.append(refuses(111))
    async with tracking(service) as tracker:
        exported.instrument(tracker)
        await error_of(payclient.RefusedError, tracker.sale(sale()))
        (point,) = exported.points("payclient.decision.duration").items()
    (whole,) = [span for span in exported.spans() if span.name == "payclient sale"]
    assert (whole.attributes["payclient.state"], len(whole.events)) == ("refused", 1)
    assert (point[0], point[1].count) == (labels(payclient__kind="sale", payclient__state="refused"), 1)


@pytest.mark.parametrize("is_waited_for", [False, True])
async def test_a_payment_that_is_given_back_at_once(exported: Exported, is_waited_for: bool) -> None:
    """It is decided once more, by the answer, whether or not somebody follows it by then."""
    service, gate = Reversing(), Gate()
    async with tracking(
        service, profile=REVERSIBLE, transport=gate.before(service, "/api/Reverse")
    ) as tracker:
        pending = await paid(service, tracker)
        exported.instrument(tracker)
        reversing = asyncio.create_task(tracker.reverse(pending))
        await gate.there.wait()
        if is_waited_for:
            await pending_of(tracker)
        gate.go.set()
        await reversing
    (whole,) = [span for span in exported.spans() if span.name == "payclient sale"]
    assert whole.attributes["payclient.state"] == "reversed"


async def test_a_sale_of_several_processes(service: FakeService, exported: Exported) -> None:
    """It is counted once, in the process that follows it, whichever others wait for it or find its end."""
    async with two_processes(service) as (first, second):
        exported.instrument(first)
        exported.instrument(second)
        waited, checked = await first.sale(sale()), await first.sale(sale("order-18", phone="0984111333"))
        waiting = asyncio.ensure_future((await pending_of(second)).wait())
        await service.clock.advance(1)
        pending = labels(payclient__kind="sale", payclient__state="pending")
        assert exported.points("payclient.asks")[pending].value == 2
        service.decide("Aceptado")
        service.decide("Aceptado", 1001)
        assert (await (await pending_of(second, "order-18")).check()).paid is True
        assert (await outcome_of(service, waited)).paid is (await waiting).paid is True
        assert (await outcome_of(service, checked)).paid is True
    (point,) = exported.points("payclient.decision.duration").values()
    assert (point.count, len([each for each in exported.spans() if each.name == "payclient sale"])) == (2, 2)


async def test_a_later_attempt_of_another_process(
    service: FakeService, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that looks at an earlier attempt once more counts no later one, which the other one sent."""
    ledger = SharedLedger()
    monkeypatch.setattr(ledger, "watch", lambda _: lambda: None)  # it hears of no attempt that is not decided
    service.scripts = [refuses(22, 2061)]
    async with tracking(service, ledger) as first, tracking(service, SharedLedger(ledger)) as second:
        exported.instrument(first)
        exported.instrument(second)
        await error_of(payclient.CustomerBusyError, first.sale(sale()))
        pending = await second.sale(sale())
        service.decide("Aceptado")
        assert (await outcome_of(service, pending)).paid is True
        await service.clock.advance(1000)
    states = [
        (each.attributes or {})["payclient.state"]
        for each in exported.spans()
        if each.name == "payclient sale"
    ]
    assert states == ["refused", "accepted"]


async def test_several_trackers_of_a_process(service: FakeService, exported: Exported) -> None:
    """The gauges are those of all that are open; the SDK read the first tracker's alone, and after its end nobody's."""
    pending = labels(payclient__kind="sale", payclient__state="pending")
    async with tracking(service) as first:
        exported.instrument(first)
        await first.sale(sale())
        async with tracking(service) as second:
            exported.instrument(second)
            await second.sale(sale("order-18", phone="0984111333"))
            assert exported.points("payclient.asks")[pending].value == 2
    async with tracking(service, status=never) as third:
        exported.instrument(third)
        service.scripts = [lost_answer]
        await third.sale(sale("order-19", phone="0984111444"))
        assert exported.points("payclient.asks")[pending].value == 0
        await service.clock.advance(7)
        (age,) = exported.points("payclient.oldest_unknown.age").values()
        assert age.value == 7.0


async def test_the_global_provider_that_is_given_too(
    service: FakeService, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gauges are of all its trackers, given or not; it may have no hash, as a dataclass has none."""
    monkeypatch.setattr(type(exported.meter_provider), "__hash__", None)
    monkeypatch.setattr("opentelemetry.metrics._internal._METER_PROVIDER", exported.meter_provider)
    async with tracking(service) as first, tracking(service) as second:
        exported.instrument(first)
        telemetry.instrument(second)
        await second.sale(sale())
        pending = labels(payclient__kind="sale", payclient__state="pending")
        assert exported.points("payclient.asks")[pending].value == 1


async def never(_: payclient.TransactionRef) -> None:
    """A status source that fails."""
    raise ConnectionResetError


async def test_a_request_that_is_sent_again(exported: Exported, delays: object) -> None:
    """One exchange, with its resends counted."""
    transport = Scripted(answer(200, {"transactionId": 1000}), refused=2)
    async with tracking(FakeService(), transport=transport) as tracker:
        exported.instrument(tracker)
        await tracker.sale(sale())
    (sent,) = [span for span in exported.spans() if span.name == "POST sale"]
    assert sent.attributes["http.request.resend_count"] == 2


@pytest.mark.parametrize("raised", [ZeroDivisionError, asyncio.CancelledError])
async def test_it_harms_nobody(
    exported: Exported,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    raised: type[BaseException],
) -> None:
    """What an exporter raises is logged by its class."""
    service = FakeService()
    async with tracking(service) as tracker:
        exported.instrument(tracker)

        def fail(*_: object, **__: object) -> None:
            raise raised("secret")

        with monkeypatch.context() as patch:
            patch.setattr(type(exported.tracer_provider.get_tracer("any")), "start_span", fail)
            pending = await tracker.sale(sale())
            service.decide("Aceptado")
            assert (await outcome_of(service, pending)).paid is True
        assert f"telemetry failed: {raised.__name__}" in caplog.text
        assert "secret" not in caplog.text


def test_a_sync_tracker(exported: Exported) -> None:
    with (
        SimulatorThread(Simulator(token="secret", settings=PAYPHONE)) as service,
        sync.open_tracker(service.url, "secret", profile="payphone") as tracker,
    ):
        exported.instrument(tracker)
        tracker.sale(sale())
        assert "POST sale" in [span.name for span in exported.spans()]


def test_without_the_extra() -> None:
    """payclient loads none of it, and says what to install."""
    program = """
import sys
import payclient, payclient.sync, payclient.telemetry
print("opentelemetry" in sys.modules)
sys.modules["opentelemetry"] = None
try:
    payclient.telemetry.instrument(None)
except payclient.ConfigurationError as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.startswith("False\n")
    assert "pip install payclient[otel]" in out
