"""Which modules of payclient one call runs through: a sale, a notification up to its decision, a wait with one query.

Run: python benchmarks/crossings.py. The simulator and test code are not counted.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import attrs

import payclient
from _measure import sale_of
from payclient.simulator import PAYPHONE, Simulator

ROOT = Path(payclient.__file__).parent

PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)

#: At most so many modules.
TARGETS = {"tracker.sale": 16, "a notification up to the decision": 18, "wait() with one query": 16}


@contextmanager
def traced(found: dict[str, None]) -> Iterator[None]:
    """Collect the modules of payclient in which a function runs meanwhile, in their order."""
    known: dict[CodeType, str | None] = {}

    def profile(frame: FrameType, what: str, _: object) -> None:
        if what != "call":
            return
        code = frame.f_code
        if code not in known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] != "simulator"
            known[code] = os.fspath(path.relative_to(ROOT)) if inside else None
        name = known[code]
        if name is not None:
            found[name] = None

    everywhere = "setprofile_all_threads" if sys.version_info >= (3, 12) else "setprofile"
    getattr(threading, everywhere)(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # None ends it


def show(name: str, found: dict[str, None]) -> bool:
    print(f"{name}: {len(found)} modules (at most {TARGETS[name]})", *found, sep="\n    ")
    return len(found) <= TARGETS[name]


async def main() -> bool:
    good = True
    slow = payclient.Fixed(1000.0)  # no query but those that are meant
    async with (
        Simulator(settings=PAYPHONE) as service,
        payclient.open_tracker(service.url, "token", profile=PROFILE, schedule=slow) as tracker,
    ):
        await tracker.sale(sale_of(0))  # what is done once is no part of a sale
        found: dict[str, None] = {}
        charge = sale_of(1)
        with traced(found):
            sale = await tracker.sale(charge)
        good &= show("tracker.sale", found)

        await service.approve(sale.client_transaction_id)
        assert sale.transaction_id is not None
        hint = payclient.Notification(
            transaction_id=sale.transaction_id, client_transaction_id=sale.client_transaction_id
        )
        found = {}
        with traced(found):
            await tracker.notify(hint)
            await asyncio.sleep(0.2)  # before dead links of forms are looked for again
        assert sale.outcome.paid is True
        good &= show("a notification up to the decision", found)

    quick = payclient.Fixed(0.5)
    async with (
        Simulator(settings=PAYPHONE) as service,
        payclient.open_tracker(service.url, "token", profile=PROFILE, schedule=quick) as tracker,
    ):
        sale = await tracker.sale(sale_of(2))
        await service.approve(sale.client_transaction_id)
        found = {}
        with traced(found):
            assert (await sale.wait()).paid is True
        good &= show("wait() with one query", found)
    return good


if __name__ == "__main__":
    sys.exit(0 if asyncio.run(main()) else 1)
