"""The one table of states and events, as a graph, and what each event does to a record."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient import events
from payclient.errors import TransitionError
from payclient.events import (
    Abandoned,
    Conflicted,
    Created,
    DecidedAccepted,
    DecidedCancelled,
    DecidedRefused,
    Decision,
    Event,
    Evidence,
    Exhausted,
    Expired,
    Found,
    FoundAccepted,
    FoundCancelled,
    FoundPending,
    Listed,
    Lost,
    Notified,
    NotSent,
    Overpaid,
    Prepared,
    ProvenAbsent,
    Recovered,
    Refused,
    Returned,
    ReversalNotSent,
    ReversalPermitted,
    ReversalRefused,
    Reversed,
    Suspected,
    Unqueried,
    Withdrawn,
)
from payclient.lifecycle import DROPPED, TRANSITIONS, Record, State, advance

SENDING, UNKNOWN, PENDING, EXPIRED, ACCEPTED, CANCELLED, REFUSED, REVERSING, REVERSED = State
DECIDED = {ACCEPTED, CANCELLED, REFUSED, REVERSED}

#: Every move that there is, and the events that make it. All else that a state takes changes no state.
MOVES: dict[tuple[State, State], set[type[Event]]] = {
    (SENDING, PENDING): {Created, Prepared},
    (SENDING, REFUSED): {Refused, NotSent},
    (SENDING, UNKNOWN): {Lost, Recovered},
    (UNKNOWN, PENDING): {Created, FoundPending},
    (UNKNOWN, ACCEPTED): {FoundAccepted, DecidedAccepted, Listed},
    (UNKNOWN, CANCELLED): {FoundCancelled, DecidedCancelled, Abandoned, Withdrawn},
    (UNKNOWN, REFUSED): {Refused, NotSent, ProvenAbsent, DecidedRefused},
    (PENDING, ACCEPTED): {FoundAccepted},
    (PENDING, CANCELLED): {FoundCancelled, Abandoned, Withdrawn},
    (PENDING, EXPIRED): {Expired},
    (EXPIRED, EXPIRED): {Exhausted, Unqueried},
    (EXPIRED, ACCEPTED): {FoundAccepted, DecidedAccepted, Listed},
    (EXPIRED, CANCELLED): {FoundCancelled, DecidedCancelled, Abandoned, Withdrawn},
    (EXPIRED, REFUSED): {DecidedRefused},
    (CANCELLED, ACCEPTED): {FoundAccepted, DecidedAccepted},
    (CANCELLED, CANCELLED): {DecidedCancelled},
    (REFUSED, ACCEPTED): {FoundAccepted, DecidedAccepted},
    (REFUSED, REFUSED): {DecidedRefused},
    (ACCEPTED, REVERSING): {ReversalPermitted},
    (ACCEPTED, REVERSED): {FoundCancelled, Reversed},
    (REVERSING, ACCEPTED): {FoundAccepted, ReversalNotSent, ReversalRefused, DecidedAccepted},
    (REVERSING, REVERSED): {FoundCancelled, Reversed, DecidedCancelled},
}

HINTS = {Notified, Returned, Conflicted, Suspected}

#: What each event is evidence of.
EVIDENCE = {
    Created: "answer", Prepared: "answer", Refused: "answer", NotSent: "not sent",
    Lost: "no answer", Recovered: "recovery",
    FoundPending: "query", FoundAccepted: "query", FoundCancelled: "query", ProvenAbsent: "absent", Expired: "clock",
    DecidedAccepted: "operator", Listed: "listed", DecidedCancelled: "operator", DecidedRefused: "operator",
    Notified: "notification", Returned: "return", Abandoned: "unpaid",
    Withdrawn: "withdrawn", Conflicted: "conflict", Suspected: "lane busy",
    Exhausted: "last query", Unqueried: "no query", Overpaid: "conflict", ReversalPermitted: "permit",
    ReversalNotSent: "not sent",
    ReversalRefused: "answer", Reversed: "answer",
}  # fmt: skip

VALUES: dict[str, Any] = {
    "transaction_id": 8, "expires_at": 332.0, "candidate_id": 9, "error_type": "NotCreatedError", "error_code": 22,
    "messages": ("no",), "actor": "ana", "what": "amount", "also": ("other",),
}  # fmt: skip


def example(kind: type[Event]) -> Event:
    """One of its kind, at 2.0."""
    names = {field.name for field in attrs.fields(kind)}
    words = {"reason": "seen"} if issubclass(kind, Decision) else {}
    if kind in (Conflicted, FoundPending):
        names -= {"candidate_id", "expires_at"}
    return kind(at=2.0, **words, **{name: value for name, value in VALUES.items() if name in names})


#: One of each event.
EXAMPLES: dict[type[Event], Event] = {kind: example(kind) for kind in EVIDENCE}

RECORD = Record(
    client_transaction_id="order-17", digest=b"d", lane=b"l", amount=1150, currency="USD", created_at=1.0
)


TAKEN = [(state, event, after) for state, table in TRANSITIONS.items() for event, after in table.items()]


def at_state(state: State) -> Record:
    return attrs.evolve(RECORD, state=state, version=3, decided_at=1.5 if state in DECIDED else None)


# --- The graph


def test_the_moves_are_exactly_these() -> None:
    moves: dict[tuple[State, State], set[type[Event]]] = {}
    for state, event, after in TAKEN:
        if after is not None:
            moves.setdefault((state, after), set()).add(event)
    assert moves == MOVES


def test_what_changes_no_state_is_exactly_this() -> None:
    """Hints and "still pending" are taken by every state; a verdict may be repeated."""
    still = {
        state: {event for start, event, after in TAKEN if start is state and after is None} for state in State
    }
    everywhere = HINTS | {FoundPending}
    assert still == {
        SENDING: everywhere, UNKNOWN: HINTS, PENDING: everywhere, EXPIRED: everywhere,
        ACCEPTED: everywhere | {FoundAccepted, Overpaid},
        CANCELLED: everywhere | {FoundCancelled, Abandoned, Withdrawn}, REFUSED: everywhere,
        REVERSING: everywhere, REVERSED: everywhere | {FoundCancelled},
    }  # fmt: skip


def test_every_state_has_its_row_and_every_event_its_place() -> None:
    kinds = {kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)}
    assert set(TRANSITIONS) == set(State)
    table: Any = TRANSITIONS
    with pytest.raises(TypeError):
        table[SENDING] = {}
    assert (
        {event for _, event, _ in TAKEN}
        == set(EXAMPLES)
        == kinds - {Event, Found, Decision, events.NothingPaid}
    )


def test_what_is_given_back_keeps_the_receipt_of_its_approval() -> None:
    """The reason and the receipt of a decline go where it turns out to be paid."""
    declined = advance(at_state(PENDING), FoundCancelled(at=3.0, reason="no funds (16)", receipt='{"a": 1}'))
    assert (declined.reason, declined.receipt) == ("no funds (16)", '{"a": 1}')
    paid = advance(declined, FoundAccepted(at=4.0, receipt='{"b": 2}'))
    assert (paid.reason, paid.receipt) == (None, '{"b": 2}')
    reversing = advance(paid, EXAMPLES[ReversalPermitted])
    assert (reversing.decided_at, reversing.expires_at, reversing.receipt) == (None, 332.0, '{"b": 2}')
    # An answer from before the request left says nothing of what came of it.
    with pytest.raises(TransitionError, match="on its way"):
        advance(reversing, FoundAccepted(at=400.0), paid)
    with pytest.raises(TransitionError, match="on its way"):
        advance(reversing, FoundAccepted(at=400.0), attrs.evolve(reversing, expires_at=300.0))
    # Whatever the wall clock did since.
    assert advance(reversing, FoundAccepted(at=5.0), reversing).state is ACCEPTED
    back = advance(reversing, FoundCancelled(at=5.0, reason="given back (34)", receipt='{"c": 3}'))
    assert (back.reason, back.receipt, back.decided_at) == ("given back (34)", '{"b": 2}', 5.0)


def test_the_end_of_a_reversal_is_about_its_own_transaction() -> None:
    """A query found another one paid in its place meanwhile."""
    paid = attrs.evolve(at_state(ACCEPTED), transaction_id=2)
    with pytest.raises(TransitionError, match="another transaction is paid"):
        advance(paid, Reversed(at=2.0), attrs.evolve(paid, transaction_id=1))
    assert advance(paid, Reversed(at=2.0), paid).state is REVERSED


@pytest.mark.parametrize("state", [ACCEPTED, REVERSING])
def test_another_transaction_that_is_paid_has_its_own_receipt(state: State) -> None:
    """That of the first would be shown for it."""
    paid = attrs.evolve(at_state(state), transaction_id=1, expires_at=1.0, receipt='{"date": "first"}')
    found = FoundAccepted(at=2.0, transaction_id=2, instead_of=1, receipt='{"date": "second"}')
    after = advance(paid, found)
    assert (after.state, after.transaction_id, after.receipt) == (ACCEPTED, 2, '{"date": "second"}')


def test_what_was_named_meanwhile_is_queried_before_anything_is_called_unpaid() -> None:
    """The report was made before; what a person decides settles what was named so far."""
    seen = attrs.evolve(at_state(UNKNOWN), candidate_ids=(8,))
    named = attrs.evolve(seen, candidate_ids=(8, 9))
    for event in (FoundCancelled(at=2.0), ProvenAbsent(at=2.0)):
        with pytest.raises(TransitionError, match="named meanwhile"):
            advance(named, event, seen)
        assert advance(named, event, named).state in (CANCELLED, REFUSED)
    decided = advance(named, DecidedCancelled(at=2.0, actor="Ana", reason="seen"))
    assert (decided.state, decided.candidate_ids) == (CANCELLED, ())


@pytest.mark.parametrize(
    ("state", "kind", "after"),
    [
        (CANCELLED, DecidedCancelled, CANCELLED),
        (REFUSED, DecidedRefused, REFUSED),
        (CANCELLED, DecidedAccepted, ACCEPTED),
        (REFUSED, DecidedAccepted, ACCEPTED),
    ],
)
def test_a_person_ends_no_doubt_that_came_meanwhile(state: State, kind: type[Decision], after: State) -> None:
    """Who decides once more has looked at all that was named."""
    seen, event = at_state(state), kind(at=2.0, actor="Ana", reason="seen")
    named = advance(seen, Notified(at=2.0, transaction_id=9))
    with pytest.raises(TransitionError, match="changed meanwhile"):
        advance(named, event, seen)
    assert advance(named, event, named).state is after


def test_a_person_overrules_no_word_of_the_service_that_came_meanwhile() -> None:
    """Who calls it paid has looked at it before a query was answered: as it was still unknown."""
    seen, event = at_state(UNKNOWN), DecidedAccepted(at=2.0, actor="Ana", reason="seen")
    for ends in (FoundCancelled(at=2.0), ProvenAbsent(at=2.0)):
        with pytest.raises(TransitionError, match="changed meanwhile"):
            advance(advance(seen, ends), event, seen)


@pytest.mark.parametrize("kind", [ReversalNotSent, ReversalRefused])
def test_the_end_of_an_earlier_reversal_ends_no_later_one(kind: type[Event]) -> None:
    """That one is on its way: called paid, it would be given back once more."""
    later = attrs.evolve(at_state(REVERSING), expires_at=500.0)
    with pytest.raises(TransitionError, match="an earlier request to give it back"):
        advance(later, kind(at=2.0), attrs.evolve(later, expires_at=400.0))
    assert advance(later, kind(at=2.0), later).state is ACCEPTED


@pytest.mark.parametrize("state", [ACCEPTED, REVERSING])
def test_a_report_from_before_a_payment_gives_it_back_in_no_state(state: State) -> None:
    """It was asked for when the ask was open, and came late; one that was asked for since does."""
    paid = at_state(state)
    with pytest.raises(TransitionError, match="older than the payment"):
        advance(paid, FoundCancelled(at=2.0), at_state(PENDING))
    assert advance(paid, FoundCancelled(at=2.0), paid).state is REVERSED


def test_nobody_but_the_service_or_an_operator_says_paid() -> None:
    """No clock, notification, browser or conflict leads to ACCEPTED or CANCELLED."""

    def sources(verdict: State) -> set[Evidence]:
        return {
            event.evidence for (_, after), events in MOVES.items() if after is verdict for event in events
        }

    back = {Evidence.NOT_SENT, Evidence.ANSWER}  # only from REVERSING: it was not given back
    assert sources(ACCEPTED) == {Evidence.QUERY, Evidence.OPERATOR, Evidence.LISTED} | back
    assert {
        before for (before, after), kinds in MOVES.items() if after is ACCEPTED and ReversalRefused in kinds
    } == {REVERSING}
    # Its answer to a withdrawal, and "no such payment" after the browser came back cancelled, are its word as well.
    assert sources(CANCELLED) == {Evidence.QUERY, Evidence.OPERATOR, Evidence.WITHDRAWN, Evidence.UNPAID}


# --- States


@pytest.mark.parametrize("state", State)
def test_paid_follows_from_the_state(state: State) -> None:
    expected = {ACCEPTED: True, CANCELLED: False, REFUSED: False, REVERSED: False}
    assert state.paid is expected.get(state)
    assert state.decided is (state in DECIDED)
    assert str(state) == state.value == state.name.lower()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_events_are_evidence_frozen_keyword_only_and_dated(kind: type[Event]) -> None:
    """An event is a value with a time; what a state rests on is said by the event that brought it."""
    event = EXAMPLES[kind]
    assert kind.evidence == EVIDENCE[kind]
    assert type(event) is kind
    assert event == attrs.evolve(event)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        event.at = 3.0  # type: ignore[misc]  # frozen
    with pytest.raises(TypeError, match=r"positional"):
        kind(2.0)  # type: ignore[call-arg]  # keyword-only
    assert kind.__doc__


def test_a_record_hides_what_it_should() -> None:
    """Digests and the service's messages stay out of logs."""
    record = attrs.evolve(RECORD, digest=b"Canary", lane=b"Canary", messages=("Canary",))
    assert "Canary" not in repr(record)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record.version = 1  # type: ignore[misc]  # frozen


# --- What an event does


#: What no event changes.
KEPT = ("client_transaction_id", "attempt", "kind", "digest", "lane", "amount", "currency", "created_at")


@pytest.mark.parametrize("state", State)
def test_each_state_takes_an_event_or_nothing_changes(state: State) -> None:
    """`advance` follows the table, and is total: what the table lacks raises and leaves the record as it was."""
    table, untouched = TRANSITIONS[state], at_state(state)
    for kind, event in EXAMPLES.items():
        record = at_state(state)
        if kind not in table:
            with pytest.raises(TransitionError, match=rf"^{state} does not take {kind.__name__}$") as caught:
                advance(record, event)
            assert caught.value.client_transaction_id == "order-17"
            assert caught.value.__cause__ is None
        else:
            after = advance(record, event)
            moved = table[kind] is not None
            assert after.state is (table[kind] or state), kind
            assert after.evidence is (kind.evidence if moved else record.evidence), kind
            assert after.version == record.version + 1
            dated = event.at if after.state in DECIDED else None
            assert after.decided_at == (dated if moved else record.decided_at), kind
            for name in KEPT:
                assert getattr(after, name) == getattr(record, name), kind
        assert record == untouched, kind


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(
    "event", [Event(at=2.0), Found(at=2.0), Decision(at=2.0, actor="ana", reason="seen")]
)
def test_no_state_takes_a_base_of_events(state: State, event: Event) -> None:
    """Nor a subclass that the table does not know."""

    class Stranger(FoundAccepted):
        """Not in the table."""

    for stranger in (event, Stranger(at=2.0)):
        with pytest.raises(TransitionError):
            advance(at_state(state), stranger)


@pytest.mark.parametrize(
    ("kind", "brought"),
    [
        # §2.5: the transaction id is what a status is asked by; §8: five minutes.
        (Created, {"state": PENDING, "transaction_id": 8, "expires_at": 332.0, "decided_at": None}),
        # §8: a form's links live ten minutes; its transaction does not exist yet.
        (Prepared, {"state": PENDING, "transaction_id": None, "expires_at": 332.0}),
        (Refused, {"error_type": "NotCreatedError", "error_code": 22, "messages": ("no",)}),
        # An unknown sale expires as well; an id seen in the answer is a candidate.
        (Lost, {"transaction_id": None, "expires_at": 332.0, "candidate_ids": (9,)}),
        (Recovered, {"transaction_id": None, "expires_at": 332.0, "candidate_ids": ()}),
    ],
)
def test_what_ends_the_sending_brings(kind: type[Event], brought: dict[str, Any]) -> None:
    """Ids, an end and reasons, each kept from then on."""
    after = advance(RECORD, EXAMPLES[kind])
    assert {name: getattr(after, name) for name in brought} == brought


def test_a_candidate_of_the_answer_is_the_first() -> None:
    """Those of notifications come after it."""
    heard = attrs.evolve(RECORD, candidate_ids=(5,))
    assert advance(heard, Lost(at=2.0, expires_at=332.0)).candidate_ids == (5,)
    assert advance(heard, EXAMPLES[Lost]).candidate_ids == (9, 5)


@pytest.mark.parametrize("kind", [FoundPending, FoundAccepted, FoundCancelled])
def test_a_query_brings_the_id_where_there_was_none(kind: type[Event]) -> None:
    """An id of ours is never overwritten by what a query says."""
    unknown = at_state(UNKNOWN)
    assert advance(unknown, EXAMPLES[kind]).transaction_id == 8
    bound = attrs.evolve(unknown, transaction_id=7, candidate_ids=(8,))
    with pytest.raises(TransitionError, match="is not this one's"):
        advance(bound, EXAMPLES[kind])
    assert advance(bound, kind(at=2.0)).transaction_id == 7


def test_a_declined_card_of_a_form_is_no_candidate_any_more() -> None:
    """It was queried, and is not what pays the form; the other may be."""
    heard = attrs.evolve(at_state(UNKNOWN), kind="form", candidate_ids=(8, 9))
    after = advance(heard, FoundCancelled(at=2.0, transaction_id=8))
    assert (after.transaction_id, after.candidate_ids) == (None, (9,))


def test_a_pending_report_ends_no_window_early() -> None:
    """The request may have arrived as late as the total time-out; a later report may be as late as it says."""
    unknown = attrs.evolve(at_state(UNKNOWN), expires_at=332.0)
    for ends, expires_at in ((302.0, 332.0), (400.0, 400.0)):
        assert advance(unknown, FoundPending(at=2.0, expires_at=ends)).expires_at == expires_at


def test_the_paid_one_of_several_transactions_counts() -> None:
    """Only a report that says whose place it takes: any other id than ours is still not ours."""
    bound = attrs.evolve(at_state(PENDING), transaction_id=7)
    assert advance(bound, FoundAccepted(at=2.0, transaction_id=8, instead_of=7)).transaction_id == 8
    with pytest.raises(TransitionError, match="is not this one's"):
        advance(bound, FoundAccepted(at=2.0, transaction_id=8, instead_of=9))


@pytest.mark.parametrize("kind", [Notified, Returned])
@pytest.mark.parametrize("state", State)
def test_a_notification_is_a_time_and_perhaps_a_candidate(state: State, kind: type[Event]) -> None:
    """§6: two ids and no verdict. Each id is kept until it proves to be another's; an id of ours stays."""
    record = at_state(state)
    after = advance(record, EXAMPLES[kind])
    assert (after.notified_at, after.candidate_ids, after.transaction_id) == (2.0, (8,), None)
    again = advance(after, attrs.evolve(EXAMPLES[kind], at=3.0, transaction_id=9))  # type: ignore[call-arg]  # both kinds have it
    assert (again.notified_at, again.candidate_ids) == (2.0, (8, 9))
    assert advance(again, attrs.evolve(EXAMPLES[kind], at=3.0)).candidate_ids == (8, 9)
    freed = advance(again, Conflicted(at=4.0, what="another's", candidate_id=8))
    assert (freed.notified_at, freed.candidate_ids) == (2.0, (9,))
    assert advance(again, Conflicted(at=4.0, what="amount 5")).candidate_ids == (8, 9)
    known = advance(attrs.evolve(record, transaction_id=7), EXAMPLES[kind])
    assert (known.transaction_id, known.candidate_ids) == (7, ())


def test_too_many_candidates_have_one_mark_though_the_first_was_anothers() -> None:
    """The mark is the first then, and stays."""
    record = Record(client_transaction_id="order-17", state=State.UNKNOWN)
    for number in range(1, 41):
        record = advance(record, Notified(at=1.0, transaction_id=number))
        if number == 20:
            record = advance(record, Conflicted(at=1.0, what="another's", candidate_id=1))
    assert record.candidate_ids.count(DROPPED) == 1


def test_of_too_many_candidates_the_oldest_goes_and_the_first_stays() -> None:
    """The first may be of the service's own answer; that some were dropped is kept, since they may have been ours."""
    record = advance(RECORD, EXAMPLES[Lost])
    for number in range(100, 115):
        record = advance(record, Notified(at=3.0, transaction_id=number))
    assert record.candidate_ids == (9, *range(100, 115))
    record = advance(record, Notified(at=3.0, transaction_id=200))
    assert record.candidate_ids == (9, DROPPED, *range(102, 115), 200)
    record = advance(record, Notified(at=3.0, transaction_id=201))
    assert record.candidate_ids == (9, DROPPED, *range(103, 115), 200, 201)
    early = RECORD
    for number in range(100, 116):
        early = advance(early, Notified(at=3.0, transaction_id=number))
    assert advance(early, EXAMPLES[Lost]).candidate_ids == (9, DROPPED, *range(102, 116))


def test_a_browser_that_came_back_cancelled_is_a_time_only() -> None:
    """It names no transaction, and decides nothing; zero is a time as well."""
    for time in (2.0, 0.0):
        after = advance(advance(at_state(PENDING), Returned(at=time)), Returned(at=3.0))
        assert (after.state, after.notified_at, after.candidate_ids) == (PENDING, time, ())


# --- Any history


IDS = st.none() | st.integers(1, 3)
TIMES = st.floats(0, 100)
WORDS: dict[str, st.SearchStrategy[Any]] = {
    "at": TIMES, "expires_at": TIMES, "transaction_id": IDS, "candidate_id": IDS,
    "error_type": st.just("RefusedError"), "error_code": st.none() | st.just(22), "what": st.just("amount"),
    "actor": st.just("ana"),
}  # fmt: skip


def events_of(kind: type[Event]) -> st.SearchStrategy[Event]:
    """Any of its kind."""
    words = {field.name: WORDS[field.name] for field in attrs.fields(kind) if field.name in WORDS}
    if kind in (Created, Notified):
        words["transaction_id"] = st.integers(1, 3)
    if kind is FoundPending:
        del words["expires_at"]
    return st.builds(kind, **words | ({"reason": st.just("seen")} if issubclass(kind, Decision) else {}))


EVENTS = st.one_of(*(events_of(kind) for kind in EXAMPLES if kind is not Overpaid))


@given(st.lists(st.tuples(EVENTS, st.integers(1, 4)), max_size=30))
def test_no_history_leaves_the_tables_paths(happened: list[tuple[Event, int]]) -> None:
    """Whatever happens in whatever order, and of whatever was known, each rule holds after each event."""
    records = [RECORD]
    for event, age in happened:
        before, seen = records[-1], records[-age:][0]
        try:
            record = advance(before, event, seen)
        except TransitionError:
            other = before.transaction_id is not None and getattr(event, "transaction_id", None) is not None
            other |= isinstance(event, Reversed) and seen.transaction_id not in (None, before.transaction_id)
            # The request to give it back may still be on its way, or its end is an earlier one's.
            early = before.state is REVERSING and isinstance(event, FoundAccepted)
            early = early and (seen.state is not REVERSING or seen.expires_at != before.expires_at)
            early |= isinstance(event, (ReversalNotSent, ReversalRefused)) and seen != before
            # It was paid meanwhile; or what was named meanwhile may be paid.
            paid = isinstance(event, FoundCancelled) and seen.state not in (ACCEPTED, REVERSING)
            named = isinstance(event, (events.NothingPaid, FoundCancelled))
            named = named and not {*before.candidate_ids} <= {*seen.candidate_ids}
            # Who decides once more has looked at all that is known.
            named |= isinstance(event, Decision) and before.state in (CANCELLED, REFUSED) and seen != before
            assert type(event) not in TRANSITIONS[before.state] or other or early or paid or named
            continue
        records.append(record)
        assert record.state is before.state or type(event) in MOVES[before.state, record.state]
        assert record.version == before.version + 1
        assert (record.decided_at is not None) == record.state.decided
        assert (record.state.paid is None) == (record.state not in DECIDED)
        if type(event) in HINTS:
            assert (record.state, record.evidence) == (before.state, before.evidence)
        if before.transaction_id is not None and type(event) is not Created:
            assert record.transaction_id == before.transaction_id
        if before.notified_at is not None:
            assert record.notified_at == before.notified_at
        if before.state in (ACCEPTED, REVERSING, REVERSED):
            assert record.state in (ACCEPTED, REVERSING, REVERSED)
        if record.state is PENDING:
            assert record.expires_at is not None
