"""`payclient ledger resolve`: what nobody can ask is decided by hand."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.ledger_opening import Identifier, newest, with_ledger
from payclient.cli.ledger_words import RESTS_ON, utc
from payclient.cli.settings import LedgerUrl, Yes
from payclient.errors import ConfigurationError
from payclient.events import DecidedAccepted, DecidedCancelled, DecidedRefused, Decision
from payclient.ledger import Ledger
from payclient.lifecycle import TRANSITIONS, Record, State

__all__: list[str] = []

DECISIONS: dict[str, type[Decision]] = {
    "accepted": DecidedAccepted,
    "cancelled": DecidedCancelled,
    "refused": DecidedRefused,
}

#: What an operator's word means for whoever runs the shop.
MEANINGS = {
    "accepted": "It counts as paid from now on, whatever the service says. This is final.",
    "cancelled": "It counts as not paid from now on. Only the service's word that it was accepted can change that.",
    "refused": (
        "This RE-OPENS CHARGING: the next charge of this client transaction id is sent to the service again. "
        "If this attempt does exist there, the customer pays twice."
    ),
}


def resolve(
    identifier: Identifier,
    /,
    *,
    as_: Annotated[
        Literal["accepted", "cancelled", "refused"],
        Parameter(
            name="--as", help="What it was; refused says that nothing was created, and re-opens charging."
        ),
    ],
    actor: Annotated[str, Parameter(help="Who decides; kept in the history.")],
    reason: Annotated[str, Parameter(help="Why, and by what proof; kept in the history.")],
    ledger: LedgerUrl = None,
    yes: Yes = False,
) -> int:
    """Decide an unknown or expired sale by hand, for good, with a name and a reason as its evidence."""
    for option, value in (("--actor", actor), ("--reason", reason)):
        if not value.strip():
            raise ConfigurationError(f"{option}: must not be empty")
    if not yes:
        terminal.check_can_ask("nothing was changed")

    # Closed while it asks, so that nobody's charges stand still for it.
    seen = with_ledger(ledger, lambda book: newest(book, identifier))
    _check_open(seen, as_)
    _say_what_it_means(seen, as_)
    if not yes and not terminal.agrees("Decide it so?", "nothing was changed"):
        return 2

    async def decide(book: Ledger) -> Record:
        record = await newest(book, identifier)
        if (record.attempt, record.version) != (seen.attempt, seen.version):
            raise ConfigurationError(
                f"{identifier} has changed meanwhile: look at it again; nothing was changed"
            )
        return await book.apply(
            record, DECISIONS[as_](at=time.time(), actor=actor.strip(), reason=reason.strip())
        )

    after = with_ledger(ledger, decide)
    terminal.say(f"{identifier} is {after.state} from now on, on the word of {actor.strip()}")
    return 0


def _check_open(record: Record, decision: str) -> None:
    if DECISIONS[decision] in TRANSITIONS[record.state]:
        return
    allowed = " or ".join(
        state for state, table in TRANSITIONS.items() if DECISIONS[decision] in table and not state.decided
    )
    hint = ""
    if record.state in (State.SENDING, State.PENDING):
        hint = "; run the charge again, which asks the service first"
    raise ConfigurationError(
        f"{record.client_transaction_id} is {record.state}: only what is {allowed} is decided by hand{hint}; "
        "nothing was changed"
    )


def _say_what_it_means(record: Record, decision: str) -> None:
    now = time.time()
    terminal.say(
        f"{record.client_transaction_id}, attempt {record.attempt}, "
        f"{terminal.money(record.amount, record.currency)}, is {record.state}: {RESTS_ON[record.evidence]}"
    )
    if record.expires_at is not None and now < record.expires_at:
        left = terminal.duration(record.expires_at - now)
        terminal.say(f"The customer may still approve it, until {utc(record.expires_at)} UTC (in {left}).")
    terminal.say(f"As {decision}: {MEANINGS[decision]}")
