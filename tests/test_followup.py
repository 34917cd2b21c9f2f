"""The pure half of following: no ask is without a next look or an end, and nothing but a word or a proof decides."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.errors import TransitionError
from payclient.events import (
    Abandoned,
    Created,
    Event,
    Exhausted,
    Expired,
    Found,
    FoundAccepted,
    Lost,
    Notified,
    ProvenAbsent,
    Returned,
)
from payclient.lifecycle import Record, State, advance
from payclient.models import StatusReport
from payclient.profile import ServiceProfile, StatusProfile
from payclient.schedule import Attentive, Fixed, Schedule, Steps
from payclient.tracking.evidence import AnswerReader, Credentials, read_form
from payclient.tracking.followup import LEASE, NOTIFIED_DELAYS, Followed, Policy
from payclient.tracking.returned_form import read_confirmation

ID, OURS = "order-17", 1000
WINDOW = 300.0
TOKEN = b"token"
CREDENTIALS = Credentials(b"k" * 32)


def policy(
    schedule: Schedule | None = None, *, can_query: bool = True, by_client: bool = True, by_id: bool = True
) -> Policy:
    status = StatusProfile(
        by_transaction_id="/{transaction_id}" if by_id else None,
        by_client_transaction_id="/{client_transaction_id}" if by_client else None,
        state_field="state",
    ) if by_id or by_client else None  # fmt: skip
    profile = ServiceProfile(name="test", status=status if can_query else None)
    return Policy(profile, schedule or Attentive(), 30.0, own_source=False)


def record(kind: str = "sale", state: State = State.PENDING) -> Record:
    """As the ledger has it: a sale that was answered, lost or recovered, or a form."""
    fresh = Record(
        client_transaction_id=ID, kind=kind, amount=1150, currency="USD",
        credentials=CREDENTIALS.keyed(TOKEN),
    )  # fmt: skip
    if state is State.UNKNOWN:
        return advance(fresh, Lost(at=1.0, expires_at=WINDOW + 30.0))
    return advance(fresh, Created(at=1.0, transaction_id=OURS, expires_at=WINDOW + 1.0))


def follow(rules: Policy, kept: Record, now: float = 0.0) -> Followed:
    return Followed(kept, 0.0, WINDOW if kept.expires_at is None else kept.expires_at, now)


SCHEDULES = st.just(Attentive()) | st.floats(0.5, 1e4).map(Fixed) | st.just(Steps((60.0, 5.0), (300.0, 20.0)))
POLICIES = st.builds(policy, SCHEDULES, can_query=st.booleans(), by_client=st.booleans(), by_id=st.booleans())
RECORDS = st.builds(
    record, kind=st.sampled_from(["sale", "form"]), state=st.sampled_from([State.PENDING, State.UNKNOWN])
)


# --- When next


@given(POLICIES, RECORDS, st.lists(st.sampled_from(["nothing", "failure", "notified", "named"]), max_size=30))
def test_no_wait_is_without_a_next_look_or_an_end(rules: Policy, kept: Record, incidents: list[str]) -> None:
    """Looked at whenever it says, the waits for an ask are over in time; each look is later than the one before."""
    ask = follow(rules, kept)
    now = rules.plan_look(ask, 0.0)
    assert now is not None
    assert 0.0 <= now <= ask.expires
    for looks, incident in enumerate([*incidents, *["nothing"] * 500]):
        if incident == "failure":
            ask.failures += 1
        elif incident == "notified" and rules.can_query:
            ask.notified_queries = 0
        elif incident == "named" and ask.record.transaction_id is None:
            ask.record = advance(ask.record, Notified(at=now, transaction_id=OURS + looks % 5))
            ask.absent_at = None
        if now >= ask.expires and ask.record.state is State.PENDING:
            ask.record = advance(ask.record, Expired(at=now))
        if rules.can_query:
            rules.begin_query(ask, now)
        when = rules.plan_look(ask, now)
        if ask.waits_over:
            break
        assert when is not None
        assert now < when < math.inf
        now = when
    else:
        raise AssertionError("its waits are never over")
    assert now <= ask.expires + 3600.0
    ask.failures = 0  # from now on each query is answered, and the ledger takes what that means
    while True:
        if rules.exhausts_now(ask, now):
            ask.record = advance(ask.record, Exhausted(at=now))
        if (when := rules.plan_look(ask, now)) is None:
            break
        assert now < when <= ask.expires + 86400.0
        now = when


def test_an_expiry_that_cannot_be_written_is_tried_again_after_a_while() -> None:
    """Of a sale that was notified before its answer came, where nothing can be queried: no look is in the past."""
    rules = policy(can_query=False)
    ask = follow(rules, advance(record(), Notified(at=2.0, transaction_id=OURS)))
    assert rules.plan_look(ask, 3.0) == ask.expires
    when = rules.plan_look(ask, ask.expires + 1.0)
    assert when is not None
    assert when > ask.expires + 1.0


def test_what_a_person_must_find_out_is_looked_at_no_more() -> None:
    """Its customer acted, and nothing can be queried: no look at it would write or end anything."""
    rules = policy(can_query=False)
    ask = follow(rules, advance(record(), Notified(at=2.0, transaction_id=OURS)))
    ask.record, ask.waits_over = advance(ask.record, Expired(at=ask.expires)), True
    assert not rules.exhausts_now(ask, 1e6)
    assert rules.plan_look(ask, 1e6) is None


@given(POLICIES.filter(lambda rules: not rules.can_query), RECORDS)
def test_where_nothing_can_be_queried_each_later_look_is_a_write(rules: Policy, kept: Record) -> None:
    """Of the expiry, or of its end, which the ledger could not take yet; nothing is looked at for nothing."""
    ask = follow(rules, kept)
    for event in (None, Expired, Exhausted):
        if event is not None and kept.state is State.PENDING:
            ask.record = advance(ask.record, event(at=ask.expires))
        ask.waits_over, now = True, max(ask.expires, ask.begun + rules.life[kept.kind]) + 20.0
        due = rules.expires_now(ask, now) or rules.exhausts_now(ask, now)
        assert (rules.plan_look(ask, now) is not None) is due


def test_a_query_of_a_candidate_that_fails_between_the_proofs_is_made_again() -> None:
    """Without its answer nothing is proven; with one failure the proof is not given up."""
    rules, kept = policy(), advance(record(state=State.UNKNOWN), Notified(at=1.0, transaction_id=OURS))
    ask = follow(rules, kept)
    ask.final_queries, ask.absent_at, ask.queried_at, now = 7, 620.0, 620.0, 680.0
    ask.client_queried_at = 620.0
    for _ in range(2):
        query = rules.begin_query(ask, now)
        assert query.candidate_id == OURS
        ask.note_unanswered(query.candidate_id)
        ask.failures += 1
        ask.queried_at = now
        now, before = rules.plan_look(ask, now) or 0.0, now
        assert now > before


def test_a_failure_is_not_followed_by_a_query_at_once() -> None:
    """Also where a last query is due long since: its ask failed before that query was made."""
    rules, ask = policy(), follow(policy(), record())
    ask.failures, now = 1, ask.expires + 100.0
    assert rules.plan_look(ask, now) == now + rules.least_gap


@pytest.mark.parametrize(
    ("failures", "failing", "ends"), [(3, False, True), (2, False, False), (0, True, True)]
)
def test_a_wait_ends_where_the_service_or_the_ask_alone_fails(
    failures: int, failing: bool, ends: bool
) -> None:
    """Not before the last queries had their time."""
    rules, ask = policy(), follow(policy(), record())
    ask.failures = failures
    assert rules.gives_up(ask, ask.expires + 500.0, failing=failing) is ends
    assert not rules.gives_up(ask, ask.expires + 499.0, failing=failing)
    late = follow(rules, record(), now=5000.0)  # its process was down
    assert not rules.gives_up(late, 5499.0, failing=True)


def test_whoever_waits_for_anothers_unknown_sale_lets_its_absence_be_proven() -> None:
    """The process that has its lease makes the two queries of the proof; only later it must have ended."""
    ask = follow(policy(), record(state=State.UNKNOWN))
    ask.followed_elsewhere = True
    assert policy().plan_look(ask, 400.0) == 1.2 * 600.0 + LEASE


@given(POLICIES, RECORDS, st.floats(0.0, 2000.0))
def test_what_waits_for_its_query_is_looked_at_all_the_same(rules: Policy, kept: Record, now: float) -> None:
    """Never past its expiry, and while somebody may wait never without a time."""
    ask = follow(rules, kept)
    for line in (0, 3):
        ask.line = line
        when = rules.look_meanwhile(ask, now)
        assert when is not None
        assert when > now or when == ask.expires
        if now < ask.expires:
            assert when <= ask.expires
    ask.waits_over = True
    assert rules.look_meanwhile(ask, max(now, ask.expires)) is None


@given(POLICIES, RECORDS, st.floats(0.0, 1e5))
def test_whoever_waits_for_another_process_does_so_for_a_bounded_time(
    rules: Policy, kept: Record, now: float
) -> None:
    """Then it queries by itself."""
    ask = follow(rules, kept)
    ask.followed_elsewhere = True
    when = rules.plan_look(ask, now)
    assert when is not None
    assert now < when <= max(now, ask.expires + 1000.0) + LEASE


@given(st.sampled_from(["sale", "form"]), SCHEDULES)
def test_a_notification_is_queried_after_and_then_the_routine_goes_on(kind: str, schedule: Schedule) -> None:
    """0.25, 0.75, 2 and 5 s apart, and no further."""
    rules = policy(schedule)
    ask = follow(rules, record(kind))
    ask.notified_queries = 0
    gaps, now = [], 10.0
    for _ in NOTIFIED_DELAYS:
        when = rules.plan_look(ask, now)
        assert when is not None
        gaps.append(when - now)
        now = when
    assert tuple(gaps) == (0.25, 0.75, 2.0, 5.0)
    rules.plan_look(ask, now)
    assert ask.notified_queries is None


@pytest.mark.parametrize(
    ("kind", "age", "gap"), [("sale", 100.0, 20.0), ("form", 100.0, 25.0), ("form", 500.0, 100.0)]
)
def test_a_form_is_queried_as_a_push_of_a_fifth_of_its_age_a_fifth_as_often(
    kind: str, age: float, gap: float
) -> None:
    """It lives longer, and its customer comes back by a redirect."""
    rules = policy(Steps((60.0, 5.0), (300.0, 20.0)))
    ask = follow(rules, record(kind))
    ask.expires = 1200.0
    rules.begin_query(ask, age)
    assert rules.plan_look(ask, age) == age + gap


def test_however_often_it_fails_an_ask_is_queried_again_within_32_gaps() -> None:
    rules, ask = policy(Fixed(2.0)), follow(policy(), record())
    rules.begin_query(ask, 10.0)
    ask.failures = 20
    assert rules.plan_look(ask, 10.0) == 10.0 + 32 * 2.0


@pytest.mark.parametrize("kind", ["sale", "form"])
def test_forms_say_nothing_about_how_surely_pushes_are_notified(kind: str) -> None:
    rules = policy()
    notified = advance(record(kind), Notified(at=2.0, transaction_id=OURS))
    rules.note_decision(notified, advance(notified, FoundAccepted(at=3.0, transaction_id=OURS)))
    assert (rules.notified_share > 0.0) is (kind == "sale")


def test_no_more_is_notified_than_all() -> None:
    """However many notifications come late."""
    rules = policy()
    for _ in range(20):
        rules.note_late_notification()
    assert rules.notified_share == 1.0


# --- Which request next


@given(st.lists(st.integers(1, 40), max_size=20, unique=True), st.booleans(), st.booleans())
def test_every_candidate_has_its_turn_and_our_own_id(named: list[int], by_client: bool, by_id: bool) -> None:
    """The ids that were named are queried in turn with the client transaction id, the least queried first."""
    rules, kept = policy(by_client=by_client, by_id=by_id), record(state=State.UNKNOWN)
    for number in named:
        kept = advance(kept, Notified(at=1.0, transaction_id=number))
    ask, queries = follow(rules, kept), []
    for now in range(100):
        queries.append(rules.begin_query(ask, float(now)).candidate_id)
    candidates = {each for each in kept.candidate_ids if each}
    if not by_id or not candidates:
        assert set(queries) == {None}
        return
    assert candidates <= set(queries)
    counts = [queries.count(each) for each in candidates]
    assert max(counts) - min(counts) <= 1
    assert queries.count(None) == (50 if by_client else 0)


# --- What an answer means


REPORTS = st.builds(
    StatusReport, state=st.sampled_from(["Pendiente", "Aceptado", "Cancelado", None]),
    transaction_id=st.sampled_from([None, OURS, 2000]),
    client_transaction_id=st.sampled_from([None, ID, "order-18"]), amount=st.sampled_from([None, 1150, 1]),
    currency=st.sampled_from([None, "USD", "EUR"]), also_accepted=st.sampled_from([(), (3000,)]),
    unreadable=st.sampled_from([(), ("amount",)]),
)  # fmt: skip
HINTS = st.one_of(
    st.builds(Notified, at=st.floats(0.0, 1000.0), transaction_id=st.sampled_from([OURS, 2000])),
    st.builds(Returned, at=st.floats(0.0, 1000.0), transaction_id=st.sampled_from([None, OURS, 2000])),
    st.builds(Expired, at=st.floats(0.0, 1000.0)),
)
#: Seconds until the next answer, whose token it came under, and the answer: a report, "not found", or a hint.
ANSWERS = st.lists(
    st.tuples(
        st.floats(0.0, 400.0), st.sampled_from([TOKEN, b"another"]), st.one_of(st.none(), REPORTS, HINTS)
    ),
    max_size=25,
)
WORDS = {"Aceptado": State.ACCEPTED, "Cancelado": State.CANCELLED}


@given(POLICIES.filter(lambda rules: rules.can_query), RECORDS, ANSWERS)
def test_nothing_but_a_word_or_a_proof_decides(
    rules: Policy, kept: Record, answers: list[tuple[float, bytes, StatusReport | Event | None]]
) -> None:
    """In whatever order: the service's word about our ids and amount, or two "not found", late and far enough apart."""
    credentials = Credentials(b"k" * 32)
    ask, now = follow(rules, kept), 0.0
    absences: list[float] = []
    for seconds, token, answer in answers:
        now += seconds
        if isinstance(answer, Event):
            try:
                ask.record = advance(ask.record, answer)
            except TransitionError:
                continue
            assert ask.record.state.paid is None
            continue
        query = rules.begin_query(ask, now)
        reader = AnswerReader(rules, credentials, ask, query, now, now, token)
        can_see, by_client_id = credentials.can_see(ask.record, token), query.candidate_id is None
        if answer is None:
            reading = reader.not_found()
            if by_client_id and can_see:
                absences.append(now)
        else:
            reading = reader.report(answer)
            # What another account has, or is another's, says nothing against an absence.
            is_ours = by_client_id or answer.client_transaction_id in (None, kept.client_transaction_id)
            absences = [] if can_see and is_ours else absences
            if reading.needs_second_query:
                assert reading.events == []
                reading = reader.second_report(answer)
        for event in reading.events:
            try:
                after = advance(ask.record, event)
            except TransitionError:
                continue
            if after.state is not ask.record.state and after.state.decided:
                if isinstance(event, ProvenAbsent):
                    assert answer is None
                    assert rules.proves_absence
                    assert now >= rules.absent_after
                    assert [each for each in absences if each <= now - rules.absent_after / 10]
                else:
                    assert isinstance(event, Found)
                    assert answer is not None
                    assert answer.state is not None
                    assert after.state is WORDS[answer.state]
                    assert answer.client_transaction_id in (None, ID)
                    assert answer.amount in (None, 1150)
                    assert not answer.unreadable
            ask.record = after
        if ask.record.state.decided:
            return
    assert ask.record.state.paid is None


@given(REPORTS | st.none(), st.sampled_from([OURS, 2000]), st.booleans())
def test_a_form_is_paid_only_by_a_confirmation_of_that_very_payment(
    report: StatusReport | None, confirmed: int, cancelled: bool
) -> None:
    """Its id, our client transaction id and our amount, all said; or nothing is decided."""
    kept = attrs.evolve(record("form"), transaction_id=None)
    if cancelled:
        kept = advance(kept, Abandoned(at=1.0))
    if report is not None:
        for event in read_confirmation(kept, confirmed, report, 2.0)[0].events:
            if advance(kept, event).state is not kept.state:
                said = (report.transaction_id, report.client_transaction_id, report.amount)
                assert said == (confirmed, ID, 1150)
                assert report.state != "Pendiente"
    for event in read_form(kept, report, 2.0).events:
        if advance(kept, event).state.paid is True:
            assert report is not None
            assert report.state == "Aceptado"


def test_a_token_that_finds_another_transaction_is_no_token_of_this_attempt() -> None:
    """Another account may have an order of the same id."""
    credentials, kept = Credentials(b"k" * 32), record()
    for transaction_id, sees in ((OURS + 1, False), (OURS, True)):
        credentials.note_found(kept, transaction_id, b"renewed")
        assert credentials.can_see(kept, b"renewed") is sees
