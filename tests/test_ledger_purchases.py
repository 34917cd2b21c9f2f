"""One purchase, paid once: which asks the permit refuses, in every ledger; and the links of forms while they live."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import asyncpg
import attrs
import pytest

from payclient.events import (
    Abandoned,
    Event,
    Exhausted,
    Expired,
    FoundAccepted,
    FoundCancelled,
    Lost,
    Notified,
    Prepared,
    Recovered,
    ReversalNotSent,
    ReversalPermitted,
)
from payclient.ledger import Ledger, PurchaseHeldError, backup_ledger, open_ledger
from payclient.lifecycle import Record, State
from postgres_server import PostgresServer
from test_ledger import NOW, PATHS, brought, fresh
from test_ledger import ledger as ledger  # the fixture

#: When the links of the forms here are dead.
DEAD = NOW + 1500

PREPARED = Prepared(at=NOW, expires_at=NOW + 1200)
PAID = FoundAccepted(at=NOW + 50, transaction_id=7)
EXPIRED = (PREPARED, Expired(at=NOW + 1200))


def form(client_transaction_id: str, at: float = NOW) -> Record:
    return attrs.evolve(
        fresh(client_transaction_id, at=at), kind="form", purchase="order", links_dead_at=at + 1500
    )


def sale(client_transaction_id: str, at: float = NOW + 60, *, beside_open_form: bool = False) -> Record:
    return attrs.evolve(
        fresh(client_transaction_id, at=at), purchase="order", beside_open_form=beside_open_form
    )


async def granted(ledger: Ledger, record: Record) -> bool:
    """Whether another ask is permitted, and told of the first one where it is not."""
    (first, *_) = await ledger.asks(record.purchase)
    try:
        return await ledger.permit(record)
    except PurchaseHeldError as held:
        if held.holder != first:
            raise
        return False


SALES: dict[str, tuple[tuple[Event, ...], bool]] = {
    **{state: (PATHS[state], state in (State.CANCELLED, State.REFUSED, State.REVERSED)) for state in State},
    "recovered": ((Recovered(at=NOW, expires_at=NOW + 330),), False),
    "exhausted": ((*PATHS[State.EXPIRED], Exhausted(at=NOW + 400)), True),
    "notified again": (
        (*PATHS[State.EXPIRED], Exhausted(at=NOW + 400), Notified(at=NOW + 500, transaction_id=7)),
        True,
    ),
    "paid after all": (
        (*PATHS[State.EXPIRED], Exhausted(at=NOW + 400), FoundAccepted(at=NOW + 500, transaction_id=7)),
        False,
    ),
}


async def test_another_ask_beside_a_sale(ledger: Ledger) -> None:
    """It is refused while the first is paid, or may yet be paid: an expired one until its last query was made."""
    for case, (events, free) in SALES.items():
        first, beside, late, a_form = (
            attrs.evolve(each, purchase=case)
            for each in (
                sale(f"{case}-first", NOW), sale(f"{case}-beside", beside_open_form=True),
                sale(f"{case}-late", NOW + 1e9), form(f"{case}-form", NOW + 60),
            )
        )  # fmt: skip
        record = await _permitted(ledger, first)
        for event in events:
            record = await ledger.apply(record, event)
        # Before one is granted, which would hold the next.
        for other in (beside, late, a_form):
            assert await granted(ledger, other) is free, case
            if free:
                await ledger.apply(other, PATHS[State.REFUSED][0])
        assert len(await ledger.asks(case)) == (4 if free else 1), case


#: The events of a form, and whether another ask is permitted: while its links live, after that.
FORMS: dict[str, tuple[tuple[Event, ...], bool, bool]] = {
    "sending": ((), False, True),
    "prepared": ((PREPARED,), False, True),
    "expired": (EXPIRED, False, False),
    "exhausted": ((*EXPIRED, Exhausted(at=NOW + 1300)), False, True),
    "recovered": ((Recovered(at=NOW, expires_at=NOW + 1230),), False, True),
    "without links": ((Lost(at=NOW, expires_at=NOW + 1230),), True, True),
    "notified": (
        (Lost(at=NOW, expires_at=NOW + 1230), Notified(at=NOW + 50, transaction_id=7)),
        False,
        True,
    ),
    "closed by its customer": ((PREPARED, Abandoned(at=NOW + 50)), False, True),
    "cancelled": ((PREPARED, FoundCancelled(at=NOW + 50)), True, True),
    "refused": (PATHS[State.REFUSED], True, True),
    "paid": ((PREPARED, FoundAccepted(at=NOW + 50, transaction_id=7)), False, False),
    "given back": (
        (PREPARED, FoundAccepted(at=NOW + 50, transaction_id=7), FoundCancelled(at=NOW + 55)),
        True,
        True,
    ),
}


@pytest.mark.parametrize("beside", [False, True], ids=["", "beside"])
async def test_another_ask_beside_a_form(ledger: Ledger, beside: bool) -> None:
    """It is refused until the links are dead, and of one that expired until its last query, or the service calls it
    cancelled; a push may be allowed all the same.
    """
    for case, (events, free, later) in FORMS.items():
        record = await _permitted(ledger, attrs.evolve(form(f"{case}-first"), purchase=case))
        for event in events:
            record = await ledger.apply(record, event)
        if beside:
            free = free or record.state is not State.ACCEPTED
        push, late = (
            attrs.evolve(each, purchase=case)
            for each in (
                sale(f"{case}-push", DEAD - 1, beside_open_form=beside), sale(f"{case}-push", DEAD)
            )
        )  # fmt: skip
        assert await granted(ledger, push) is free, case
        if not free:
            assert await granted(ledger, late) is later, case


async def test_a_second_attempt_is_an_ask(ledger: Ledger) -> None:
    """What another ask of the purchase forbids is forbidden to the next attempt of an old id as well."""
    refused = await ledger.apply(await _permitted(ledger, sale("first")), PATHS[State.REFUSED][0])
    again = attrs.evolve(sale("first"), attempt=2)
    other = await _permitted(ledger, sale("second"))
    with pytest.raises(PurchaseHeldError) as held:
        await ledger.permit(again)
    assert held.value.holder == other
    await ledger.apply(other, PATHS[State.REFUSED][0])
    assert await ledger.permit(again)
    assert await ledger.permit(again) is False
    assert [(each.client_transaction_id, each.attempt) for each in await ledger.asks("order")] == [
        ("first", 1), ("second", 1), ("first", 2),
    ]  # fmt: skip
    assert refused.purchase == "order"


async def test_a_correction_may_make_it_paid_twice(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """The service's word is recorded whatever it means; both payments are among the purchase's asks."""
    first = await ledger.apply(await _permitted(ledger, sale("first")), PATHS[State.REFUSED][0])
    second = await _permitted(ledger, sale("second"))
    for event in PATHS[State.ACCEPTED]:
        second = await ledger.apply(second, event)
    with caplog.at_level("CRITICAL"):
        both = await ledger.apply(first, FoundAccepted(at=NOW + 90, transaction_id=8))
    assert caplog.messages == ["first: paid, and its purchase also by second: give one back"]
    assert await ledger.get("first") == both
    *_, paid, seen = await ledger.changes()
    assert (paid.event, seen.event, seen.after) == ("FoundAccepted", "Overpaid", State.ACCEPTED)
    assert json.loads(seen.detail or "") == {"also": ["second"]}
    assert await ledger.history("first") == [*(await ledger.history("first"))[:-2], paid, seen]
    assert [each.state for each in await ledger.asks("order")] == [State.ACCEPTED] * 2
    reversing = await ledger.apply(both, ReversalPermitted(at=NOW + 91, expires_at=NOW + 99))
    # It was paid all the while: no second alarm.
    assert await ledger.apply(reversing, ReversalNotSent(at=NOW + 92)) == await ledger.get("first")
    assert [each.event for each in await ledger.history("first")].count("Overpaid") == 1
    with pytest.raises(PurchaseHeldError):
        await ledger.permit(sale("third", beside_open_form=True))


async def test_a_paid_ask_is_named_before_an_open_one(ledger: Ledger) -> None:
    """Whoever is refused is told that it is paid, whichever of the two was asked for first."""
    await _permitted(ledger, form("form", at=NOW + 70))
    paid = await _permitted(ledger, sale("push", beside_open_form=True))
    for event in PATHS[State.ACCEPTED]:
        paid = await ledger.apply(paid, event)
    await ledger.apply(form("form", at=NOW + 70), PREPARED)
    with pytest.raises(PurchaseHeldError) as held:
        await ledger.permit(sale("late"))
    assert held.value.holder == paid


async def test_a_form_whose_links_nobody_timed(ledger: Ledger) -> None:
    """Its links may live for ever."""
    await _permitted(ledger, attrs.evolve(form("form"), links_dead_at=None))
    assert not await granted(ledger, sale("push", at=NOW + 1e6))


async def test_a_purchase_is_the_id_where_none_is_given(ledger: Ledger) -> None:
    record = await brought(ledger, State.PENDING, "order")
    assert record.purchase == "order"
    assert not await granted(ledger, sale("other"))
    assert await ledger.asks("order") == [record]
    assert await ledger.asks("nothing") == []


async def test_many_asks_in_one_batch(ledger: Ledger) -> None:
    """Of those that are asked for at once one of each purchase is granted, beside what else is in the batch."""
    asked = [
        attrs.evolve(sale(f"{purchase}-{number}"), purchase=f"cart-{purchase}")
        for purchase in range(20)
        for number in range(5)
    ]
    answers = await asyncio.gather(
        *(ledger.permit(each) for each in asked), brought(ledger, State.ACCEPTED), return_exceptions=True
    )
    won = Counter(each.purchase for each, answer in zip(asked, answers, strict=False) if answer is True)
    assert won == {f"cart-{purchase}": 1 for purchase in range(20)}
    assert sum(isinstance(answer, PurchaseHeldError) for answer in answers) == 80


async def _permitted(ledger: Ledger, record: Record) -> Record:
    assert await ledger.permit(record)
    return record


# --- Several processes

PAIRS = 800

_RACER = """
import asyncio, random, sys, attrs
from payclient.ledger import PurchaseHeldError, open_ledger
from test_ledger import fresh

async def main(url, name, pairs):
    ledger = await open_ledger(url, create=False)
    won = 0
    async def ask(number):
        nonlocal won
        record = attrs.evolve(fresh(f"{name}-{number}"), purchase=f"order-{number}")
        try:
            granted = await ledger.permit(record)
            won += granted
        except PurchaseHeldError as held:
            assert held.holder.purchase == record.purchase
    for first in range(0, pairs, 200):
        print("ready", flush=True)  # so that both begin each round together, however busy the machine is
        sys.stdin.readline()
        # In another order in each process, so that what they insert crosses.
        numbers = iter(random.sample(range(first, first + 200), 200))
        async def worker():
            for number in numbers:
                await ask(number)
        await asyncio.gather(*(worker() for _ in range(10)))
    await ledger.aclose()
    print(won)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


async def test_two_processes_race_for_each_purchase(postgres: PostgresServer) -> None:
    """Under two client transaction ids at once: the database grants one, and none is left without any."""
    url = postgres.url(await postgres.emptied())
    await (await open_ledger(url)).aclose()
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    racers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", _RACER, url, name, str(PAIRS), stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": path},
        )
        for name in "ab"
    ]  # fmt: skip
    for _ in range(0, PAIRS, 200):
        for racer in racers:
            assert racer.stdout is not None
            assert await racer.stdout.readline() == b"ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write(b"go\n")
    ended = await asyncio.gather(*(racer.communicate() for racer in racers))
    won = [int(out) for out, _ in ended]
    assert sum(won) == PAIRS
    assert all(won), "they did not run at the same time"
    connection = await asyncpg.connect(url)
    sql = "SELECT count(*), count(DISTINCT purchase) FROM payclient.attempts"
    assert tuple(await connection.fetchrow(sql)) == (PAIRS, PAIRS)
    await connection.close()


# --- The links of forms


async def test_links_are_kept_while_they_live(ledger: Ledger) -> None:
    record = await ledger.apply(await _permitted(ledger, form("form")), PREPARED)
    await ledger.keep_links(record, '{"card": "one"}', NOW + 500)
    await ledger.keep_links(record, '{"card": "two"}', NOW + 600)
    assert await ledger.links("order", NOW + 599) == {"form": '{"card": "two"}'}
    assert await ledger.links("other", NOW) == {}
    await ledger.drop_links(NOW + 599)
    assert await ledger.links("order", NOW + 599) == {"form": '{"card": "two"}'}
    assert await ledger.links("order", NOW + 600) == {}
    await ledger.drop_links(NOW + 600)
    assert await ledger.links("order", NOW) == {}


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([PAID], False),
        ([PAID, ReversalPermitted(at=NOW + 55, expires_at=NOW + 70)], False),
        ([FoundCancelled(at=NOW + 50)], False),
        ([Abandoned(at=NOW + 50)], True),
        ([Expired(at=NOW + 50)], True),
    ],
    ids=["paid", "being given back", "cancelled", "closed", "expired"],
)
async def test_a_decided_forms_links_are_dropped(ledger: Ledger, events: list[Event], kept: bool) -> None:
    """What its customer closed may be handed out again: the service does not call it cancelled."""
    record = await ledger.apply(await _permitted(ledger, form("form")), PREPARED)
    await ledger.keep_links(record, '{"card": "link"}', NOW + 600)
    for event in events:
        record = await ledger.apply(record, event)
    assert bool(await ledger.links("order", NOW + 60)) is kept
    await ledger.drop_links(NOW + 60)
    assert bool(await ledger.links("order", NOW + 60)) is kept


async def test_no_file_holds_a_dead_link(tmp_path: Path) -> None:
    """Not in a free page nor in the write-ahead log, while the ledger is open; a backup never held any."""
    path = tmp_path / "charges.db"
    ledger = await open_ledger(f"sqlite:{path}")
    for number in range(100):
        record = attrs.evolve(form(f"form-{number}"), purchase=f"order-{number}")
        record = await ledger.apply(await _permitted(ledger, record), PREPARED)
        link = f'{{"card": "https://pay.example/{"secret" * 40}/{number}"}}'
        await ledger.keep_links(record, link, NOW + 600 + number)
    assert b"secret" in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    await backup_ledger(f"sqlite:{path}", tmp_path / "copy.db")
    copied = (tmp_path / "copy.db").read_bytes()
    assert b"secret" not in copied
    assert b"form-99" in copied
    for later in range(600, 700, 9):
        await ledger.drop_links(NOW + later)
        held = b"".join(each.read_bytes() for each in tmp_path.iterdir())
        dead = [number for number in range(100) if 600 + number <= later and f'/{number}"'.encode() in held]
        assert dead == []
    await ledger.drop_links(NOW + 700)
    assert b"secret" not in b"".join(each.read_bytes() for each in tmp_path.iterdir())
    await ledger.aclose()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM form_links").fetchone() == (0,)
    connection.close()
