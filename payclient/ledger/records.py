"""One layout for every ledger: rows <-> records, what the history keeps of an event, and the statements as files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import attrs

from payclient.errors import ConfigurationError, LedgerMissingError
from payclient.events import Created, Event, Evidence, Found, Overpaid
from payclient.ledger import Change, PurchaseHeldError
from payclient.lifecycle import PAID, TRANSITIONS, Record, State, advance, transition_error
from payclient.logs import ledger_log as log

#: The version of the tables, views and guards, which `TRANSITIONS` shapes too. A ledger of another version is refused.
VERSION = 1

_WAY_OUT = "use that release, or move to a new ledger (payclient guide ledger)"

#: The states whose arrival is news to a reader of the feed.
FEED = frozenset(State) - {State.SENDING, State.UNKNOWN, State.PENDING}

#: States of an ask whose purchase is open. The other half of the rule is in `holds_purchase`.
_OPEN = (State.SENDING, State.UNKNOWN, State.PENDING)


# Statements


def _any_of(name: str, states: Iterable[State]) -> str:
    # Not `IN`: for three and more SQLite would build a table each time.
    return " OR ".join(f"{name} = '{state}'" for state in sorted(states))


def _legal_moves() -> str:
    """Return SQL that is true where `TRANSITIONS` has an event that leads from `before` to `after`."""
    cases = (
        f"WHEN '{state}' THEN {_any_of('after', {state if target is None else target for target in table.values()})}"
        for state, table in TRANSITIONS.items()
    )
    return f"CASE before {' '.join(cases)} ELSE false END"


#: The columns of an attempt and of a change that an archive keeps.
COLUMNS: dict[str, tuple[str, ...]] = {
    "whole_attempt": (
        "id", "client_transaction_id", "attempt", "kind", "digest", "lane", "credentials", "amount", "currency",
        "created_at", "purchase", "links_dead_at", "beside_open_form",
    ),
    "whole_change": (
        "cursor", "attempt_id", "version", "at", "event", "evidence", "detail", "before", "after", "state_evidence",
        "transaction_id", "expires_at", "candidate_ids", "notified_at", "decided_at", "error_code", "error_type",
        "messages", "reason", "receipt",
    ),
}  # fmt: skip

_PERMIT, _FACTS = COLUMNS["whole_attempt"][1:], COLUMNS["whole_change"][2:]
#: What the change `Archived` repeats of the one before it: all but the texts.
_KEPT = (
    "after", "state_evidence", "transaction_id", "expires_at", "candidate_ids", "notified_at", "decided_at",
    "error_code", "error_type",
)  # fmt: skip
_permit_fields = attrgetter(*_PERMIT)
#: The columns from which a record and a change are read.
_RECORD_FIELDS = tuple(field.name for field in attrs.fields(Record))
_CHANGE_FIELDS = tuple(field.name for field in attrs.fields(Change))

#: The values of the words in braces in a file of statements.
_MADE = {
    "record": ", ".join(_RECORD_FIELDS),
    "change": ", ".join(_CHANGE_FIELDS),
    "permit": ", ".join(_PERMIT),
    "facts": ", ".join(_FACTS),
    "kept": ", ".join(_KEPT),
    "new_kept": ", ".join(f"new.{name}" for name in _KEPT),
    **{name: ", ".join(columns) for name, columns in COLUMNS.items()},
    "legal_moves": _legal_moves(),
    "decided": _any_of("after", [state for state in State if state.decided]),
    # UNPAID: the customer closed the form, and the service does not call it cancelled. Links may be used again.
    "links_are_dead": f"(({_any_of('state', [*PAID, *(each for each in State if each.decided)])}) "
    f"AND evidence <> '{Evidence.UNPAID}')",
    "news": f"({_any_of('after', FEED)}) AND (after <> before OR event = '{Overpaid.__name__}')",
}


def read_statements(file: str) -> dict[str, str]:
    """Return the statements of `both.sql` and of another file of this package by name; each follows `-- name: NAME`."""
    text = "".join(Path(__file__).with_name(each).read_text(encoding="utf-8") for each in ("both.sql", file))
    without_comments = re.sub(r"(?m)^ *--(?! name:).*\n", "", text)
    parts = re.split(r"(?m)^-- name: (\w+)\n", without_comments)
    statements = {name: sql.strip() for name, sql in zip(parts[1::2], parts[2::2], strict=True)}
    values = statements | _MADE
    return {name: re.sub(r"\{(\w+)\}", lambda word: values[word[1]], sql) for name, sql in statements.items()}


def missing(where: str) -> LedgerMissingError:
    """Return the error of a path, or of a server's address without its user, at which no ledger is."""
    return LedgerMissingError(
        f"the ledger must exist, and there is no ledger at {where}; `payclient ledger init` makes one"
    )


def refuse_if(*faults: tuple[bool, str]) -> None:
    """Raise `ConfigurationError` in the words of the first of the faults that is there."""
    for is_there, words in faults:
        if is_there:
            raise ConfigurationError(words)


def check_version(found: object) -> None:
    """Raise `ConfigurationError` for the schema of another release."""
    if found != VERSION:
        raise ConfigurationError(
            f"the ledger must have schema version {VERSION}, and has version {found}: another release of payclient "
            f"made it; {_WAY_OUT}; nothing was changed"
        )


def lacking(parts: str) -> ConfigurationError:
    """Return the error of a ledger without these parts, or with other ones of the same names."""
    return ConfigurationError(
        f"the ledger lacks {parts}; another release of payclient made it, or somebody changed it; {_WAY_OUT}"
    )


def check_one_key(keys: Iterable[object]) -> None:
    """Raise `ConfigurationError` where a ledger has several digest keys."""
    if len(set(keys)) > 1:
        raise ConfigurationError(
            "the ledger has two digest keys: rows were restored into a ledger that had been made before; restore them "
            "into a new database"
        )


# Rows


def permit_row(record: Record) -> tuple[Any, ...]:
    """Return the values of a permit, as the statements `permit` and `write` take them."""
    fields = _permit_fields(record)
    # The digests as bytearrays, which sqlite3 takes by a shorter way than bytes.
    return (*fields[:3], *map(bytearray, fields[3:6]), *fields[6:])


def change_row(before: Record, event: Event, after: Record) -> tuple[Any, ...]:
    """Return the values of a change, as the statements `change` and `write` take them."""
    # `_value_`, since sqlite3 takes a plain str by a shorter way than an enum's member.
    return (
        after.client_transaction_id,
        after.attempt,
        after.version,
        event.at,
        type(event).__name__,
        event.evidence._value_,
        describe(event),
        before.state._value_,
        after.state._value_,
        after.evidence._value_,
        after.transaction_id,
        after.expires_at,
        json.dumps(after.candidate_ids) if after.candidate_ids else None,
        after.notified_at,
        after.decided_at,
        after.error_code,
        after.error_type,
        json.dumps(after.messages) if after.messages else None,
        after.reason,
        after.receipt,
    )


_STATES: dict[str | None, State] = {state.value: state for state in State}
_EVIDENCE = {evidence.value: evidence for evidence in Evidence}


def record_of(row: Sequence[Any]) -> Record:
    """Return the record of a row; columns behind those of a record are left out."""
    fields = dict(zip(_RECORD_FIELDS, row, strict=False))
    fields["state"], fields["evidence"] = _STATES[fields["state"]], _EVIDENCE[fields["evidence"]]
    for name in ("candidate_ids", "messages"):
        fields[name] = tuple(json.loads(fields[name])) if fields[name] else ()
    for name in ("beside_open_form", "archived"):
        fields[name] = bool(fields[name])
    # One string for both: 100,000 records may be in memory.
    if fields["purchase"] == fields["client_transaction_id"]:
        fields["purchase"] = fields["client_transaction_id"]
    return Record(**fields)


def grouped(rows: Iterable[Sequence[Any]], by: str = "client_transaction_id") -> dict[str, list[Record]]:
    """Return the attempts of each client transaction id, or of each purchase, from rows in their order."""
    found: dict[str, list[Record]] = {}
    for record in map(record_of, rows):
        found.setdefault(getattr(record, by), []).append(record)
    return found


def change_of(row: Sequence[Any]) -> Change:
    """Return the change of a row."""
    fields = dict(zip(_CHANGE_FIELDS, row, strict=True))
    fields["before"], fields["after"] = _STATES.get(fields["before"]), _STATES[fields["after"]]
    return Change(**fields | {"evidence": _EVIDENCE[fields["evidence"]]})


def describe(event: Event) -> str | None:
    """Return what the history shows of an event, as JSON; None for nothing."""
    if type(event) is Created:  # by far the most frequent: each sale has one
        return f'{{"transaction_id": {event.transaction_id}, "expires_at": {event.expires_at}}}'
    # Left out: the texts that the record keeps.
    left_out = ("at", "reason", "receipt") if isinstance(event, Found) else ("at", "messages")
    said = {
        name: value
        for name, value in attrs.asdict(event, recurse=False).items()
        if value not in (None, ()) and name not in left_out
    }
    return json.dumps(said) if said else None


# The rule for the asks of one purchase: the same as `holds` in both.sql


def holds_purchase(known: Record, at: float, *, beside_open_form: bool = False) -> bool:
    """Return whether an ask denies others of its purchase a permit at this UTC time: it is paid, or may yet be.

    With `beside_open_form` the other one may be sent beside a form that is open.
    """
    state, evidence = known.state, known.evidence
    if state in PAID:
        return True
    if known.kind == "form" and beside_open_form:
        return False
    if state is State.EXPIRED and evidence is Evidence.CLOCK:
        return True  # its last query is to come, and may find it paid
    if known.kind != "form":
        return state in _OPEN
    if known.links_dead_at is not None and known.links_dead_at <= at:
        return False
    match state:
        case State.SENDING | State.PENDING | State.EXPIRED:
            return True
        case State.UNKNOWN:
            # Nobody has the links of a form whose answer was lost, unless a transaction of it was named.
            return evidence is not Evidence.NO_ANSWER or bool(known.candidate_ids)
        case State.CANCELLED:
            return may_be_paid(known)
    return False


def may_be_paid(cancelled: Record) -> bool:
    """Return whether a cancelled form may be paid all the same, while its links live.

    Its browser came back cancelled, and the service has not called the form so; or a transaction was named to it since.
    """
    return cancelled.evidence is Evidence.UNPAID or bool(cancelled.candidate_ids)


def overpaid(asks: Iterable[Record], record: Record, at: float) -> Overpaid | None:
    """Return and log `Overpaid` of an accepted ask where other asks of its purchase are paid, too; else None."""
    mine = record.client_transaction_id
    also = tuple(sorted({each.client_transaction_id for each in asks if each.state in PAID} - {mine}))
    if not also or record.state is not State.ACCEPTED or record.archived:
        return None
    what = "paid, and its purchase also by %s: give one back"
    log("critical", "purchase_overpaid", mine, what, ", ".join(also))
    return Overpaid(at=at, also=also)


def purchase_holder(asks: Iterable[Record], at: float, *, beside_open_form: bool = False) -> Record | None:
    """Return the one of a purchase's asks for which `holds_purchase` is true, a paid one first."""
    holders = [each for each in asks if holds_purchase(each, at, beside_open_form=beside_open_form)]
    return max(holders, key=lambda each: (each.state is State.ACCEPTED, each.created_at), default=None)


# The rule for the attempts of one client transaction id; number n stands at n - 1


def check_fresh(record: Record) -> None:
    """Raise `TransitionError` where no permit is for this record."""
    if record.state is not State.SENDING or record.version != 0:
        raise transition_error(record, "a permit is for a fresh attempt")


def may_permit(attempts: Sequence[Record], asks: Iterable[Record], record: Record) -> bool:
    """Return whether the attempts of its id allow this one.

    Raises `TransitionError` where the one before it is missing, `PurchaseHeldError` where an ask of its purchase
    denies it.
    """
    if attempts and (len(attempts) >= record.attempt or attempts[-1].state is not State.REFUSED):
        return False
    if len(attempts) != record.attempt - 1:
        raise transition_error(record, "the attempt before it is missing")
    # Among them are attempts of the same id, which are refused and hold nothing.
    if holder := purchase_holder(asks, record.created_at, beside_open_form=record.beside_open_form):
        raise PurchaseHeldError(holder)
    return True


def advance_attempt(attempts: Sequence[Record], record: Record, event: Event) -> tuple[Record, Record]:
    """Return the attempt that `record` shows, as the ledger has it and as the event leaves it.

    Raises `TransitionError`, as `advance` does.
    """
    if not 1 <= record.attempt <= len(attempts):
        raise transition_error(record, "no such attempt")
    before = attempts[record.attempt - 1]
    after = advance(before, event, record)
    is_corrected = before.state is State.REFUSED and after.state is not State.REFUSED
    if is_corrected and record.attempt < len(attempts):
        words = f"attempt {record.attempt} was refused, and attempt {len(attempts)} counts now"
        raise transition_error(record, words)
    return before, after
