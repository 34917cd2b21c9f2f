"""Forms that came back: which confirmation is next, how much is kept of it, and what the next entry knows."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from payclient.events import (
    Abandoned,
    Expired,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    Notified,
    Prepared,
    Refused,
    Returned,
)
from payclient.ledger import Change, Ledger, archive_ledger, open_ledger
from payclient.ledger.memory import MemoryLedger
from payclient.ledger.records import may_be_paid
from payclient.lifecycle import Record
from payclient.tracking.recovery import unconfirmed_ids, unpaid_since
from payclient.tracking.returned_form import MOST_IDS, Confirmation, ReturnedForm, Stage

#: What an answer that is lost, refuses or settles an id brings it to.
STAGES = {"l": Stage.IN_DOUBT, "r": Stage.REFUSED, "s": Stage.SETTLED}


def returned() -> ReturnedForm:
    return ReturnedForm(Record(client_transaction_id="form-1", kind="form"), 300.0)


def begun(form: ReturnedForm, transaction_id: int | None, *, due: float, tries: int) -> Confirmation:
    confirmation = form.begin(transaction_id, 0.0)
    confirmation.due, confirmation.tries, confirmation.stage = due, tries, Stage.REFUSED
    return confirmation


def test_of_what_is_due_the_least_tried_comes_first() -> None:
    """Of what was answered: what is due again stands behind a fresh one, what is not due yet behind both."""
    form = returned()
    assert form.begin_request(10.0) is None
    begun(form, 1, due=12.0, tries=0)
    begun(form, 2, due=3.0, tries=4)
    begun(form, 3, due=10.0, tries=0)
    for transaction_id in (3, 2, 1):
        request = form.begin_request(10.0)
        assert request is not None
        assert request.transaction_id == transaction_id
        form.end_request(request, 10.0, Stage.SETTLED)
    assert form.begin_request(10.0) is None


def test_a_fresh_id_is_not_given_up_with_an_old_one() -> None:
    """The window of each counts from when it came; those without an answer are given up together, after the last."""
    form = returned()
    old, fresh = form.begin(1, 0.0), form.begin(2, 200.0)
    for now, is_given_up in ((301.0, False), (501.0, True)):
        assert form.end_request(old, now, Stage.IN_DOUBT) is is_given_up
        assert (old.is_open, fresh.is_open) == (not is_given_up, not is_given_up)


def test_one_a_second() -> None:
    """However many ids are due at once, and however quickly they are answered."""
    form, now, times = returned(), 0.0, []
    for number in range(1, 5):
        form.begin(number, 0.0)
    while (due := form.next_look(now)) is not None and not form.is_idle:
        now = max(now, due)
        times.append(now)
        request = form.begin_request(now)
        assert request is not None
        form.end_request(request, now, Stage.SETTLED)
    assert times == [0.0, 1.0, 2.0, 3.0]


def test_tries_back_off_and_end_with_the_window() -> None:
    """1, 2, 4, 8, 15, 15 ... s, never sooner than the service asks; after the window the status query tells."""
    form, now, times, given_up = returned(), 0.0, [], False
    form.begin(7, 0.0)
    while (due := form.next_look(now)) is not None and not form.is_idle:
        now = max(now, due)
        times.append(now)
        wait = 5.0 if len(times) == 1 else 0.0
        request = form.begin_request(now)
        assert request is not None
        given_up = form.end_request(request, now, Stage.IN_DOUBT, wait)
    assert times[:6] == [0.0, 5.0, 7.0, 11.0, 19.0, 34.0]
    assert given_up
    assert 300.0 < now <= 315.0
    assert form.is_idle


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 90), st.sampled_from([*STAGES])), min_size=1))
def test_a_form_has_a_next_time_until_its_end(steps: list[tuple[int, float, str]]) -> None:
    """However ids are named, and answers are lost, refuse or settle an id: it ends soon after the last window."""
    form, now, named_at = returned(), 0.0, 0.0
    for left, (number, pause, answer) in enumerate(steps, 1 - len(steps)):
        now = named_at = max(now, named_at + pause)
        form.begin(number or None, now)
        while not form.is_idle and (now < named_at + pause or left == 0):
            due = form.next_look(now)
            assert due is not None
            now = max(now, due)
            request = form.begin_request(now)
            assert request is not None
            form.end_request(request, now, STAGES[answer])
    assert now <= named_at + 300.0 + 30.0


def test_an_id_more_is_taken_while_there_is_room() -> None:
    """What is being written counts, and what is known is always taken."""
    form = returned()
    for number in range(MOST_IDS - 1):
        form.begin(number + 1, 0.0)
    assert form.has_room_for(99)
    form.begin(98, 0.0, Stage.ARRIVED)
    assert not form.has_room_for(99)
    assert form.has_room_for(98)
    assert form.has_room_for(1)


def test_closed_ids_are_forgotten_in_the_end() -> None:
    """A flood over hours leaves no more than twice as many as are confirmed at once."""
    form = returned()
    for number in range(1000):
        form.begin(number + 1, 0.0)
        form.close()
    assert len(form.confirmations) <= 2 * MOST_IDS
    assert form.begin(1000, 0.0) is form.begin(1000, 0.0)


async def test_who_waits_for_one_try_is_woken_once() -> None:
    """By the try of this id, by its end, or by the end of all."""
    form = returned()
    one, other = form.begin(1, 0.0), form.begin(2, 0.0)
    first, second = one.tried, other.tried
    assert form.begin_request(0.0) is one
    form.end_request(one, 0.0, Stage.IN_DOUBT)
    assert (first.is_set(), second.is_set()) == (True, False)
    third = one.tried
    form.close()
    assert second.is_set()
    assert third.is_set()
    assert not form.all_open()


# --- What the ledger knows, however long its history


async def prepared(ledger: Ledger, identifier: str, at: float = 0.0, attempt: int = 1) -> Record:
    record = Record(client_transaction_id=identifier, kind="form", created_at=at, attempt=attempt)
    assert await ledger.permit(record)
    return await ledger.apply(record, Prepared(at=at, expires_at=at + 1200))


async def test_ids_are_the_newest_first_and_each_once() -> None:
    """Returns and notifications alike; None is a browser that came back cancelled."""
    ledger = MemoryLedger()
    record = await prepared(ledger, "form-1")
    for event in (
        Returned(at=1.0, transaction_id=7), Notified(at=2.0, transaction_id=8), Returned(at=3.0),
        Returned(at=4.0, transaction_id=7),
    ):  # fmt: skip
        record = await ledger.apply(record, event)
    assert await unconfirmed_ids(ledger, record) == [7, None, 8]


async def test_what_a_decision_answered_is_asked_no_more() -> None:
    """Nor what an earlier attempt heard."""
    ledger = MemoryLedger()
    first = Record(client_transaction_id="form-1", kind="form")
    assert await ledger.permit(first)
    await ledger.apply(first, Returned(at=1.0, transaction_id=6))
    await ledger.apply(first, Refused(at=1.0, error_type="RefusedError"))
    record = await prepared(ledger, "form-1", attempt=2)
    assert await unconfirmed_ids(ledger, record) == []
    for event in (
        Returned(at=1.0, transaction_id=7), Expired(at=2.0), Returned(at=3.0),
        Abandoned(at=4.0), Returned(at=5.0, transaction_id=8), FoundCancelled(at=6.0),
        FoundPending(at=7.0),
    ):  # fmt: skip
        record = await ledger.apply(record, event)
    assert await unconfirmed_ids(ledger, record) == [8]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("acedn")), max_size=40), st.integers(-1, 60))
async def test_given_up_since(steps: list[tuple[int, str]], since: int) -> None:
    """As by reading all of the feed: cancelled at that time or later, and cancelled still.

    By its customer; or by the service, and another transaction was named since.
    """
    ledger, now, expected = MemoryLedger(), 0, set()
    for number, (gap, step) in enumerate(steps):
        now += gap
        identifier = f"form-{number}"
        record = await prepared(ledger, identifier, float(now))
        if step == "e":
            await ledger.apply(record, Expired(at=float(now)))
        elif step in "dn":
            record = await ledger.apply(record, FoundCancelled(at=float(now)))
            if step == "n":
                await ledger.apply(record, Returned(at=float(now), transaction_id=number + 1))
                expected |= {identifier} if now >= since else set()
        else:
            record = await ledger.apply(record, Abandoned(at=float(now)))
            if step == "c":
                await ledger.apply(record, FoundAccepted(at=float(now), transaction_id=number + 1))
            elif now >= since:
                expected.add(identifier)
    found = [each async for each in unpaid_since(ledger, float(since)) if may_be_paid(each)]
    assert {record.client_transaction_id for record in found} == expected


async def test_what_was_written_late_hides_nothing_of_the_feed() -> None:
    """The ledger failed for some minutes: what was decided in them stands behind what came later."""
    ledger = MemoryLedger()
    for number in range(100):
        at = 10_000.0 + number - (900.0 if number % 10 != 7 else 0.0)
        record = await prepared(ledger, f"form-{number}", at)
        await ledger.apply(record, Abandoned(at=at))
    found = [each async for each in unpaid_since(ledger, 10_000.0)]
    assert {record.client_transaction_id for record in found} == {
        f"form-{number}" for number in range(7, 100, 10)
    }


async def test_a_long_feed_is_halved(tmp_path: Path) -> None:
    """A real file: of three hundred decisions few are read to find where the last minutes begin."""
    ledger = await open_ledger(f"sqlite:{tmp_path / 'charges.db'}")
    changes, calls = ledger.changes, []

    async def counting(since: int = 0, limit: int = 500) -> list[object]:
        found = await changes(since, limit)
        calls.append(len(found))
        return list(found)

    try:
        for number in range(300):
            at = 3600.0 * number
            record = await prepared(ledger, f"form-{number}", at)
            await ledger.apply(record, Abandoned(at=at))
        ledger.changes = counting  # type: ignore[method-assign,assignment]  # counts what is read
        found = [each async for each in unpaid_since(ledger, 297 * 3600.0)]
        assert {record.client_transaction_id for record in found} == {"form-297", "form-298", "form-299"}
        assert sum(calls) < 40
    finally:
        await ledger.aclose()


async def test_what_was_archived_is_read_through_once(tmp_path: Path) -> None:
    """It is no news, and may be millions of changes, for which permits wait."""
    url = f"sqlite:{tmp_path / 'charges.db'}"

    async def abandon(numbers: range) -> None:
        for number in numbers:
            record = await prepared(ledger, f"form-{number}", at := 36_000.0 * number)
            await ledger.apply(record, Abandoned(at=at))

    async with aclosing(await open_ledger(url)) as ledger:
        await abandon(range(100))
    assert await archive_ledger(url, 36_000.0 * 100, tmp_path / "archive") == 100
    async with aclosing(await open_ledger(url)) as ledger:
        await abandon(range(100, 140))
        first, changes, asked = (await ledger.changes())[0].cursor, ledger.changes, []

        async def counting(since: int = 0, limit: int = 500) -> list[Change]:
            asked.append(since)
            return await changes(since, limit)

        ledger.changes = counting  # type: ignore[method-assign]  # counts what is read
        found = [each async for each in unpaid_since(ledger, 36_000.0 * 137)]
        assert {record.client_transaction_id for record in found} == {"form-137", "form-138", "form-139"}
        assert len([since for since in asked if since < first]) == 1
