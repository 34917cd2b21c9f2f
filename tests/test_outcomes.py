"""`Outcome`: what a record and its changes say."""

from typing import Any

import attrs
import pytest

from payclient.errors import RefusedError
from payclient.events import Evidence
from payclient.ledger import Change
from payclient.lifecycle import Record, State
from payclient.models import StatusReport
from payclient.tracking.outcomes import Outcome

RECORD = Record(
    client_transaction_id="order-17", state=State.ACCEPTED, evidence=Evidence.QUERY, transaction_id=7,
    created_at=1.0, notified_at=2.0, decided_at=3.0,
)  # fmt: skip


def change(after: State, **fields: Any) -> Change:
    return Change(**{
        "cursor": 5, "client_transaction_id": "order-17", "attempt": 1, "at": 9.0, "event": "X",
        "before": State.PENDING,
        "after": after, "evidence": Evidence.QUERY, **fields,
    })  # fmt: skip


@pytest.mark.parametrize("state", State)
def test_paid_is_the_states(state: State) -> None:
    """None is "nobody knows", and never "unpaid"."""
    outcome = Outcome.of(attrs.evolve(RECORD, state=state))
    assert outcome.paid is state.paid
    assert (outcome.error is None) == (state is not State.REFUSED)


def test_an_outcome_says_what_its_record_says() -> None:
    """With the report, if this process heard one."""
    report = StatusReport(state="Aceptado", transaction_id=7)
    assert Outcome.of(RECORD, report=report) == Outcome(
        client_transaction_id="order-17", purchase="order-17", state=State.ACCEPTED,
        evidence=Evidence.QUERY, transaction_id=7, created_at=1.0, notified_at=2.0, decided_at=3.0,
        report=report,
    )  # fmt: skip
    assert Outcome.of(RECORD).report is None


def test_a_refused_outcome_has_its_error() -> None:
    """Code and messages are those that the ledger keeps."""
    refused = attrs.evolve(
        RECORD, state=State.REFUSED, evidence=Evidence.ANSWER, error_code=22, messages=("one", "two")
    )
    error = Outcome.of(refused).error
    assert isinstance(error, RefusedError)
    assert (error.error_code, error.message, error.client_transaction_id) == (22, "one; two", "order-17")
    assert str(error) == "[22] one; two"


@pytest.mark.parametrize("evidence", [Evidence.NOT_SENT, Evidence.ABSENT, Evidence.OPERATOR])
def test_a_refusal_without_words_says_its_evidence(evidence: Evidence) -> None:
    """Nobody wrote a message where no error object came."""
    error = Outcome.of(attrs.evolve(RECORD, state=State.REFUSED, evidence=evidence)).error
    assert str(error) == f"nothing was created ({evidence})"


def test_an_outcome_of_the_past_has_its_cursor() -> None:
    """The feed tells each change as it was, with the place to go on from."""
    outcome = Outcome.at(change(State.EXPIRED, evidence=Evidence.CLOCK), RECORD)
    assert (outcome.state, outcome.evidence, outcome.cursor) == (State.EXPIRED, Evidence.CLOCK, 5)
    assert (outcome.paid, outcome.decided_at, outcome.error, outcome.transaction_id) == (None, None, None, 7)
    assert Outcome.at(change(State.CANCELLED), RECORD).decided_at == 9.0


def test_an_outcome_of_the_past_has_the_error_of_its_own_state() -> None:
    """A later attempt's success is no refusal, and a refusal keeps its words."""
    refused = attrs.evolve(RECORD, state=State.REFUSED, error_code=22, messages=("one",))
    error = Outcome.at(change(State.REFUSED), refused).error
    assert isinstance(error, RefusedError)
    assert error.error_code == 22
    assert Outcome.at(change(State.EXPIRED), refused).error is None


def test_an_outcome_of_the_past_has_no_reason_that_came_later() -> None:
    """Declined after it had expired: that it expired had no reason yet."""
    declined = attrs.evolve(RECORD, state=State.CANCELLED, reason="no funds")
    assert Outcome.at(change(State.EXPIRED), declined).reason is None
    assert Outcome.at(change(State.CANCELLED), declined).reason == "no funds"
