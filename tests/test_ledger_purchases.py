"""One purchase, paid once: which asks the permit refuses, in every ledger; and the links of forms while they live."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import asyncpg
import attrs
import pytest

from fake_service import error_of, record_in
from payclient.errors import LedgerUnavailableError, TransitionError
from payclient.events import (
    Abandoned,
    DecidedAccepted,
    DecidedCancelled,
    DecidedRefused,
    Event,
    Exhausted,
    Expired,
    FoundAccepted,
    FoundCancelled,
    Lost,
    Notified,
    Prepared,
    Recovered,
    Returned,
    ReversalNotSent,
    ReversalPermitted,
)
from payclient.ledger import Ledger, PurchaseHeldError, Shared, backup_ledger, batch
from payclient.ledger.postgres import PostgresDatabase
from payclient.lifecycle import Record, State
from postgres_server import PostgresServer
from test_ledger import NOW, PATHS, brought, fresh, opened, until
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


async def permitted(ledger: Ledger, record: Record, *events: Event) -> Record:
    """The record, permitted, after these events."""
    assert await ledger.permit(record)
    for event in events:
        record = await ledger.apply(record, event)
    return record


async def granted(ledger: Ledger, record: Record) -> bool:
    """Whether another ask is permitted, and told of the first one where it is not."""
    (first, *_) = await ledger.asks(record.purchase)
    try:
        return await ledger.permit(record)
    except PurchaseHeldError as held:
        if held.holder != first:
            raise
        return False


#: A sale that expired, and whose last query was made.
EXHAUSTED = (*PATHS[State.EXPIRED], Exhausted(at=NOW + 400))
SALES: dict[str, tuple[tuple[Event, ...], bool]] = {
    **{state: (PATHS[state], state in (State.CANCELLED, State.REFUSED, State.REVERSED)) for state in State},
    "recovered": ((Recovered(at=NOW, expires_at=NOW + 330),), False),
    "exhausted": (EXHAUSTED, True),
    "notified again": ((*EXHAUSTED, Notified(at=NOW + 500, transaction_id=7)), True),
    "paid after all": ((*EXHAUSTED, FoundAccepted(at=NOW + 500, transaction_id=7)), False),
}


async def test_another_ask_beside_a_sale(ledger: Ledger) -> None:
    """It is refused while the first is paid, or may yet be paid: an expired one until its last query was made."""
    for case, (events, free) in SALES.items():
        first, *others = (
            attrs.evolve(each, purchase=case)
            for each in (
                sale(f"{case}-first", NOW), sale(f"{case}-beside", beside_open_form=True),
                sale(f"{case}-late", NOW + 1e9), form(f"{case}-form", NOW + 60),
            )
        )  # fmt: skip
        await permitted(ledger, first, *events)
        for other in others:
            assert await granted(ledger, other) is free, case
            if free:  # lest it hold the next
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
    "notified": ((Lost(at=NOW, expires_at=NOW + 1230), Notified(at=NOW + 50, transaction_id=7)), False, True),
    "cancelled by a person": (
        (
            *(Lost(at=NOW, expires_at=NOW + 1230), Notified(at=NOW + 50, transaction_id=7)),
            DecidedCancelled(at=NOW + 60, actor="Ana", reason="seen in the portal"),
        ),
        True,
        True,
    ),
    "named after a person cancelled it": (
        (
            Recovered(at=NOW, expires_at=NOW + 1230),
            DecidedCancelled(at=NOW + 60, actor="Ana", reason="seen in the portal"),
            Returned(at=NOW + 70, transaction_id=7),
        ),
        False,
        True,
    ),
    "a person ended the doubt": (
        (
            *(PREPARED, Abandoned(at=NOW + 50), Notified(at=NOW + 60, transaction_id=7)),
            DecidedCancelled(at=DEAD, actor="Ana", reason="seen in the portal"),
        ),
        True,
        True,
    ),
    "closed by its customer": ((PREPARED, Abandoned(at=NOW + 50)), False, True),
    "cancelled": ((PREPARED, FoundCancelled(at=NOW + 50)), True, True),
    "refused": (PATHS[State.REFUSED], True, True),
    "paid": ((PREPARED, PAID), False, False),
    "given back": ((PREPARED, PAID, FoundCancelled(at=NOW + 55)), True, True),
}


@pytest.mark.parametrize("beside", [False, True], ids=["", "beside"])
async def test_another_ask_beside_a_form(ledger: Ledger, beside: bool) -> None:
    """Refused until the links are dead, its last query made, or it is cancelled; a push may be allowed all the same."""
    for case, (events, free, later) in FORMS.items():
        record = await permitted(ledger, attrs.evolve(form(f"{case}-first"), purchase=case), *events)
        free = free or (beside and record.state is not State.ACCEPTED)
        push = attrs.evolve(sale(f"{case}-push", DEAD - 1, beside_open_form=beside), purchase=case)
        assert await granted(ledger, push) is free, case
        if not free:
            late = attrs.evolve(push, created_at=DEAD, beside_open_form=False)
            assert await granted(ledger, late) is later, case


async def test_a_persons_word_about_what_ended(ledger: Ledger) -> None:
    """It is kept as evidence, and may be "paid". None frees a closed form's purchase while its links may be paid."""
    word = {"actor": "Ana", "reason": "seen in the portal"}
    closed = await permitted(
        ledger, form("closed"), PREPARED, Abandoned(at=NOW + 50), Notified(at=NOW + 60, transaction_id=7)
    )
    early = DecidedCancelled(at=DEAD - 1, **word)
    await error_of(TransitionError, ledger.apply(closed, early), "links may still be paid")
    assert await record_in(ledger, "closed") == closed
    settled = await ledger.apply(closed, DecidedCancelled(at=DEAD, **word))
    assert (settled.state, settled.evidence, settled.candidate_ids) == ("cancelled", "operator", ())
    refused = await permitted(
        ledger, sale("refused", DEAD), PATHS[State.REFUSED][0], Notified(at=DEAD + 1, transaction_id=8)
    )
    again = await ledger.apply(refused, DecidedRefused(at=DEAD + 2, **word))
    assert (again.state, again.evidence, again.decided_at) == ("refused", "operator", DEAD + 2)
    for each in ("closed", "refused"):
        assert (await ledger.history(each))[-1].facts == word
        named = await ledger.apply(await record_in(ledger, each), Notified(at=DEAD + 3, transaction_id=9))
        paid = await ledger.apply(named, DecidedAccepted(at=DEAD + 4, **word))
        assert (paid.state, paid.evidence) == ("accepted", "operator")
    assert [each async for each in ledger.unfinished()] == []


async def test_a_second_attempt_is_an_ask(ledger: Ledger) -> None:
    """What another ask of the purchase forbids is forbidden to the next attempt of an old id as well."""
    await permitted(ledger, sale("first"), PATHS[State.REFUSED][0])
    again = attrs.evolve(sale("first"), attempt=2)
    other = await permitted(ledger, sale("second"))
    held = await error_of(PurchaseHeldError, ledger.permit(again))
    assert held.holder == other
    await ledger.apply(other, PATHS[State.REFUSED][0])
    assert await ledger.permit(again)
    assert await ledger.permit(again) is False
    assert [(each.client_transaction_id, each.attempt) for each in await ledger.asks("order")] == [
        ("first", 1), ("second", 1), ("first", 2),
    ]  # fmt: skip


async def test_asks_come_in_the_order_of_their_permits(ledger: Ledger) -> None:
    """Also where the clock was set back between two."""
    for name, at in (("first", NOW), ("second", NOW - 3600)):
        await permitted(ledger, sale(name, at), PATHS[State.REFUSED][0])
    assert [each.client_transaction_id for each in await ledger.asks("order")] == ["first", "second"]


async def test_an_id_and_a_purchase_are_looked_up_at_once(ledger: Ledger) -> None:
    """The same as one after the other, also of several that are looked up together."""
    await permitted(ledger, sale("first"), PATHS[State.REFUSED][0])
    await permitted(ledger, attrs.evolve(sale("first"), attempt=2))
    await permitted(ledger, attrs.evolve(sale("order"), purchase="another"))
    names = ("first", "order", "another", "nobody")
    pairs = [(identifier, purchase) for identifier in names for purchase in names]
    found = await asyncio.gather(*(ledger.find((one,), other) for one, other in pairs))
    newest = [(each and each[one][-1], asks) for (one, _), (each, asks) in zip(pairs, found, strict=True)]
    assert newest == [(await ledger.get(one) or {}, await ledger.asks(other)) for one, other in pairs]


@pytest.mark.parametrize("other", [State.ACCEPTED, State.REVERSING])
async def test_a_correction_may_make_it_paid_twice(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, other: State
) -> None:
    """The service's word is recorded whatever it means; both payments are among the purchase's asks."""
    first = await permitted(ledger, sale("first"), *PATHS[State.REFUSED])
    await permitted(ledger, sale("second"), *PATHS[other])
    with caplog.at_level("CRITICAL"):
        both = await ledger.apply(first, FoundAccepted(at=NOW + 90, transaction_id=8))
    assert caplog.messages == ["first: paid, and its purchase also by second: give one back"]
    assert await ledger.get("first") == both
    *_, paid, seen = await ledger.changes()
    assert (paid.event, seen.event, seen.after) == ("FoundAccepted", "Overpaid", State.ACCEPTED)
    assert json.loads(seen.detail or "") == {"also": ["second"]}
    assert await ledger.history("first") == [*(await ledger.history("first"))[:-2], paid, seen]
    assert [each.state for each in await ledger.asks("order")] == [State.ACCEPTED, other]
    reversing = await ledger.apply(both, ReversalPermitted(at=NOW + 91, expires_at=NOW + 99))
    # It was paid all the while: no second alarm, nor one of a process that looks back.
    assert await ledger.apply(reversing, ReversalNotSent(at=NOW + 92)) == await ledger.get("first")
    if isinstance(ledger, Shared):
        await ledger.note_overpaid(NOW + 93)
    assert [each.event for each in await ledger.history("first")].count("Overpaid") == 1
    await error_of(PurchaseHeldError, ledger.permit(sale("third", beside_open_form=True)))


async def test_a_third_payment_is_said_though_its_process_died(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed right after its commit; the second one was said before."""
    async with opened(postgres.url(database)) as ledger:
        assert isinstance(ledger, Shared)
        names = ("first", "second", "third")
        records = [await permitted(ledger, sale(name), *PATHS[State.REFUSED]) for name in names]
        for record in records:
            with monkeypatch.context() as killed:
                if record is records[-1]:
                    killed.setattr(batch, "_note_overpaid", AsyncMock())
                await ledger.apply(
                    record, FoundAccepted(at=NOW + 90, transaction_id=8 + records.index(record))
                )
        await ledger.note_overpaid(NOW + 91)
        said = [each for each in await ledger.changes() if each.event == "Overpaid"]
        assert [each.client_transaction_id for each in said] == ["second", "third"]


async def test_two_payments_at_once_are_seen(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    """Both are found in one batch, and neither was paid before it."""
    records = [await permitted(ledger, sale(name), *PATHS[State.REFUSED]) for name in ("first", "second")]
    found = [FoundAccepted(at=NOW + 90, transaction_id=number) for number in (8, 9)]
    await asyncio.gather(*map(ledger.apply, records, found))
    assert "Overpaid" in [each.event for each in await ledger.changes()]
    assert any("give one back" in each for each in caplog.messages)


@pytest.mark.parametrize("statement", ["write", "look_up"])
async def test_a_connection_that_is_lost_hides_no_second_payment(
    postgres: PostgresServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    statement: str,
) -> None:
    """It is on record, and the next operation looks whether its purchase was paid before."""
    fetch, cut = PostgresDatabase.fetch, [asyncpg.ConnectionDoesNotExistError()]

    async def fetch_cut(self: PostgresDatabase, name: str, parameters: tuple[Any, ...]) -> Sequence[Any]:
        rows = await fetch(self, name, parameters)
        if name == statement and cut:
            raise cut.pop()
        return rows

    async with opened(postgres.url(database)) as ledger:
        assert isinstance(ledger, Shared)
        ledger.hold(60.0)
        first = await permitted(ledger, sale("first"), *PATHS[State.REFUSED])
        await permitted(ledger, sale("second"), *PATHS[State.ACCEPTED])
        monkeypatch.setattr(PostgresDatabase, "fetch", fetch_cut)
        with suppress(LedgerUnavailableError):
            await ledger.apply(first, FoundAccepted(at=NOW + 90, transaction_id=8))
        assert not cut
        assert (await record_in(ledger, "first")).state is State.ACCEPTED
        assert (await ledger.changes())[-1].event == "Overpaid"
        assert [each.event for each in await ledger.history("first")].count("Overpaid") == 1
    assert "first: paid, and its purchase also by second: give one back" in caplog.messages


async def test_a_paid_ask_is_named_before_an_open_one(ledger: Ledger) -> None:
    """Whoever is refused is told that it is paid, whichever of the two was asked for first."""
    await permitted(ledger, form("form", at=NOW + 70), PREPARED)
    paid = await permitted(ledger, sale("push", beside_open_form=True), *PATHS[State.ACCEPTED])
    held = await error_of(PurchaseHeldError, ledger.permit(sale("late")))
    assert held.holder == paid


async def test_what_has_no_time_or_no_purchase(ledger: Ledger) -> None:
    """Links that nobody timed may live for ever; a purchase is the id where none is given."""
    await permitted(ledger, attrs.evolve(form("form"), links_dead_at=None))
    assert not await granted(ledger, sale("push", at=NOW + 1e6))
    record = await brought(ledger, State.PENDING, "alone")
    assert not await granted(ledger, attrs.evolve(sale("other"), purchase="alone"))
    assert await ledger.asks("alone") == [record]
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


async def test_two_processes_race_for_each_purchase(postgres: PostgresServer, database: str) -> None:
    """The database grants one; a lock holds both statements back, so that neither sees what the other inserts."""
    url, count = postgres.url(database), 100
    waiting = (
        "SELECT count(*) = 2 FROM pg_locks WHERE NOT granted AND relation = 'payclient.attempts'::regclass"
    )
    async with opened(url) as one, opened(url) as other, asyncpg.create_pool(url, min_size=1) as pool:

        async def ask(name: str, book: Ledger, purchases: range) -> list[bool]:
            asks = [attrs.evolve(fresh(f"{name}-{each}"), purchase=f"order-{each}") for each in purchases]
            answers = await asyncio.gather(*map(book.permit, asks), return_exceptions=True)
            assert {type(each) for each in answers} <= {bool, PurchaseHeldError}
            return [each is True for each in answers]

        for start in range(0, 5 * count, count):
            purchases = range(start, start + count)
            async with pool.acquire() as person, person.transaction():
                await person.execute("LOCK payclient.attempts")
                asked = asyncio.gather(ask("a", one, purchases), ask("b", other, purchases))
                await until(lambda: pool.fetchval(waiting))
            assert [sum(won) for won in zip(*await asked, strict=True)] == [1] * count
    sql = "SELECT count(*), count(DISTINCT purchase) FROM payclient.attempts"
    assert [tuple(row) for row in await postgres.execute(database, sql)] == [(5 * count, 5 * count)]


# --- The links of forms


async def test_links_are_kept_while_they_live(ledger: Ledger) -> None:
    record = await permitted(ledger, form("form"), PREPARED)
    await ledger.keep_links(record, '{"card": "one"}', NOW + 500)
    await ledger.keep_links(record, '{"card": "two"}', NOW + 600)
    assert await ledger.links("order", NOW + 599) == {"form": '{"card": "two"}'}
    assert await ledger.links("other", NOW) == {}
    later = await permitted(ledger, attrs.evolve(form("later"), purchase="other"), PREPARED)
    await ledger.keep_links(later, '{"card": "three"}', NOW + 700)
    assert await ledger.drop_links(NOW + 599) == NOW + 600
    assert await ledger.links("order", NOW + 599) == {"form": '{"card": "two"}'}
    assert await ledger.links("order", NOW + 600) == {}
    await ledger.drop_links(NOW + 600)
    assert await ledger.links("order", NOW) == {}


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([PAID], False), ([PAID, ReversalPermitted(at=NOW + 55, expires_at=NOW + 70)], False),
        ([FoundCancelled(at=NOW + 50)], False), ([Abandoned(at=NOW + 50)], True), ([Expired(at=NOW + 50)], True),
    ],
    ids=["paid", "being given back", "cancelled", "closed", "expired"],
)  # fmt: skip
async def test_a_decided_forms_links_are_dropped(ledger: Ledger, events: list[Event], kept: bool) -> None:
    """What its customer closed may be handed out again: the service does not call it cancelled."""
    record = await permitted(ledger, form("form"), PREPARED)
    await ledger.keep_links(record, '{"card": "link"}', NOW + 600)
    for event in events:
        await ledger.apply(record, event)
    assert bool(await ledger.links("order", NOW + 60)) is kept
    assert await ledger.drop_links(NOW + 60) == (NOW + 600 if kept else None)  # when the next ones die
    assert bool(await ledger.links("order", NOW + 60)) is kept


async def test_no_file_holds_a_dead_link(tmp_path: Path) -> None:
    """Not in a free page nor in the write-ahead log, while the ledger is open; a backup never held any."""

    def content() -> bytes:
        return b"".join(each.read_bytes() for each in tmp_path.iterdir())

    path = tmp_path / "charges.db"
    async with opened(f"sqlite:{path}") as ledger:
        for number in range(100):
            ask = attrs.evolve(form(f"form-{number}"), purchase=f"order-{number}")
            record = await permitted(ledger, ask, PREPARED)
            link = f'{{"card": "https://pay.example/{"secret" * 40}/{number}"}}'
            await ledger.keep_links(record, link, NOW + 600 + number)
        assert b"secret" in content()
        await backup_ledger(f"sqlite:{path}", tmp_path / "copy.db")
        copied = (tmp_path / "copy.db").read_bytes()
        assert b"secret" not in copied
        assert b"form-99" in copied
        for later in range(600, 700, 9):
            await ledger.drop_links(NOW + later)
            kept = content()
            assert not [number for number in range(later - 599) if f'/{number}"'.encode() in kept]
        await ledger.drop_links(NOW + 700)
        assert b"secret" not in content()
