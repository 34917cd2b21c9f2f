"""What every ledger does: one suite, run against each of them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fake_service import error_of, record_in
from payclient.errors import ConfigurationError, LedgerUnavailableError, TransitionError, UsageError
from payclient.events import (
    Conflicted,
    Created,
    DecidedRefused,
    Event,
    Evidence,
    Expired,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    Lost,
    Notified,
    NotSent,
    Prepared,
    Refused,
    Returned,
    ReversalPermitted,
    Reversed,
    Suspected,
)
from payclient.ledger import Change, Ledger, TransactionTakenError, open_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.lifecycle import TRANSITIONS, Record, State, advance
from postgres_server import PostgresServer

NOW = 1_700_000_000.0

#: Events that bring a fresh attempt into each state.
PATHS: dict[State, tuple[Event, ...]] = {
    State.SENDING: (),
    State.UNKNOWN: (Lost(at=NOW, expires_at=NOW + 330),),
    State.PENDING: (Created(at=NOW, transaction_id=7, expires_at=NOW + 300),),
    State.EXPIRED: (Created(at=NOW, transaction_id=7, expires_at=NOW + 300), Expired(at=NOW + 300)),
    State.ACCEPTED: (Created(at=NOW, transaction_id=7, expires_at=NOW + 300), FoundAccepted(at=NOW)),
    State.CANCELLED: (Created(at=NOW, transaction_id=7, expires_at=NOW + 300), FoundCancelled(at=NOW)),
    State.REFUSED: (Refused(at=NOW, error_type="NotCreated", error_code=22, messages=("no",)),),
}
PATHS[State.REVERSING] = (*PATHS[State.ACCEPTED], ReversalPermitted(at=NOW + 1, expires_at=NOW + 1))
PATHS[State.REVERSED] = (*PATHS[State.REVERSING], Reversed(at=NOW + 2))


def _one(kind: type[Event]) -> Event:
    words: dict[str, Any] = {
        "transaction_id": 7, "expires_at": NOW + 309, "error_type": "NotCreated", "actor": "ana",
        "reason": "seen", "what": "amount", "also": ("other",),
    }  # fmt: skip
    names = {field.name for field in attrs.fields(kind)}
    return kind(at=NOW + 9, **{name: value for name, value in words.items() if name in names})


#: One of each event.
EVENTS = {kind: _one(kind) for table in TRANSITIONS.values() for kind in table}


def fresh(client_transaction_id: str = "order-1", attempt: int = 1, at: float = NOW) -> Record:
    return Record(
        client_transaction_id=client_transaction_id,
        attempt=attempt,
        digest=b"d" * 32,
        lane=b"l" * 16,
        # Of its own, so that all of them may be created as one transaction.
        credentials=client_transaction_id.encode("utf-8", "replace"),
        amount=1150,
        currency="USD",
        created_at=at,
    )


async def brought(ledger: Ledger, state: State, client_transaction_id: str = "order-1") -> Record:
    """A first attempt, permitted and led into the state."""
    record = fresh(client_transaction_id)
    assert await ledger.permit(record)
    for event in PATHS[state]:
        record = await ledger.apply(record, event)
    assert record.state is state
    return record


async def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a ledger that is as new."""
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.url(await postgres.emptied())
    return "memory:" if kind == "memory" else f"sqlite:{tmp_path / 'charges.db'}"


@asynccontextmanager
async def opened(url: str, **options: bool) -> AsyncIterator[Ledger]:
    ledger = await open_ledger(url, **options)
    try:
        yield ledger
    finally:
        await ledger.aclose()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    async with opened(await url_of(request.param, request, tmp_path)) as ledger:
        yield ledger


async def until(true: Callable[[], Awaitable[object]]) -> None:
    """Poll what another task, process or server will make true."""
    async with asyncio.timeout(60):
        while not await true():  # noqa: ASYNC110 - no event of ours tells
            await asyncio.sleep(0.01)


async def test_only_the_newest_attempt_may_turn_out_to_be_paid(ledger: Ledger) -> None:
    """A refused attempt beside a newer one stays refused, whoever read it before."""
    record = await brought(ledger, State.REFUSED)
    assert await ledger.permit(fresh(attempt=2))
    await error_of(TransitionError, ledger.apply(record, FoundAccepted(at=NOW + 9, transaction_id=7)))
    second = await ledger.apply(fresh(attempt=2), PATHS[State.REFUSED][0])
    await error_of(TransitionError, ledger.apply(record, FoundAccepted(at=NOW + 9, transaction_id=7)))
    assert await ledger.get("order-1") == second
    assert (await ledger.apply(second, FoundAccepted(at=NOW + 10))).state is State.ACCEPTED


async def test_permit_is_granted_to_one(ledger: Ledger) -> None:
    """Of many at once for one id, however many others are in the same batch."""
    ids = [f"order-{number % 150}" for number in range(200)] + ["order-0"] * 100
    permits = [attrs.evolve(fresh(each), kind="form", links_dead_at=NOW + 600) for each in ids]
    granted = await asyncio.gather(*map(ledger.permit, permits))
    assert granted == [True] * 150 + [False] * 150
    assert await ledger.get_many(ids) == {each.client_transaction_id: each for each in permits}
    assert len(await ledger.history("order-0")) == 1


async def test_second_attempt(ledger: Ledger) -> None:
    for state in State:
        await brought(ledger, state, state)
        assert await ledger.permit(fresh(state)) is False, state
        assert await ledger.permit(fresh(state, attempt=2)) is (state is State.REFUSED), state
        newest = await record_in(ledger, state)
        assert newest.attempt == (2 if state is State.REFUSED else 1)
    assert await ledger.permit(fresh(State.REFUSED, attempt=3)) is False  # the second is being sent


async def test_what_the_caller_has_wrong(ledger: Ledger) -> None:
    """An attempt without the one before it, or no fresh one, gets no permit; what is not there takes no event."""
    for wrong in (
        fresh(attempt=0), fresh(attempt=2),
        attrs.evolve(fresh(), version=1), attrs.evolve(fresh(), state=State.PENDING),
    ):  # fmt: skip
        await error_of(TransitionError, ledger.permit(wrong))
        await error_of(TransitionError, ledger.apply(wrong, NotSent(at=NOW)))
    assert await ledger.get("order-1") is None
    await brought(ledger, State.REFUSED)
    await error_of(TransitionError, ledger.permit(fresh(attempt=3)))
    await error_of(TransitionError, ledger.apply(fresh(attempt=2), NotSent(at=NOW)))


async def test_apply_is_advance(ledger: Ledger) -> None:
    """Each event in each state does what the lifecycle says, or raises and changes nothing."""
    for state, (kind, event) in product(State, EVENTS.items()):
        name = f"{state}-{kind.__name__}"
        record = await brought(ledger, state, name)
        history = await ledger.history(name)
        if kind in TRANSITIONS[state]:
            after = await ledger.apply(record, event)
            assert after == advance(record, event) == await ledger.get(name)
            change = (await ledger.history(name))[-1]
            assert (change.event, change.before, change.after) == (kind.__name__, state, after.state)
            assert (change.at, change.evidence, change.attempt) == (event.at, event.evidence, 1)
        else:
            caught = await error_of(TransitionError, ledger.apply(record, event))
            assert caught.client_transaction_id == name
            assert await ledger.get(name) == record
            assert await ledger.history(name) == history


async def test_apply_to_a_newer_record(ledger: Ledger) -> None:
    """Whoever holds an old record has the event applied to the ledger's."""
    old = fresh()
    await ledger.permit(old)
    await ledger.apply(old, Notified(at=NOW + 1, transaction_id=7))
    after = await ledger.apply(old, Created(at=NOW + 2, transaction_id=7, expires_at=NOW + 300))
    assert (after.version, after.notified_at, after.state) == (2, NOW + 1, State.PENDING)
    # Not taken by the record that is held, but by the ledger's.
    assert (await ledger.apply(old, FoundAccepted(at=NOW + 3))).state is State.ACCEPTED
    await error_of(TransitionError, ledger.apply(old, Refused(at=NOW + 4, error_type="late")))
    assert (await ledger.apply(old, Suspected(at=NOW + 5))).version == 4


async def test_apply_at_once(ledger: Ledger) -> None:
    """A hundred events of one attempt at once are all recorded, in the order in which they came."""
    record = fresh()
    await ledger.permit(record)
    events = [Conflicted(at=NOW + number, what=str(number)) for number in range(100)]
    records = await asyncio.gather(*(ledger.apply(record, event) for event in events))
    assert [each.version for each in records] == list(range(1, 101))
    assert [change.at for change in (await ledger.history("order-1"))[1:]] == [event.at for event in events]


async def test_what_is_queued_is_carried_out_in_order(ledger: Ledger) -> None:
    """Also where the first was asked for with an older record than the ledger's."""
    await ledger.permit(fresh())
    heard = await ledger.apply(fresh(), Notified(at=NOW, transaction_id=4))
    await asyncio.gather(
        ledger.apply(fresh(), Notified(at=NOW, transaction_id=5)),
        ledger.apply(heard, Notified(at=NOW, transaction_id=6)),
    )
    found = await record_in(ledger, "order-1")
    assert found.candidate_ids == (4, 5, 6)


async def test_apply_of_an_older_attempt(ledger: Ledger) -> None:
    first = await brought(ledger, State.REFUSED)
    await ledger.permit(fresh(attempt=2))
    await ledger.apply(first, Notified(at=NOW + 5, transaction_id=9))
    newest = await ledger.get("order-1")
    assert newest == fresh(attempt=2)
    assert await ledger.get_many(["order-1", "order-2", "order-1"]) == {"order-1": newest}
    assert (await ledger.get_many([]), await ledger.get("order-2")) == ({}, None)
    assert [change.attempt for change in await ledger.history("order-1")] == [1, 1, 2, 1]


async def test_a_cancelled_caller_changes_nothing(ledger: Ledger) -> None:
    """What was queued is carried out though nobody waits, and before what was queued after it."""
    record = fresh()
    permit = asyncio.ensure_future(ledger.permit(record))
    await asyncio.sleep(0)
    created = asyncio.ensure_future(ledger.apply(record, PATHS[State.PENDING][0]))
    await asyncio.sleep(0)
    permit.cancel()
    created.cancel()
    await asyncio.gather(permit, created, return_exceptions=True)
    found = await record_in(ledger, "order-1")
    assert found.state is State.PENDING


async def took(
    ledger: Ledger, name: str, *events: Event, credentials: bytes = b"a", attempt: int = 1
) -> Record:
    """An attempt that was permitted under the credentials, and took the events."""
    record = attrs.evolve(fresh(name, attempt), credentials=credentials)
    assert await ledger.permit(record)
    for event in events:
        record = await ledger.apply(record, event)
    return record


@pytest.mark.parametrize("at_once", [False, True])
async def test_one_transaction_answers_one_sale(ledger: Ledger, at_once: bool) -> None:
    """A second Sale takes nothing; another account, or one that nobody knows, may count from the same number."""
    sales = [
        await took(ledger, f"order-{number}", credentials=account)
        for number, account in enumerate((b"a", b"a", b"b", b""))
    ]
    sales.append(await took(ledger, "order-4", *PATHS[State.UNKNOWN], credentials=b""))
    results: list[Record | BaseException] = []
    for calls in [sales] if at_once else [[each] for each in sales]:
        answers = (ledger.apply(each, PATHS[State.PENDING][0]) for each in calls)
        results += await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(results.pop(1), TransactionTakenError)
    assert [isinstance(each, Record) and each.transaction_id for each in results] == [7, 7, 7, 7]
    assert await ledger.get("order-1") == sales[1]
    assert [change.event for change in await ledger.history("order-1")] == ["Permitted"]


async def test_a_transaction_that_was_found_answers_no_other_sale(ledger: Ledger) -> None:
    """The first answer was lost, and its copy answers another Sale: the ledger knows whose it is by a query."""
    await took(ledger, "order-1", *PATHS[State.UNKNOWN], EVENTS[FoundPending])
    await error_of(TransactionTakenError, took(ledger, "order-2", EVENTS[Created]))


async def test_a_transaction_answers_two_attempts_of_one_sale(ledger: Ledger) -> None:
    """A service that knows the client transaction id may name the same one again."""
    await took(ledger, "order-1", EVENTS[Created], EVENTS[Expired], EVENTS[DecidedRefused])
    again = await took(ledger, "order-1", EVENTS[Created], attempt=2)
    assert (again.state, again.transaction_id) == (State.PENDING, 7)


async def test_a_transaction_that_two_sales_have_answers_neither_again(ledger: Ledger) -> None:
    """Not even the sale that had it first: nobody knows any more whose it is."""
    await took(ledger, "order-1", EVENTS[Created], EVENTS[Expired], EVENTS[DecidedRefused])
    await took(ledger, "order-2", *PATHS[State.UNKNOWN], EVENTS[FoundPending])
    await error_of(TransactionTakenError, took(ledger, "order-1", EVENTS[Created], attempt=2))


async def test_unfinished_and_records(ledger: Ledger) -> None:
    """Every attempt in the order of the permits; what is not decided oldest first, whatever happens meanwhile."""
    assert [record async for record in ledger.records()] == []
    for number, state in enumerate(State):
        await brought(ledger, state, f"order-{number}")
    refused = f"order-{list(State).index(State.REFUSED)}"
    await ledger.permit(fresh(refused, attempt=2, at=NOW - 60))
    reading = ledger.unfinished()
    first = await anext(reading)
    await ledger.permit(fresh("too late"))
    assert (first.client_transaction_id, first.attempt) == (refused, 2)
    assert [each.state async for each in reading] == [state for state in State if not state.decided]
    states = [each.state async for each in ledger.records()]
    assert states == [*State, State.SENDING, State.SENDING]


async def test_more_records_than_are_read_at_once(ledger: Ledger) -> None:
    """In the order of their times where they are unfinished, in that of their permits otherwise."""
    names = [f"order-{number}" for number in range(450)]
    await asyncio.gather(*(ledger.permit(fresh(name, at=NOW - place)) for place, name in enumerate(names)))
    assert [each.client_transaction_id async for each in ledger.records()] == names
    assert [each.client_transaction_id async for each in ledger.unfinished()] == names[::-1]


async def test_history(ledger: Ledger) -> None:
    """Each change stands there with what the event said."""
    record = await brought(ledger, State.UNKNOWN)
    await ledger.apply(record, DecidedRefused(at=NOW + 3, actor="ana", reason="seen in the portal"))
    permitted, lost, decided = await ledger.history("order-1")
    assert (permitted.event, permitted.before, permitted.after) == ("Permitted", None, State.SENDING)
    assert (permitted.at, permitted.evidence, permitted.detail) == (NOW, Evidence.PERMIT, None)
    assert json.loads(lost.detail or "") == {"expires_at": NOW + 330}
    assert json.loads(decided.detail or "") == {"actor": "ana", "reason": "seen in the portal"}
    assert permitted.cursor < lost.cursor < decided.cursor
    assert await ledger.history("order-2") == []


async def test_changes(ledger: Ledger) -> None:
    """The feed tells of arrivals in a decided or presumed state, once each, from any cursor on."""
    record = await brought(ledger, State.EXPIRED)
    record = await ledger.apply(record, FoundCancelled(at=NOW + 400))
    record = await ledger.apply(record, FoundCancelled(at=NOW + 401))
    record = await ledger.apply(record, Notified(at=NOW + 402, transaction_id=7))
    await ledger.apply(record, FoundAccepted(at=NOW + 403))
    await brought(ledger, State.PENDING, "order-2")
    feed = await ledger.changes()
    assert [change.after for change in feed] == [State.EXPIRED, State.CANCELLED, State.ACCEPTED]
    assert await ledger.changes(limit=1) == feed[:1]
    assert await ledger.changes(since=feed[0].cursor) == feed[1:]
    assert await ledger.changes(since=feed[0].cursor, limit=1) == feed[1:2]
    assert await ledger.changes(since=feed[-1].cursor) == []
    assert set(feed) <= set(await ledger.history("order-1"))
    # Nobody may take for paid what is about to be given back.
    await brought(ledger, State.REVERSED, "order-3")
    told = [change.event for change in await ledger.changes(since=feed[-1].cursor)]
    assert told == ["FoundAccepted", "ReversalPermitted", "Reversed"]


HOSTILE = "\x00\ud800\x1b[31m=cmd()" + "ñ" * 2000


@pytest.mark.parametrize("code", [10**30, 2**63, -(2**63) - 1])
async def test_hostile_text_blocks_no_record(ledger: Ledger, code: int) -> None:
    """NUL, lone surrogates, endless text and numbers, also of an operator: recorded, bounded and printable."""
    record = fresh()
    await ledger.permit(record)
    record = await ledger.apply(record, Conflicted(at=NOW, what=HOSTILE))
    event = Refused(at=NOW, error_type=HOSTILE, error_code=code, messages=(HOSTILE,) * 80)
    after = await ledger.apply(record, event)
    assert after == await ledger.get("order-1")
    assert (after.state, after.error_code, len(after.messages)) == (State.REFUSED, None, 50)
    assert {len(text) for text in (*after.messages, after.error_type or "")} == {500}
    assert all(text.isprintable() for text in after.messages)
    unknown = await brought(ledger, State.UNKNOWN, "order-2")
    await ledger.apply(unknown, DecidedRefused(at=NOW, actor=HOSTILE, reason=HOSTILE))
    conflict, refused = (await ledger.history("order-1"))[1:]
    assert len(refused.detail or "") < 5000
    for change in (conflict, (await ledger.history("order-2"))[-1]):
        assert all(len(value) == 500 for value in json.loads(change.detail or "").values())


async def test_closed(ledger: Ledger) -> None:
    await ledger.aclose()
    await ledger.aclose()
    for use in (
        lambda: ledger.permit(fresh()),
        lambda: ledger.apply(fresh(), NotSent(at=NOW)),
        lambda: ledger.get("a"),
        lambda: ledger.get_many(["a"]),
        lambda: ledger.history("a"),
        lambda: ledger.changes(),
        lambda: anext(ledger.unfinished()),
        lambda: anext(ledger.records()),
    ):
        with pytest.raises(UsageError):
            await use()


# What outlives a process: files and servers


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new ledger in a database."""
    return await url_of(request.param, request, tmp_path)


async def test_it_survives(url: str) -> None:
    """What was written is there after it was closed and opened again, the digest key included."""
    async with opened(url) as ledger:
        record = await brought(ledger, State.REFUSED)
        history, key = await ledger.history("order-1"), ledger.digest_key
        permit = asyncio.ensure_future(ledger.permit(fresh("queued")))
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        assert await permit
    async with opened(url, create=False) as ledger:
        found = await ledger.get_many(["order-1", "queued"])
        assert found == {"order-1": record, "queued": fresh("queued")}
        assert await ledger.history("order-1") == history
        assert await ledger.permit(fresh()) is False
        assert (ledger.digest_key, len(key)) == (key, 32)
        assert key != MemoryLedger().digest_key


async def test_values_that_no_column_takes(url: str) -> None:
    """One caller's impossible value fails that caller, not those of the same batch and look-up."""
    async with opened(url) as ledger:
        answers = await asyncio.gather(
            ledger.permit(fresh("a")), ledger.permit(fresh("\ud800")),
            ledger.permit(attrs.evolve(fresh("big"), amount=2**70)), ledger.permit(fresh("b")), ledger.get("a"),
            ledger.get("\ud800"), ledger.get_many(["a", "c"]), ledger.history("\ud800"), ledger.changes(2**70),
            ledger.changes(), return_exceptions=True,
        )  # fmt: skip
        fails = LedgerUnavailableError
        assert [type(each) for each in answers] == [
            bool, fails, fails, bool, Record, fails, dict, fails, fails, list,
        ]  # fmt: skip
        assert answers[6] == {"a": answers[4]}
        with pytest.raises(LedgerUnavailableError) as caught:
            await ledger.apply(fresh("a"), Created(at=NOW, transaction_id=2**70, expires_at=NOW))
        assert caught.value.client_transaction_id == "a"
        assert await ledger.get("a") == fresh("a")


def test_another_loop_and_a_child(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger belongs to the loop and the process that opened it."""

    async def use(ledger: Ledger, words: str) -> None:
        await error_of(UsageError, ledger.get("a"), match=words)

    async def main() -> Ledger:
        async with opened(url) as ledger:
            with monkeypatch.context() as child:
                child.setattr(os, "getpid", lambda: -1)
                await use(ledger, "fork")
        return await open_ledger(url)

    ledger = asyncio.run(main())
    asyncio.run(use(ledger, "loop"))
    asyncio.run(ledger.aclose())


async def test_forgotten(url: str) -> None:
    """A ledger that is dropped says so, carries out what it was given, and lets go of its file or connection."""
    ledger = await open_ledger(url)
    task = asyncio.ensure_future(ledger.permit(fresh()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del ledger, task

    async def collected() -> bool:
        gc.collect()  # again and again: a thread may still be at its last batch, or the loop at its answer
        return len(warned) > 0

    with pytest.warns(ResourceWarning, match="unclosed ledger") as warned:
        await until(collected)
    warned.clear()  # they quote the ledger
    gc.collect()
    await until(lambda: asyncio.sleep(0, len(asyncio.all_tasks()) == 1))  # the writer's has ended
    async with opened(url) as ledger:
        assert await ledger.get("order-1") == fresh()


def test_forgotten_after_its_loop(url: str) -> None:
    """Collected once its loop is closed, it says that it was not closed, and nothing else."""

    def run() -> None:
        asyncio.run(open_ledger(url))
        gc.collect()

    with pytest.warns(ResourceWarning, match="unclosed ledger"):
        run()


@pytest.mark.parametrize(
    "url", ["", "memory:x", "sqlite:", "sqlite", "sqlite::memory:", "postgres://host/db", "charges.db"]
)
async def test_unknown_urls(url: str) -> None:
    await error_of(ConfigurationError, open_ledger(url), match="memory:, sqlite:PATH or postgresql:")


async def test_a_postgresql_ledger_without_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "payclient.ledger.postgres", None)
    await error_of(ConfigurationError, open_ledger("postgresql://host/db"), match="pip install payclient")


KEYS = "abcdef"
#: Each event once, and those whose ids, missing or another's, make a difference.
TAKEN = [
    *EVENTS.values(),
    Created(at=NOW + 5, transaction_id=8, expires_at=NOW + 400.5),
    Prepared(at=NOW + 5, expires_at=NOW + 700),
    Lost(at=NOW + 4, expires_at=NOW + 330, candidate_id=9),
    Refused(at=NOW + 4, error_type="CustomerBusyError", error_code=2061, messages=("Ya", '"')),
    *(
        kind(at=NOW + 11, transaction_id=None)
        for kind in (FoundPending, FoundAccepted, FoundCancelled, Returned)
    ),
    *(
        kind(at=NOW + 12, transaction_id=8)
        for kind in (FoundPending, FoundAccepted, FoundCancelled, Notified)
    ),
]


@attrs.frozen
class Step:
    """One operation on an attempt."""

    key: str
    attempt: int
    #: None: it asks for the permit.
    event: Event | None
    #: Which of the records that the ledger has answered of this attempt it holds, from the newest; else a fresh one.
    held: int
    #: What comes then: the next step in the same batch; a turn of the loop; its caller is cancelled; all is answered;
    #: and the ledger is opened anew.
    then: str


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(KEYS),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.none() | st.sampled_from(TAKEN),
        st.sampled_from([0, 0, 0, 1, 2, 99]),
        st.sampled_from(["batch", "batch", "batch", "answers", "answers", "turn", "cancel", "reopen"]),
    ),
    max_size=40,
)


def asked_for(step: Step) -> Record:
    record = fresh(step.key, step.attempt, NOW + ord(step.key) % 3)  # some at the same time
    return record if step.key < "e" else attrs.evolve(record, kind="form", links_dead_at=NOW + 600)


async def carried_out(url: str, steps: list[Step]) -> list[object]:
    """What a ledger answers to these steps, and what it holds then."""
    ledger = await open_ledger(url)
    tasks: list[asyncio.Task[object]] = []
    known: dict[tuple[str, int], list[Record]] = {}
    seen: list[object] = []

    async def answered() -> None:
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for answer, task in zip(answers, tasks, strict=True):
            # Whoever is cancelled does not hear the answer, and the dict may have given it already.
            seen.append("cancelled" if task in cancelled else repr(answer))
            if isinstance(answer, Record) and task not in cancelled:
                known.setdefault((answer.client_transaction_id, answer.attempt), []).append(answer)
        tasks.clear()

    cancelled: set[asyncio.Task[object]] = set()
    reopened = False
    for step in steps:
        # Where processes share a ledger, the opening that was granted a permit alone says that it was not sent.
        if reopened and isinstance(step.event, NotSent):
            continue
        reopened |= step.then == "reopen"
        held = known.get((step.key, step.attempt), [])
        record = held[-1 - step.held] if step.held < len(held) else asked_for(step)
        work = ledger.permit(asked_for(step)) if step.event is None else ledger.apply(record, step.event)
        tasks.append(asyncio.ensure_future(work))
        if step.then in ("turn", "cancel"):
            await asyncio.sleep(0)
        if step.then == "cancel":
            tasks[-1].cancel()
            cancelled.add(tasks[-1])
        if step.then in ("answers", "reopen"):
            await answered()
        if step.then == "reopen" and url != "memory:":
            await ledger.aclose()
            ledger = await open_ledger(url)
    await answered()
    # What is asked of two ids at once may be carried out in either order; that of each id is kept.
    feed = await ledger.changes()
    cursors = [one.cursor for one in feed]
    assert cursors == sorted(set(cursors))
    paged: list[Change] = []
    while page := await ledger.changes(paged[-1].cursor if paged else 0, 2):
        paged += page
    assert paged == feed
    all_cursors: list[int] = []
    for key in KEYS:
        history = await ledger.history(key)
        all_cursors += [one.cursor for one in history]
        for changes in (history, [one for one in feed if one.client_transaction_id == key]):
            assert [one.cursor for one in changes] == sorted({one.cursor for one in changes})
            seen.append([attrs.evolve(one, cursor=0) for one in changes])
    assert len(all_cursors) == len(set(all_cursors))
    unfinished = [record async for record in ledger.unfinished()]
    assert unfinished == sorted(unfinished, key=lambda record: record.created_at)
    records = [record async for record in ledger.records()]
    of_each_id = [[record for record in records if record.client_transaction_id == key] for key in KEYS]
    unfinished.sort(key=lambda record: (record.created_at, record.client_transaction_id))
    seen += [await ledger.get_many([*KEYS, "a"]), unfinished, len(records), of_each_id]
    await ledger.aclose()
    return seen


AGREES = example(steps=[Step("a", 1, None, 0, "reopen"), Step("a", 1, EVENTS[NotSent], 0, "answers")])


@settings(suppress_health_check=[HealthCheck.too_slow])
@AGREES
@given(steps=STEPS)
def test_sqlite_agrees(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    """Whatever is asked of them, one by one or at once, SQLite answers what the dict answers."""
    url = f"sqlite:{tmp_path_factory.mktemp('agree') / 'charges.db'}"
    assert asyncio.run(carried_out(url, steps)) == asyncio.run(carried_out("memory:", steps))


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@AGREES
@given(steps=STEPS)
def test_postgres_agrees(postgres: PostgresServer, steps: list[Step]) -> None:
    """And so does PostgreSQL."""
    url = postgres.url(asyncio.run(postgres.emptied()))
    assert asyncio.run(carried_out(url, steps)) == asyncio.run(carried_out("memory:", steps))


async def test_the_service_it_is_used_with(ledger: Ledger) -> None:
    """The first of those that use it says so, also of two at once, until a person says that it has moved."""
    at_once = await asyncio.gather(
        ledger.service_fingerprint(b"a" * 16), ledger.service_fingerprint(b"b" * 16)
    )
    assert {*at_once} == {b"a" * 16}
    assert await ledger.service_fingerprint(b"b" * 16) == b"a" * 16
    assert await ledger.service_fingerprint(b"b" * 16, moved=True) == b"b" * 16
    assert await ledger.service_fingerprint(b"a" * 16) == b"b" * 16
