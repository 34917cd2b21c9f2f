"""`payclient ledger`: what the ledger holds, what is open and why, and decisions by hand where no query can decide."""

import datetime
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Literal

from rich.table import Table

from payclient.auth import check_base_url, service_fingerprint
from payclient.cli import terminal
from payclient.cli.files import option_file
from payclient.cli.report import PAID_WORDS, TIMES
from payclient.cli.settings import NO_LEDGER, Day, LedgerUrl, Yes, final_queries
from payclient.cli.tables import row_bytes, table_bytes
from payclient.cli.texts import label, sentence, text
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.events import Evidence
from payclient.ledger import Change, Ledger, archive_ledger, backup_ledger, open_ledger
from payclient.lifecycle import DROPPED, TRANSITIONS, Record, State
from payclient.schedule import NORMAL_WINDOW
from payclient.tracking.tracker import DECISIONS, DecidedAs, objection

#: The columns of `ledger list`.
_LISTED = ("client transaction id", "state", "paid", "amount", "since", "why")
_LIST_LINE = "{:<36}  {:<11}  {:<11}  {:>16}  {:<25}  {}"

#: The columns of an export.
COLUMNS = (
    "client_transaction_id", "attempt", "kind", "state", "paid", "evidence", "transaction_id", "candidate_ids",
    "amount", "currency", "purchase", "created_at", "expires_at", "notified_at", "decided_at", "error_code",
    "error_type", "messages", "actor", "reason", "receipt",
)  # fmt: skip


@asynccontextmanager
async def opened(url: str | None, *, changes: bool = False) -> AsyncIterator[Ledger]:
    """Open the ledger of a URL, which must exist. Without `changes` another process may have it open."""
    try:
        # A ledger made here would make a mistyped address look like an empty ledger.
        async with aclosing(await open_ledger(_given(url), create=False, read_only=not changes)) as book:
            yield book
    except LedgerInUseError:
        raise LedgerInUseError(
            "the ledger must be closed for this, and another process has it open: stop it first; nothing was changed. "
            "To look at it meanwhile use `payclient ledger list` or `show`; to try this out, a copy by `payclient "
            "ledger backup`"
        ) from None


def _given(url: str | None) -> str:
    if not url:
        raise ConfigurationError(NO_LEDGER)
    if url.startswith("memory:"):
        raise ConfigurationError("a memory: ledger ended with its process; there is nothing to read")
    return url


async def newest(book: Ledger, identifier: str) -> Record:
    """Return the newest attempt of a sale. Raises `ConfigurationError` where there is none."""
    record = await book.get(identifier)
    if record is None:
        asks = dict.fromkeys(repr(each.client_transaction_id) for each in await book.asks(identifier))
        of = f": it is a purchase, asked for by {', '.join(asks)}" if asks else ""
        raise ConfigurationError(f"the ledger has no sale {identifier!r}{of}")
    return record


# --- A record in words: why it is in its state, what that rests on, and when

#: Seconds after its permit from which on no process can be sending a sale: the total time-out and 30 s.
SENDER_GONE = 60.0

#: The sentence that describes each event.
SENTENCES = {
    kind.__name__: (kind.__doc__ or "").strip() for table in TRANSITIONS.values() for kind in table
} | {
    "Permitted": "The permit was committed, before the first byte.",
    "Archived": "Its other changes were moved to a file.",
}


def is_unresolved(record: Record, now: float) -> bool:
    """Return whether a person has to decide the record: no query that is still to come is likely to decide it."""
    if record.state is State.SENDING:
        return now > record.created_at + SENDER_GONE
    if record.state in (State.EXPIRED, State.REVERSING):
        return record.evidence in (Evidence.LAST_QUERY, Evidence.NO_QUERY) or now > last_query(record)
    return record.state is State.UNKNOWN


def last_query(record: Record) -> float:
    """Return when a tracker makes the last scheduled query of an ask. A sale's own expiry shows its window."""
    end = record.created_at + NORMAL_WINDOW if record.expires_at is None else record.expires_at
    # The end of a form, of a reversal or of a sale that was found late is farther off than a window.
    return end + final_queries(min(end - record.created_at, NORMAL_WINDOW))


def candidates(record: Record) -> str:
    """Return the transaction ids that may be this sale's and are not known to be, in words."""
    heard = [each for each in record.candidate_ids if each != record.transaction_id]
    return ", ".join(text("why.others") if each == DROPPED else str(each) for each in heard)


def why(record: Record, now: float) -> str:
    """Return why a sale is in its state, in words."""
    word = text(f"evidence.{record.evidence}")
    match record.state:
        case State.SENDING:
            word = text("why.gone" if is_unresolved(record, now) else "why.sending")
        case State.UNKNOWN if heard := candidates(record):
            word += text("why.heard", ids=heard)
        case State.PENDING if record.expires_at is not None and now < record.expires_at:
            word = text("why.until", until=moment(record.expires_at))
        case State.PENDING:
            word = text("why.over")
        case State.REVERSING:
            word = text("why.reversing")
        case State.EXPIRED if not is_unresolved(record, now):
            word += text("why.asks", until=moment(last_query(record)))
        case State.REFUSED if record.evidence is Evidence.ANSWER:
            word = text("why.refused", words=refusal(record))
    if record.notified_at is not None and not record.state.decided:
        word += text("why.notified")
    if record.kind == "form":
        word += text("why.form")
    if record.purchase != record.client_transaction_id:
        word += text("why.purchase", purchase=record.purchase)
    return word


def _approvable_until(record: Record) -> float | None:
    """Return until when the customer can approve; None once it is decided: the time may be that of a reversal then."""
    return None if record.state.decided or record.state is State.REVERSING else record.expires_at


def refusal(record: Record) -> str:
    """Return a refusal's code and messages."""
    said = "; ".join(record.messages) or record.error_type or ""
    return said if record.error_code is None else text("why.code", words=said, code=str(record.error_code))


def moment(when: float) -> str:
    """Return a time on this machine's clock, with its distance from UTC: `2026-03-01 12:04:59 -0500`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(when))


async def list_(*, ledger: LedgerUrl = None, unresolved: bool = False, state: State | None = None) -> None:
    """Show which sales are open, and why.

    :param unresolved: Only what waits for a person: unknown, and what is expired, sending or reversing for too long.
    :param state: Only the sales in this state, decided ones too; without it, what is open.
    """
    now, shown, waiting = time.time(), 0, 0
    async with opened(ledger) as book:
        # The records are read one by one: a ledger may be long.
        async for record in book.unfinished() if state is None or not state.decided else book.records():
            stuck = is_unresolved(record, now)
            if state not in (None, record.state) or (unresolved and not stuck):
                continue
            # A refused attempt is shown only if no newer one was made.
            key = record.client_transaction_id
            if record.state is State.REFUSED and (await newest(book, key)).attempt != record.attempt:
                continue
            if not shown:
                terminal.print_line(_LIST_LINE.format(*map(sentence, _LISTED)))
            shown, waiting = shown + 1, waiting + stuck
            amount, word = terminal.money(record.amount, record.currency), label(record.state)
            paid, since = label(PAID_WORDS[record.state.paid]), moment(record.created_at)
            terminal.print_line(_LIST_LINE.format(key, word, paid, amount, since, why(record, now)))
    people = text("ledger.stuck", count=waiting) if waiting else ""
    nothing = "none" if state else "none_unresolved" if unresolved else "nothing_open"
    terminal.say(text("ledger.shown", count=shown, stuck=people) if shown else text(f"ledger.{nothing}"))


async def show(identifier: str, /, *, ledger: LedgerUrl = None) -> None:
    """Show one sale's whole history: every attempt and every change, and what each rests on.

    :param identifier: The client transaction id.
    """
    async with opened(ledger) as book:
        record, changes = await newest(book, identifier), await book.history(identifier)
    receipt, until = json.loads(record.receipt or "{}"), _approvable_until(record)
    terminal.print_facts(
        {
            "client transaction id": record.client_transaction_id,
            "purchase": None if record.purchase == record.client_transaction_id else record.purchase,
            "state": text(
                "ledger.because", state=label(record.state), why=text(f"evidence.{record.evidence}")
            ),
            "paid": label(PAID_WORDS[record.state.paid]),
            "amount": terminal.money(record.amount, record.currency),
            "transaction id": record.transaction_id,
            "heard of, unproven": candidates(record),
            "could be approved until": None if until is None else moment(until),
            "message": refusal(record) if record.state is State.REFUSED else record.reason,
            "receipt": ", ".join(f"{name} {value}" for name, value in receipt.items()),
        }
    )
    for attempt in sorted({change.attempt for change in changes}):
        terminal.out().print(f"\n[bold]{text('ledger.attempt', number=attempt)}[/]")
        terminal.out().print(_history(change for change in changes if change.attempt == attempt))


def _history(changes: Iterable[Change]) -> Table:
    table = terminal.simple_table("when", "change", "evidence", "what")
    for each in changes:
        move = each.event
        if each.before is not each.after:
            move += f": {label(each.before or 'nothing')} → {label(each.after or '')}"
        table.add_row(moment(each.at), move, sentence(each.evidence), terminal.printable(_what(each)))
    return table


def _what(change: Change) -> str:
    """Return the sentence that describes an event, and its details."""
    details = []
    for name, value in (json.loads(change.detail) if change.detail else {}).items():
        words = moment(value) if name.endswith("_at") else value
        details.append(f"{sentence(name.replace('_', ' '))}: {words}")
    return " ".join([sentence(SENTENCES.get(change.event, "")), "; ".join(details)]).strip()


async def init(*, ledger: LedgerUrl = None) -> None:
    """Make a ledger, or check the one that is there: its place, its server's settings, its tables."""
    async with aclosing(await open_ledger(_given(ledger))) as book:
        words = text("ledger.ready" if book.created else "ledger.was_ready", place=book.location)
    terminal.say(words)


async def backup(file: Path, /, *, ledger: LedgerUrl = None) -> None:
    """Copy a SQLite ledger to a new file, also while a shop or a batch uses it.

    A restored copy does not know what was charged after it was made.

    :param file: A new file.
    """
    await backup_ledger(_given(ledger), file)
    terminal.say(text("ledger.backup", file=file.absolute()))


async def archive(*, before: Day, to: Path, ledger: LedgerUrl = None) -> None:
    """Move decided sales out to a file, which keeps all their changes; their ids and purchases stay taken.

    A SQLite ledger must be closed; a PostgreSQL one may be in use. Open and unknown sales stay.

    :param before: Only what was decided before this day begins (UTC), as 2026-01-31.
    :param to: A new file.
    """
    url = _given(ledger)
    begins = datetime.datetime.combine(before, datetime.time(), datetime.UTC).timestamp()
    count = await archive_ledger(url, begins, to)
    terminal.say(text("ledger.archived", count=count, file=to.absolute()))


async def moved(*, ledger: LedgerUrl = None, base_url: str, yes: Yes = False) -> None:
    """Set a new address of the same service, which has all that was charged at the old one.

    :param base_url: The service's new address.
    """
    address = check_base_url(base_url)
    terminal.say(text("ledger.moving"))
    terminal.ask(text("ledger.is_same"), "nothing was changed", yes=yes)
    async with opened(ledger, changes=True) as book:
        await book.service_fingerprint(service_fingerprint(address, book.digest_key), moved=True)
    terminal.say(text("ledger.moved", address=address))


async def resolve(
    identifier: str, /, *, as_: DecidedAs, actor: str, reason: str, ledger: LedgerUrl = None, yes: Yes = False
) -> None:
    """Decide by hand what is unknown, expired or being reversed. A name and a reason are the evidence.

    :param identifier: The client transaction id.
    :param as_: The outcome; refused means that nothing was created, and lets the id be charged again.
    :param actor: The name of the person who decides; kept in the history.
    :param reason: Why, and by what proof; kept in the history.
    """
    actor, reason = actor.strip(), reason.strip()
    for option, value in (("--actor", actor), ("--reason", reason)):
        if not value:
            raise ConfigurationError(f"{option}: must not be empty")
    # The ledger is closed while a person is asked, so that nobody's charges wait for the answer.
    async with opened(ledger, changes=True) as book:
        seen, history = await newest(book, identifier), await book.history(identifier)
    if (fault := objection(seen, as_, history)) is not None:
        raise ConfigurationError(fault)
    _say_what_it_means(seen, as_)
    terminal.ask(text("ledger.decide"), "nothing was changed", yes=yes)
    async with opened(ledger, changes=True) as book:
        if await newest(book, identifier) != seen:
            raise ConfigurationError(
                f"{identifier} has changed meanwhile: look at it again; nothing was changed"
            )
        after = await book.apply(seen, DECISIONS[as_](at=time.time(), actor=actor, reason=reason))
    terminal.say(text("ledger.decided", key=identifier, state=label(after.state), actor=actor))


def _say_what_it_means(record: Record, decision: str) -> None:
    now = time.time()
    money, state = terminal.money(record.amount, record.currency), label(record.state)
    facts = {"attempt": record.attempt, "money": money, "why": text(f"evidence.{record.evidence}")}
    terminal.say(text("ledger.seen", key=record.client_transaction_id, state=state, **facts))
    until = _approvable_until(record)
    if until is not None and now < until:
        left = terminal.duration(until - now)
        terminal.say(text("ledger.may_approve", until=moment(until), left=left))
    given_back = record.state is State.REVERSING and decision == "cancelled"
    meaning = text(f"meaning.{'given_back' if given_back else decision}")
    terminal.say(text("ledger.as", decision=label(decision), meaning=meaning))


async def export(
    *,
    ledger: LedgerUrl = None,
    format: Literal["csv", "jsonl"] | None = None,  # noqa: A002 - the option's name
    out: Path | None = None,
) -> None:
    """Write every attempt as a row: amounts in cents, times in UTC; no personal data, for the ledger has none.

    :param format: By default the one that --out ends in, or csv.
    :param out: A new file, for its owner only; else it is printed.
    """
    kind = f".{format}" if format else out.suffix.lower() if out and out.suffix else ".csv"
    if out is not None and kind not in (".csv", ".jsonl"):
        raise ConfigurationError(f"--out {out.name}: must end in .csv or .jsonl; nothing was written")
    if out is not None and out.exists():
        raise ConfigurationError(f"--out {out.name}: is there already; nothing was written")
    count = 0
    async with opened(ledger) as book:
        with nullcontext(sys.stdout.buffer) if out is None else option_file("--out", out) as file:
            file.write(table_bytes(kind, COLUMNS, ()))
            async for record in book.records():
                file.write(row_bytes(kind, await _export_row(book, record)))
                count += 1
            file.flush()
    if out is not None:
        terminal.say(text("ledger.exported", count=count, file=out))


async def _export_row(book: Ledger, record: Record) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(record, name, None) for name in COLUMNS}
    row |= {name: terminal.iso(getattr(record, name)) for name in ("expires_at", *TIMES)}
    row |= {
        "paid": record.state.paid,
        "candidate_ids": [each for each in record.candidate_ids if each != DROPPED],
        "messages": list(record.messages),
        "receipt": json.loads(record.receipt or "{}"),
    }
    if record.evidence in (Evidence.OPERATOR, Evidence.LISTED):
        for change in await book.history(record.client_transaction_id):
            if (change.attempt, change.evidence) == (record.attempt, record.evidence) and change.detail:
                row |= {name: json.loads(change.detail).get(name) for name in ("actor", "reason")}
    return row
