"""OpenTelemetry for a tracker: spans and metrics. Needs the extra `otel`, which is `opentelemetry-api` alone.

| span | from, to | attributes |
|---|---|---|
| `POST sale`, `GET status` ... (client) | one exchange with the service, its resends included | those of HTTP clients; `payclient.operation`, `payclient.sent`, ids |
| `payclient sale`, `payclient form` (internal) | the permit to the decision | `payclient.state`, `payclient.evidence`, ids; the events below |

| metric | unit | by |
|---|---|---|
| `payclient.exchange.duration`, a histogram | s | `payclient.operation`, `http.response.status_code`, `error.type` |
| `payclient.decision.duration`, a histogram | s | `payclient.kind`, `payclient.state` |
| `payclient.asks`, a gauge: what this process follows | 1 | `payclient.kind`, `payclient.state` |
| `payclient.oldest_unknown.age`, a gauge; 0 if none is unknown | s | |

Events of the second: `payclient.notified`, and `payclient.state_changed` with `payclient.state`, for each state that
this process saw after the answer to the send; of a reversal, its end alone.

Ids are attributes of spans, and never of metrics. Neither holds an amount, a phone or a name. The exchange of a sale, a
form, a cancellation or a reversal is a child of the caller's span; queries and confirmations, which the tracker makes by
itself for all, and the spans up to a decision begin traces of their own. Nothing is sent to the service that was not
sent without it.
"""  # noqa: E501 - tables

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from payclient import sync
from payclient.clock import Clock
from payclient.errors import ConfigurationError
from payclient.lifecycle import Record, State
from payclient.logs import Log
from payclient.session import Exchange
from payclient.tracking.asks import OpenAsks
from payclient.tracking.followup import Followed
from payclient.tracking.tracker import Tracker
from payclient.validation import check_type

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Tracer as OtelTracer
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument"]

log: Log = Log("payclient.telemetry")

#: Bounds of the histograms, in seconds.
EXCHANGE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DECISION_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)

#: Operations that the tracker makes by itself, in whatever context its timer was set.
BACKGROUND = frozenset({"status", "confirm"})

#: Open asks whose states are kept until their span (5 MB): the oldest of more may be decided by another process.
KEPT = 20_000


def instrument(
    tracker: Tracker | sync.Tracker,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Make spans and metrics of a tracker from now on.

    The providers are the global ones unless given. A `payclient.sync` tracker is opened. Raises `ConfigurationError`
    where `opentelemetry-api` is not installed.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        raise ConfigurationError(
            "telemetry needs opentelemetry-api: pip install payclient[otel]; nothing was changed"
        ) from None
    if isinstance(tracker, sync.Tracker):
        tracker = tracker._run(tracker._aopen)
    check_type("tracker", tracker, Tracker)
    session, asks, clock = tracker._poller.session, tracker._poller.asks, tracker._poller.clock
    tracer = trace.get_tracer("payclient", tracer_provider=tracer_provider)
    meter = metrics.get_meter("payclient", meter_provider=meter_provider)
    session.on_exchange = _before(session.on_exchange, _exchange_recorder(tracer, meter, session.base_url))
    asks.on_change = _before(asks.on_change, _change_recorder(tracer, meter, clock))
    _observed[:] = [*(each for each in _observed if not each[1].closed), (meter_provider, asks)]
    _make_gauges(meter, meter_provider)


def _exchange_recorder(tracer: OtelTracer, meter: Meter, base_url: str) -> Callable[[Exchange], None]:
    """Return the function that makes the span of each exchange, and measures it."""
    from opentelemetry import context, trace

    exchanges = meter.create_histogram(
        "payclient.exchange.duration", "s", "Exchanges with the service.",
        explicit_bucket_boundaries_advisory=EXCHANGE_BOUNDS,
    )  # fmt: skip
    address = urlsplit(base_url)
    port = address.port or (443 if address.scheme == "https" else 80)

    def record(exchange: Exchange) -> None:
        labels = _present(
            {
                "payclient.operation": exchange.operation,
                "http.response.status_code": exchange.http_status,
                "error.type": exchange.error,
            }
        )
        exchanges.record(exchange.seconds, labels)
        ended = time.time_ns()
        ids = _present(
            {
                "server.address": address.hostname,
                "server.port": port,
                "http.request.method": exchange.method,
                "url.full": f"{base_url}{exchange.path}",
                "payclient.sent": exchange.sent,
                "payclient.client_transaction_id": exchange.client_transaction_id,
                "payclient.transaction_id": exchange.transaction_id,
                "http.request.resend_count": exchange.resends or None,
            }
        )
        span = tracer.start_span(
            f"{exchange.method} {exchange.operation}",
            context.Context() if exchange.operation in BACKGROUND else None,
            trace.SpanKind.CLIENT,
            labels | ids,
            start_time=ended - int(exchange.seconds * 1e9),
        )
        if exchange.error is not None:
            span.set_status(trace.StatusCode.ERROR)
        span.end(ended)

    return record


def _change_recorder(tracer: OtelTracer, meter: Meter, clock: Clock) -> Callable[[Record, Record], None]:
    """Return the function that makes the span of each decided ask, and measures it."""
    from opentelemetry import context

    decisions = meter.create_histogram(
        "payclient.decision.duration", "s", "From an ask's permit to its decision.",
        explicit_bucket_boundaries_advisory=DECISION_BOUNDS,
    )  # fmt: skip
    #: By client transaction id, the states of an open ask, each with its time.
    states: dict[str, list[tuple[State, float]]] = {}

    def record(before: Record, after: Record) -> None:
        states.setdefault(after.client_transaction_id, []).append((after.state, clock.time()))
        if not after.state.decided:
            if len(states) > KEPT:
                del states[next(iter(states))]
            return
        decided_at = clock.time() if after.decided_at is None else after.decided_at
        labels = {"payclient.kind": after.kind, "payclient.state": str(after.state)}
        if not before.state.decided and before.state is not State.REVERSING:
            decisions.record(max(decided_at - after.created_at, 0.0), labels)
        ids = _present(
            {
                "payclient.client_transaction_id": after.client_transaction_id,
                "payclient.attempt": after.attempt,
                "payclient.evidence": str(after.evidence),
                "payclient.transaction_id": after.transaction_id,
            }
        )
        began = int(after.created_at * 1e9)
        span = tracer.start_span(
            f"payclient {after.kind}", context.Context(), attributes=labels | ids, start_time=began
        )
        if after.notified_at is not None:
            span.add_event("payclient.notified", timestamp=int(after.notified_at * 1e9))
        for state, at in states.pop(after.client_transaction_id):
            span.add_event("payclient.state_changed", {"payclient.state": str(state)}, int(at * 1e9))
        span.end(int(decided_at * 1e9))

    return record


def _make_gauges(meter: Meter, meter_provider: MeterProvider | None) -> None:
    """Make the gauges that read all trackers of a provider: of several gauges of one name its SDK reads only the first.

    The exporter's own thread reads them: a copy of each index is taken at once, and records do not change.
    """
    from opentelemetry import metrics

    def provider_of(given: MeterProvider | None) -> MeterProvider:
        return metrics.get_meter_provider() if given is None else given

    def observed() -> set[OpenAsks]:
        provider = provider_of(meter_provider)
        return {each for given, each in _observed if provider_of(given) is provider}

    def all_followed() -> Iterable[tuple[OpenAsks, Followed]]:
        return ((each, ask) for each in observed() for ask in each.all() if not ask.followed_elsewhere)

    def read_asks(_: CallbackOptions) -> Iterable[Observation]:
        if all(each.closed for each in observed()):
            return
        # Zeros too: else no alert would see a count fall to zero.
        counts = Counter(
            {(kind, state): 0 for kind in ("sale", "form") for state in State if not state.decided}
        )
        counts.update((ask.record.kind, ask.record.state) for _, ask in all_followed())
        for (kind, state), number in counts.items():
            yield metrics.Observation(number, {"payclient.kind": kind, "payclient.state": str(state)})

    def read_age(_: CallbackOptions) -> Iterable[Observation]:
        if all(each.closed for each in observed()):
            return
        unknown = [(each, ask) for each, ask in all_followed() if ask.record.state is State.UNKNOWN]
        ages = [each.clock.time() - ask.record.created_at for each, ask in unknown]
        yield metrics.Observation(max([0.0, *ages]))

    what = "Asks that this process follows."
    meter.create_observable_gauge("payclient.asks", [read_asks], "1", what)
    what = "Age of the oldest unknown ask; 0 if there is none."
    meter.create_observable_gauge("payclient.oldest_unknown.age", [read_age], "s", what)


#: The meter provider that each instrumented tracker was given, and the tracker's open asks.
_observed: list[tuple[MeterProvider | None, OpenAsks]] = []


def _present(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


def _before(earlier: Callable[..., object] | None, record: Callable[..., object]) -> Callable[..., None]:
    """Return a function that records, and then calls the one that was there."""

    def call(*args: object) -> None:
        try:
            record(*args)
        # A span processor's fault must not end the follow-up.
        except (Exception, asyncio.CancelledError) as error:
            log("error", "telemetry_failed", "", "telemetry failed: %s", type(error).__name__)
        if earlier is not None:
            earlier(*args)

    return call
