"""Fixtures for your own tests: a simulated service and a tracker over it.

Named by `pytest_plugins = ["payclient.pytest_plugin"]`, and by no entry point, so that it loads only there. The service
runs in a thread of its own, so the tests may run under pytest-asyncio, under anyio, or without a loop, as with
Starlette's TestClient. (PYTEST_DONT_REWRITE: it asserts nothing, so who imports `PayService` for a type is not warned.)
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import attrs
import pytest

from payclient import simulator
from payclient.profile import PAYPHONE, ServiceProfile, StatusProfile
from payclient.schedule import Fixed
from payclient.simulator import JumpClock, Settings, Simulator, SimulatorThread
from payclient.tracking.context import open_tracker
from payclient.tracking.tracker import Tracker

try:  # pytest-asyncio's fixture serves its strict mode, too
    from pytest_asyncio import fixture as _asyncio_fixture
except ImportError:
    _asyncio_fixture = pytest.fixture  # type: ignore[assignment]  # its overloads are others

__all__ = ["PayService"]

_TOKEN = "simulated"  # noqa: S105 - of the simulator
_BEAT = 0.05  # seconds between two queries of one sale: tests do not wait

#: The simulated service's names for what the document leaves open, and the tracker's reading of it.
_SETTINGS = Settings(
    status_by_transaction_id="/api/Sale/{transaction_id}",
    status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
)
_PROFILE = ServiceProfile(
    name="simulated",
    not_found_codes=frozenset({_SETTINGS.not_found[1]}),
    status=StatusProfile(
        by_transaction_id=_SETTINGS.status_by_transaction_id,
        by_client_transaction_id=_SETTINGS.status_by_client_transaction_id,
        state_field=_SETTINGS.state_field,
    ),
)


@attrs.frozen(kw_only=True)
class PayService:
    """A running service. `control` answers for the customers, makes things go wrong and counts what was executed.

    `clock` is its time and its trackers': `control.advance(310)` lets a push expire in a call. All of it may be used
    from any thread and any loop.
    """

    url: str
    token: str = attrs.field(repr=False)
    clock: JumpClock
    control: SimulatorThread
    profile: ServiceProfile

    def open_tracker(self, **options: Any) -> AbstractAsyncContextManager[Tracker]:
        """Open a tracker over this service, for the loop that enters it; `options` are `open_tracker`'s."""
        return open_tracker(
            self.url,
            self.token,
            **{"profile": self.profile, "clock": self.clock, "schedule": Fixed(_BEAT), **options},
        )


def _serve(settings: Settings, profile: ServiceProfile) -> Iterator[PayService]:
    with SimulatorThread(Simulator(token=_TOKEN, settings=settings)) as control:
        yield PayService(url=control.url, token=_TOKEN, clock=control.clock, control=control, profile=profile)


@pytest.fixture
def pay_service() -> Iterator[PayService]:
    """Start a service whose customers answer when the test says so, with nothing of another test in it."""
    yield from _serve(_SETTINGS, _PROFILE)


@pytest.fixture
def payphone_service() -> Iterator[PayService]:
    """Start the preset's service, without its limit of queries.

    A fixture `pay_service` of your own that returns this one gives `pay_tracker` the preset, too.
    """
    settings = attrs.evolve(simulator.PAYPHONE, queries_per_minute=None)
    yield from _serve(settings, attrs.evolve(PAYPHONE, queries_per_minute=None))


async def _open_tracker(pay_service: PayService) -> AsyncIterator[Tracker]:
    async with pay_service.open_tracker() as tracker:
        yield tracker


_asyncio_pay_tracker = _asyncio_fixture(_open_tracker)
_anyio_pay_tracker = pytest.fixture(_open_tracker)


@pytest.fixture
def pay_tracker(request: pytest.FixtureRequest) -> Tracker:
    """Open a tracker over `pay_service` with a ledger in memory, in the test's own loop."""
    # A test belongs to one of the two; each opens the tracker in the loop in which it runs the test.
    runner = "anyio" if "anyio_backend" in request.fixturenames else "asyncio"
    return cast("Tracker", request.getfixturevalue(f"_{runner}_pay_tracker"))
