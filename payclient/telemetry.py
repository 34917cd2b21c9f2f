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
this process saw after the answer to the send.

Ids are attributes of spans, and never of metrics. Neither holds an amount, a phone or a name. A span of a sale, a form, a
cancellation or a reversal is a child of the caller's; queries and confirmations, which the tracker makes by itself for
all, begin traces of their own. Nothing is sent to the service that was not sent without it.
"""  # noqa: E501 - tables

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from payclient import sync
from payclient.errors import ConfigurationError
from payclient.lifecycle import Record, State
from payclient.logs import Log
from payclient.session import Exchange
from payclient.tracking.tracker import Tracker

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument"]

log: Log = Log("payclient.telemetry")

#: Bounds of the histograms, in seconds.
EXCHANGE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
DECISION_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)

#: Operations that the tracker makes by itself, in whatever context its timer was set.
BACKGROUND = frozenset({"status", "confirm"})


def instrument(  # noqa: C901 - its short callbacks are counted in one sum
    tracker: Tracker | sync.Tracker,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Make spans and metrics of a tracker from now on; what this returns ends it.

    The providers are the global ones unless given. A `payclient.sync` tracker is opened. Raises `ConfigurationError`
    where `opentelemetry-api` is not installed.
    """
    try:
        from opentelemetry import context, metrics, trace
    except ImportError:
        raise ConfigurationError(
            "telemetry needs opentelemetry-api: pip install payclient[otel]; nothing was changed"
        ) from None
    if isinstance(tracker, sync.Tracker):
        tracker = tracker._run(tracker._aopen)
    poller = tracker._poller
    session, asks, clock = poller.session, poller.asks, poller.clock
    tracer = trace.get_tracer("payclient", tracer_provider=tracer_provider)
    meter = metrics.get_meter("payclient", meter_provider=meter_provider)
    exchanges = meter.create_histogram(
        "payclient.exchange.duration",
        "s",
        "Exchanges with the service.",
        explicit_bucket_boundaries_advisory=EXCHANGE_BOUNDS,
    )
    decisions = meter.create_histogram(
        "payclient.decision.duration",
        "s",
        "From an ask's permit to its decision.",
        explicit_bucket_boundaries_advisory=DECISION_BOUNDS,
    )
    address = urlsplit(session.base_url)
    server: dict[str, str | int] = {
        "server.address": address.hostname or "",
        "server.port": address.port or (443 if address.scheme == "https" else 80),
    }
    is_on = True
    states = StateChanges(lambda: {ask.record.client_transaction_id for ask in asks.all()})

    def record_exchange(exchange: Exchange) -> None:
        labels = exchange_labels(exchange)
        exchanges.record(exchange.seconds, labels)
        ended = time.time_ns()
        span = tracer.start_span(
            f"{exchange.method} {exchange.operation}",
            context.Context() if exchange.operation in BACKGROUND else None,
            trace.SpanKind.CLIENT,
            {**server, **labels, **exchange_attributes(exchange, session.base_url)},
            start_time=ended - int(exchange.seconds * 1e9),
        )
        if exchange.error is not None:
            span.set_status(trace.StatusCode.ERROR)
        span.end(ended)

    def record_change(before: Record, after: Record) -> None:
        changes = states.add(after, clock.time())
        if not after.state.decided:
            return
        decided_at = clock.time() if after.decided_at is None else after.decided_at
        labels = {"payclient.kind": after.kind, "payclient.state": str(after.state)}
        if not before.state.decided and before.state is not State.REVERSING:
            decisions.record(max(decided_at - after.created_at, 0.0), labels)
        span = tracer.start_span(
            f"payclient {after.kind}",
            context.Context(),
            attributes={**labels, **record_attributes(after)},
            start_time=int(after.created_at * 1e9),
        )
        if after.notified_at is not None:
            span.add_event("payclient.notified", timestamp=int(after.notified_at * 1e9))
        for state, at in changes:
            span.add_event("payclient.state_changed", {"payclient.state": str(state)}, int(at * 1e9))
        span.end(int(decided_at * 1e9))

    # From the exporter's own thread: a copy of the index is taken at once, and records do not change.
    def read_asks(_: CallbackOptions) -> Iterable[Observation]:
        if is_on and not asks.closed:
            for labels, number in open_counts(ask.record for ask in asks.all() if not ask.elsewhere):
                yield metrics.Observation(number, labels)

    def read_age(_: CallbackOptions) -> Iterable[Observation]:
        if is_on and not asks.closed:
            records = (ask.record for ask in asks.all() if not ask.elsewhere)
            unknown = [each.created_at for each in records if each.state is State.UNKNOWN]
            yield metrics.Observation(max(clock.time() - min(unknown), 0.0) if unknown else 0.0)

    meter.create_observable_gauge("payclient.asks", [read_asks], "1", "Asks that this process follows.")
    meter.create_observable_gauge(
        "payclient.oldest_unknown.age", [read_age], "s", "Age of the oldest unknown ask; 0 if there is none."
    )
    earlier_on_exchange, earlier_on_change = session.on_exchange, asks.on_change

    def on_exchange(exchange: Exchange) -> None:
        if is_on:
            _call_guarded(record_exchange, exchange)
        if earlier_on_exchange is not None:
            earlier_on_exchange(exchange)

    def on_change(before: Record, after: Record) -> None:
        if is_on:
            _call_guarded(record_change, before, after)
        if earlier_on_change is not None:
            earlier_on_change(before, after)

    session.on_exchange, asks.on_change = on_exchange, on_change

    def stop() -> None:
        nonlocal is_on
        is_on = False
        if session.on_exchange is on_exchange:
            session.on_exchange = earlier_on_exchange
        if asks.on_change is on_change:
            asks.on_change = earlier_on_change

    return stop


def _call_guarded(record: Callable[..., object], *args: object) -> None:
    """Call `record`, and log what it raises: a fault of a span processor must not end the follow-up."""
    try:
        record(*args)
    except (Exception, asyncio.CancelledError) as error:
        log("error", "telemetry_failed", "", "telemetry failed: %s", type(error).__name__)


class StateChanges:
    """The states of open asks, each with its time in UTC seconds, until their spans are made."""

    def __init__(self, followed: Callable[[], set[str]]) -> None:
        self._followed = followed
        self._by_id: dict[str, list[tuple[State, float]]] = {}
        self._limit = 1024  # asks kept before those that are not followed here any more are removed

    def add(self, record: Record, at: float) -> list[tuple[State, float]]:
        """Add a record's state, and return all states of its ask; forget them where the ask is decided."""
        changes = self._by_id.setdefault(record.client_transaction_id, [])
        changes.append((record.state, at))
        if record.state.decided:
            del self._by_id[record.client_transaction_id]
        elif len(self._by_id) > self._limit:  # other processes follow some of them by now
            for identifier in self._by_id.keys() - self._followed():
                del self._by_id[identifier]
            self._limit = 1024 + 2 * len(self._by_id)
        return changes


def exchange_labels(exchange: Exchange) -> dict[str, str | int]:
    """Return the attributes of an exchange's metrics: few values each."""
    labels: dict[str, str | int] = {"payclient.operation": exchange.operation}
    if exchange.http_status is not None:
        labels["http.response.status_code"] = exchange.http_status
    if exchange.error is not None:
        labels["error.type"] = exchange.error
    return labels


def exchange_attributes(exchange: Exchange, base_url: str) -> dict[str, str | int | bool]:
    """Return the attributes of an exchange's span beside its labels."""
    attributes: dict[str, Any] = {
        "http.request.method": exchange.method,
        "url.full": f"{base_url}{exchange.path}",
        "payclient.sent": exchange.sent,
        "payclient.client_transaction_id": exchange.client_transaction_id,
        "payclient.transaction_id": exchange.transaction_id,
        "http.request.resend_count": exchange.resends or None,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def record_attributes(record: Record) -> dict[str, str | int]:
    """Return the ids of an ask, and what its state rests on."""
    attributes: dict[str, str | int] = {
        "payclient.client_transaction_id": record.client_transaction_id,
        "payclient.attempt": record.attempt,
        "payclient.evidence": str(record.evidence),
    }
    if record.transaction_id is not None:
        attributes["payclient.transaction_id"] = record.transaction_id
    return attributes


def open_counts(records: Iterable[Record]) -> Iterator[tuple[dict[str, str], int]]:
    """Count asks by kind and open state. Zeros are yielded too: else no alert would see a count fall to zero."""
    counts = {(kind, state): 0 for kind in ("sale", "form") for state in State if not state.decided}
    for record in records:
        key = record.kind, record.state
        counts[key] = counts.get(key, 0) + 1
    for (kind, state), number in counts.items():
        yield {"payclient.kind": kind, "payclient.state": str(state)}, number
