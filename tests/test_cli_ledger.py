"""`payclient ledger`: reading a ledger, and deciding by hand."""

import asyncio
import csv
import errno
import functools
import io
import json
import operator
import os
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import attrs
import pytest

from cli_runs import ROOT, Said
from payclient.auth import service_fingerprint
from payclient.cli import main, terminal
from payclient.cli.ledger import COLUMNS, SENTENCES, is_unresolved, newest, why
from payclient.cli.report import PAID_WORDS
from payclient.cli.texts import table, text
from payclient.cli.transaction import show_changes
from payclient.events import (
    Conflicted,
    Created,
    DecidedCancelled,
    DecidedRefused,
    Event,
    Evidence,
    Exhausted,
    Expired,
    FoundAccepted,
    FoundPending,
    Listed,
    Lost,
    Notified,
    Refused,
    ReversalPermitted,
    ReversalRefused,
)
from payclient.ledger import Ledger, open_ledger
from payclient.lifecycle import Record, State, advance
from test_ledger import NOW, brought, fresh

T = TypeVar("T")


class Book:
    """A ledger's file, opened for one thing at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:{path}"

    def use(self, work: Callable[[Ledger], Awaitable[T]]) -> T:
        async def run() -> T:
            async with aclosing(await open_ledger(self.url)) as book:
                return await work(book)

        return asyncio.run(run())

    def get(self, identifier: str) -> Record:
        found = self.use(lambda book: book.get(identifier))
        assert found is not None
        return found


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """One sale in each state; the one refused is on its second attempt."""
    book = Book(tmp_path / "charges.db")

    async def fill(ledger: Ledger) -> None:
        for state in State:
            await brought(ledger, state, f"order-{state}")
        await ledger.permit(fresh("order-refused", attempt=2))

    book.use(fill)
    monkeypatch.setenv("PAYCLIENT_LEDGER", book.url)
    monkeypatch.delenv("PAYCLIENT_PROFILE", raising=False)
    return book


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A terminal, and what the person at it answers."""
    answers: list[str] = []

    def ask(_: str) -> str:
        if not answers:
            raise EOFError
        return answers.pop(0)

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(terminal.err, "input", ask)
    return answers


def after(record: Record, *events: Event) -> Record:
    return functools.reduce(advance, events, record)


def listed(out: str) -> dict[str, str]:
    """The lines of the sales in a printed list, by id."""
    return {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if "order-" in line}


# --- list


UNRESOLVED = ("sending", "unknown", "expired", "refused", "reversing")


@pytest.mark.parametrize(
    ("options", "states", "said"),
    [
        ("", [*UNRESOLVED, "pending"], "6 shown, 5 of them unresolved"),
        ("--state accepted", ["accepted"], "1 shown"),
        ("--state refused", [], "no such sale"),  # a sale counts by its newest attempt
        ("--unresolved", UNRESOLVED, "5 shown, 5 of them unresolved"),
        ("--unresolved --state expired", ["expired"], "1 shown"),
        ("--unresolved --ledger sqlite:empty.db", [], "nothing is unresolved"),
        ("--ledger sqlite:empty.db", [], "nothing is open"),
    ],
)
def test_list_by_state_and_need(
    book: Book, monkeypatch: pytest.MonkeyPatch, capfd: Said, options: str, states: list[str], said: str
) -> None:
    """By default what is open. A decided state is listed too; unresolved is what is unknown, or expired long ago."""
    monkeypatch.chdir(book.path.parent)
    assert main(["ledger", "init", "--ledger", "sqlite:empty.db"]) == 0
    capfd.readouterr()
    assert main(["ledger", "list", *options.split()]) == 0
    printed = capfd.readouterr()
    lines = listed(printed.out)
    assert lines.keys() == {f"order-{state}" for state in states}
    for key, line in lines.items():
        assert f" {PAID_WORDS[book.get(key).state.paid]} USD 11.50 " in line
    assert said in printed.err


def test_expired_is_unresolved_only_after_its_last_query() -> None:
    """140 s after the expiry, in a window of 300 s: until then a run that is open still asks."""
    for window, last in ((300, 440), (3, 4.4)):
        created = Created(at=NOW, transaction_id=7, expires_at=NOW + window)
        record = after(fresh("order-1"), created, Expired(at=NOW + window))
        assert not is_unresolved(record, NOW + last)
        assert "a run that is open queries until" in why(record, NOW + last)
        assert is_unresolved(record, NOW + last + 1)
        # As by a process that cannot query: nothing is to come.
        assert is_unresolved(advance(record, Exhausted(at=NOW + window)), NOW + window)


def test_list_tells_forms_from_pushes(book: Book, capfd: Said) -> None:
    """Most forms that nobody paid were left by their customer; a push of the same age is a case for the portal."""
    form = attrs.evolve(fresh("order-form"), kind="form", purchase="cart-9")
    book.use(lambda ledger: ledger.permit(form))
    assert main(["ledger", "list", "--state", "sending"]) == 0
    lines = listed(capfd.readouterr().out)
    assert lines["order-form"].endswith("; a payment form; for the purchase cart-9")
    assert "form" not in lines["order-sending"]
    assert "purchase" not in lines["order-sending"]


def test_reversal_without_an_answer_is_unresolved_within_minutes(book: Book, capfd: Said) -> None:
    """However long after the charge it was begun. The end of a late sale or of a form is no window either."""
    now = time.time()
    old = fresh("order-old", at=now - 20 * 86_400)
    events = (
        Created(at=old.created_at, transaction_id=7, expires_at=old.created_at + 300),
        FoundAccepted(at=old.created_at + 60, transaction_id=7),
        ReversalPermitted(at=now - 3600, expires_at=now - 3540),
    )

    async def fill(ledger: Ledger) -> None:
        record = old
        assert await ledger.permit(old)
        for event in events:
            record = await ledger.apply(record, event)

    book.use(fill)
    assert main(["ledger", "list", "--unresolved", "--state", "reversing"]) == 0
    assert listed(capfd.readouterr().out).keys() == {"order-old", "order-reversing"}
    late = after(
        fresh(),
        Lost(at=NOW, expires_at=NOW + 330),
        FoundPending(at=NOW + 3600, transaction_id=7, expires_at=NOW + 3900),
        Expired(at=NOW + 3900),
    )
    assert is_unresolved(late, NOW + 3900 + 141)


def test_why_in_words() -> None:
    """What each state rests on; a candidate, a notification and a customer who still can approve are told."""
    created = Created(at=NOW, transaction_id=8, expires_at=NOW + 300)
    for events, later, words in (
        ([], 6, "being sent, or its process has just ended"),
        ([], 61, "its process ended while it was being sent"),
        ([Lost(at=NOW, expires_at=NOW + 330)], 6, "no usable answer came: it may exist"),
        ([Lost(at=NOW, expires_at=NOW + 330, candidate_id=99)], 6, "transaction 99 was heard of, unproven"),
        ([created, Notified(at=NOW + 5, transaction_id=8)], 6,
         "the customer has not answered; can until 2023-11-14 22:18:20 +0000; a notification came"),
        ([created], 301, "the customer's time is over"),
        ([created, Expired(at=NOW + 300)], 900, "presumed cancelled, not proven"),
        ([Refused(at=NOW, error_type="X", error_code=22, messages=("no", "busy"))], 6,
         "the service refused it: no; busy (code 22)"),
        ([Refused(at=NOW, error_type="UnauthorizedError")], 6, "the service refused it: UnauthorizedError"),
    ):  # fmt: skip
        assert words in why(after(fresh("order-1"), *events), NOW + later)


# --- show


def test_show_tells_the_whole_history(book: Book, capfd: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attempt and change, with evidence, in local time."""
    monkeypatch.setenv("TZ", "America/Guayaquil")
    time.tzset()
    try:
        book.use(
            lambda ledger: ledger.apply(
                fresh("order-refused", attempt=2), Conflicted(at=NOW + 60, what="amount 7")
            )
        )
        assert main(["ledger", "show", "order-refused"]) == 0
    finally:
        monkeypatch.undo()
        time.tzset()
    out = capfd.readouterr().out
    first, second = out.split("attempt 2")
    assert "attempt 1" in first
    assert "2023-11-14 17:13:20 -0500   Refused: sending → refused" in first
    assert "error type: NotCreated; error code: 22" in first
    assert "Permitted: nothing → sending" in second
    assert "2023-11-14 17:14:20 -0500   Conflicted " in second
    assert "what: amount 7" in second
    for evidence in (Evidence.PERMIT, Evidence.ANSWER, Evidence.CONFLICT):
        assert f" {evidence} " in out


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_cuts_nothing(
    book: Book, capfd: Said, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """The history and the money of a plan are wrapped: whoever looks in the portal needs the whole transaction id."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda: True)
    assert main(["ledger", "show", "order-accepted"]) == 0
    history = capfd.readouterr().out
    file = book.path.with_name("charges.csv")
    file.write_text(
        "client_transaction_id,phone_number,country_code,currency,amount_without_tax\n"
        + "".join(f"plan-{n},098411122{n},593,USD,{10**13}\n" for n in range(3))
    )
    assert main(["charge", str(file), "--dry-run"]) == 0
    assert "\N{HORIZONTAL ELLIPSIS}" not in history + capfd.readouterr().out


def test_show_names_the_asks_of_a_purchase(book: Book, capfd: Said) -> None:
    """Whoever knows the order's number alone finds its form, whose id is not the shop's own."""
    book.use(lambda ledger: ledger.permit(attrs.evolve(fresh("0c6b61bb"), purchase="cart-9")))
    assert main(["ledger", "show", "cart-9"]) == 2
    said = "the ledger has no sale 'cart-9': it is a purchase, asked for by '0c6b61bb'"
    assert said in capfd.readouterr().err
    assert main(["ledger", "show", "0c6b61bb"]) == 0


def test_show_calls_nothing_unproven_that_is_proven(book: Book, capfd: Said) -> None:
    """A transaction that was first heard of by a hint, and then found."""
    heard = [Notified(at=NOW, transaction_id=number) for number in (7, 8)]
    found = [FoundPending(at=NOW + 1, transaction_id=7), FoundAccepted(at=NOW + 2, transaction_id=7)]

    async def lead(ledger: Ledger) -> None:
        await ledger.permit(fresh("order-9"))
        for event in (*heard, Lost(at=NOW, expires_at=NOW + 330), *found):
            await ledger.apply(fresh("order-9"), event)

    book.use(lead)
    assert main(["ledger", "show", "order-9"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "transaction id 7 heard of, unproven 8 " in out


def test_show_every_state(book: Book, capfd: Said) -> None:
    """Each record is shown with its state, what it rests on, and whether it is paid."""
    for state in State:
        assert main(["ledger", "show", f"order-{state}"]) == 0
        out = " ".join(capfd.readouterr().out.split())
        record = book.get(f"order-{state}")
        assert f"state {record.state}, because {text(f'evidence.{record.evidence}')}" in out
        assert f"paid {PAID_WORDS[record.state.paid]} amount USD 11.50" in out
        assert (record.transaction_id is not None) == ("transaction id 7" in out)


def test_every_event_has_its_sentence(book: Book) -> None:
    """Whatever stands in a history is explained."""
    assert all(sentence.endswith(".") for sentence in SENTENCES.values())
    assert table()["evidence"].keys() == set(Evidence)
    # It is written of a form that was found paid, before its confirmation is sent.
    assert "or that a form is paid" in SENTENCES["FoundPending"]


# --- resolve


WHO = ["--actor", "ana", "--reason", "the portal"]


def resolve(identifier: str, decision: str, *more: str) -> int:
    return main(["ledger", "resolve", identifier, "--as", decision, *WHO, *more])


DECISIONS = ["accepted", "cancelled", "refused"]


@pytest.mark.parametrize("decision", DECISIONS)
def test_resolve(book: Book, decision: str, capfd: Said) -> None:
    """An unknown or expired sale is decided, with the person and the reason as its evidence."""
    for state in (State.UNKNOWN, State.EXPIRED):
        assert resolve(f"order-{state}", decision, "--yes") == 0
        record = book.get(f"order-{state}")
        assert (record.state, record.evidence) == (decision, Evidence.OPERATOR)
        assert record.decided_at == pytest.approx(time.time(), abs=60)
        change = book.use(operator.methodcaller("history", f"order-{state}"))[-1]
        assert json.loads(change.detail or "") == {"actor": "ana", "reason": "the portal"}
        said = capfd.readouterr().err
        assert (decision == "refused") == ("RE-OPENS CHARGING" in said)
        assert (decision == "refused") != ("Only the service's word" in said)


def test_resolve_only_what_the_table_allows(book: Book, capfd: Said) -> None:
    """Any other state is refused by name, and nothing changes."""
    others = set(State) - {State.UNKNOWN, State.EXPIRED, State.REFUSED, State.REVERSING}
    for state, decision in zip(sorted(others), cycle(DECISIONS), strict=False):
        before = book.get(f"order-{state}")
        assert resolve(f"order-{state}", decision, "--yes") == 2
        said = capfd.readouterr().err
        assert f"order-{state} is {state}: only what is unknown or expired" in said
        assert ("run the charge again" in said) == (state in (State.SENDING, State.PENDING))
        assert book.get(f"order-{state}") == before


def test_moved(book: Book, person: list[str], capfd: Said) -> None:
    """A service at a new address keeps its ledger, once a person has said that it is the same."""
    old, new = "https://pay.example", "https://new.pay.example"

    async def is_of(address: str, ledger: Ledger) -> bool:
        mine = service_fingerprint(address, ledger.digest_key)
        return await ledger.service_fingerprint(mine) == mine

    assert book.use(functools.partial(is_of, old))
    for answer, address, code, owner in (
        ("n", new, 2, old), ("y", new, 0, new), ("y", "http://pay.example", 2, new),
    ):  # fmt: skip
        person[:] = [answer]
        assert main(["ledger", "moved", "--base-url", address]) == code
        assert book.use(functools.partial(is_of, owner))
    assert "could be charged twice" in " ".join(capfd.readouterr().err.split())


def test_resolve_asks(book: Book, person: list[str], capfd: Said) -> None:
    """On a terminal it says what the decision means; only a yes decides, and a terminal that is gone is no yes."""
    for answer in ([""], ["n"], ["yes please"], []):
        person[:] = answer
        assert resolve("order-unknown", "refused") == 2
    said = " ".join(capfd.readouterr().err.split())
    for words in ("This RE-OPENS CHARGING", "the customer pays twice", "nothing was changed"):
        assert words in said
    assert book.get("order-unknown").state is State.UNKNOWN
    person.append(" Yes ")
    assert resolve("order-unknown", "refused") == 0
    assert book.get("order-unknown").state is State.REFUSED


def test_resolve_does_not_hold_the_ledger_while_it_asks(
    book: Book, person: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """A charge may go on meanwhile; where it changes the sale, the answer is void."""

    def ask(_: str) -> str:
        with ThreadPoolExecutor() as elsewhere:  # another process would have a loop of its own
            notified = Notified(at=NOW, transaction_id=7)
            elsewhere.submit(book.use, lambda ledger: ledger.apply(fresh("order-unknown"), notified)).result()
        return "y"

    monkeypatch.setattr(terminal.err, "input", ask)
    assert resolve("order-unknown", "refused") == 2
    assert "has changed meanwhile" in capfd.readouterr().err
    assert book.get("order-unknown").state is State.UNKNOWN


REFUSE = "resolve --as refused --actor ana --reason portal"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("moved --base-url https://pay.example", "give --yes"),
        (f"{REFUSE} order-unknown", "give --yes; nothing was changed"),
        (f"{REFUSE} order-unknown --as pending --yes", "--as"),
        (f"{REFUSE} order-unknown --yes --actor= ", "--actor"),
        (f"{REFUSE} order-unknown --yes --reason= ", "--reason"),
        (f"{REFUSE} order-0 --yes", "the ledger has no sale 'order-0'"),
        ("show order-0", "the ledger has no sale 'order-0'"),
        ("export --out charges.xlsx", "--out charges.xlsx: must end in .csv or .jsonl; nothing was written"),
        ("export --out charges.db --format csv", "is there already"),
        ("export --out nowhere/out.csv", "cannot be written"),
        ("list --ledger=", "--ledger: must not be empty"),
        ("list --ledger memory:", "ended with its process"),
        ("list --ledger paper:", "ledger must be"),
        *(
            (f"{command} --ledger sqlite:slip.db", "there is no ledger at")
            for command in ("list", "show order-1", "export", f"{REFUSE} order-1 --yes")
        ),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    book: Book, monkeypatch: pytest.MonkeyPatch, capfd: Said, arguments: str, said: str
) -> None:
    """A script must say that it means it, a person has a name and a reason, and no file is overwritten or made."""
    monkeypatch.chdir(book.path.parent)
    assert main(["ledger", *arguments.split(" ")]) == 2
    printed = capfd.readouterr()
    assert said in printed.err
    assert printed.out == ""
    assert [path.name for path in Path().glob("*.db")] == ["charges.db"]
    assert book.get("order-unknown").state is State.UNKNOWN


def test_the_end_of_a_reversal_is_no_time_to_approve_until(book: Book, capfd: Said) -> None:
    """The customer has paid; until then the request to give it back may be on its way."""
    until = time.time() + 60
    permitted = ReversalPermitted(at=NOW, expires_at=until)
    refused = ReversalRefused(at=NOW)

    async def fill(ledger: Ledger) -> None:
        for key, events in (("order-accepted", (permitted, refused)), ("order-7", (permitted,))):
            record = await ledger.get(key) or await brought(ledger, State.ACCEPTED, key)
            for event in events:
                record = await ledger.apply(record, event)

    book.use(fill)
    assert main(["ledger", "show", "order-accepted"]) == 0
    out = capfd.readouterr().out
    assert "could be approved until" not in out
    assert f"expires at: {time.strftime('%Y-%m-%d', time.localtime(until))} " in out
    assert resolve("order-7", "cancelled", "--yes") == 0
    assert "may still approve" not in capfd.readouterr().err


def test_resolve_says_that_the_customer_may_still_approve(book: Book, capfd: Said) -> None:
    """A sale whose window is open is no sale to be called refused lightly."""
    now = time.time()

    async def fill(ledger: Ledger) -> None:
        await ledger.permit(fresh("order-9", at=now))
        await ledger.apply(fresh("order-9"), Lost(at=now, expires_at=now + 330))

    book.use(fill)
    assert resolve("order-9", "refused", "--yes") == 0
    assert "The customer may still approve it, until " in capfd.readouterr().err


# --- export


def test_export(book: Book, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A row for every attempt, earlier ones too: as CSV without formulas, as JSON with its values as they are."""

    async def fill(ledger: Ledger) -> None:
        await ledger.permit(fresh("=cmd()"))
        refused = Refused(at=NOW, error_type="X", error_code=-1, messages=("@no", "[red]ñ[/]"))
        await ledger.apply(fresh("=cmd()"), refused)
        for attempt, (kind, actor) in enumerate(((DecidedRefused, "+bob"), (Listed, "eva")), 1):
            record = attrs.evolve(fresh("twice"), attempt=attempt)
            await ledger.permit(record)
            lost = await ledger.apply(record, Lost(at=NOW, expires_at=NOW + 330))
            await ledger.apply(lost, kind(at=NOW, actor=actor, reason="seen"))
        await ledger.permit(fresh("many"))
        await ledger.apply(fresh("many"), Lost(at=NOW, expires_at=NOW + 330, candidate_id=5))
        for number in range(7, 40):
            await ledger.apply(await newest(ledger, "many"), Notified(at=NOW, transaction_id=number))

    book.use(fill)
    decision = ["order-unknown", "--as", "accepted", "--actor", "+ana", "--reason=-seen", "--yes"]
    assert main(["ledger", "resolve", *decision]) == 0
    for ending in ("csv", "jsonl"):
        out = tmp_path / f"out.{ending}"
        assert main(["ledger", "export", "--out", str(out)]) == 0
        assert b"14 attempts written to" in capfdbinary.readouterr().err
        assert stat.S_IMODE(out.stat().st_mode) == 0o600
        assert main(["ledger", "export", *(["--format", "jsonl"] if ending == "jsonl" else [])]) == 0
        assert capfdbinary.readouterr().out == out.read_bytes()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert [row["attempt"] for row in rows if row["client_transaction_id"] == "order-refused"] == ["1", "2"]
    by_id = {row["client_transaction_id"]: row for row in rows}
    # A number is not a formula.
    assert (by_id["'=cmd()"]["messages"], by_id["'=cmd()"].pop("error_code")) == ("'@no; [red]ñ[/]", "-1")
    assert not any(cell.startswith(tuple("=+-@\t\r\n")) for row in rows for cell in row.values())
    unknown = by_id["order-unknown"]
    assert (unknown["actor"], unknown["reason"], unknown["paid"]) == ("'+ana", "'-seen", "true")
    assert [row["actor"] for row in rows if row["client_transaction_id"] == "twice"] == ["'+bob", "eva"]
    numbers = by_id["many"]["candidate_ids"].split("; ")
    assert numbers == ["5", *map(str, range(26, 40))], "0 stands for those that were dropped"
    assert unknown["created_at"] == "2023-11-14T22:13:20.000Z"
    assert (by_id["order-cancelled"]["paid"], by_id["order-expired"]["paid"]) == ("false", "")
    lines = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    values = {row["client_transaction_id"]: row for row in lines}
    assert values["=cmd()"]["messages"] == ["@no", "[red]ñ[/]"]
    assert (values["order-unknown"]["paid"], values["order-expired"]["paid"]) == (True, None)
    assert (values["order-pending"]["transaction_id"], values["order-pending"]["amount"]) == (7, 1150)
    assert main(["ledger", "show", "=cmd()"]) == 0
    assert "[red]ñ[/] (code -1)".encode() in capfdbinary.readouterr().out, "a message is text"


def test_export_disk_full(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """A disk that takes no more gives one line, no traceback and no half of a file."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["ledger", "export", "--out", str(tmp_path / "out.csv")]) == 2
    assert "--out out.csv: cannot be written: No space left on device" in capfd.readouterr().err
    assert not (tmp_path / "out.csv").exists()


# --- Any of them


def test_a_sale_is_watched_until_it_is_decided(book: Book, capfd: Said) -> None:
    """Each new state is a line; before it is sent, too. Nothing is sent, and the exit code says whether it is paid."""

    async def watch(ledger: Ledger) -> State:
        async def step() -> None:
            record = await ledger.get("order-new")
            if record is None:
                await brought(ledger, State.UNKNOWN, "order-new")
            elif record.state is State.UNKNOWN:
                await ledger.apply(record, DecidedCancelled(at=NOW, actor="Ana", reason="seen"))

        return await show_changes(ledger, "order-new", step)

    assert book.use(watch) is State.CANCELLED
    lines = capfd.readouterr().out.splitlines()
    said = [line.split("  ")[1] for line in lines]
    assert said[0] == "the ledger does not know this id: it was not sent yet, or is misspelled"
    assert [each.split(":")[0] for each in said[1:]] == ["unknown", "cancelled"]
    assert main(["status", "--watch", "order-accepted"]) == 0
    assert main(["status", "--watch", "order-cancelled"]) == 3
    assert main(["status", "--watch", "order-accepted", "--transaction-id", "7"]) == 2


HOLDER = """
import asyncio, sys
from payclient.ledger import open_ledger
async def main():
    ledger = await open_ledger(sys.argv[1])
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await ledger.aclose()
asyncio.run(main())
"""


def test_a_ledger_in_use(book: Book, capfd: Said) -> None:
    """While another process has it, it is read all the same; what changes it says in one line what to do."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, book.url], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        for arguments in (["list"], ["show", "order-unknown"], ["export"]):
            assert main(["ledger", *arguments]) == 0
            assert "order-unknown" in capfd.readouterr().out
        for change in (
            ["resolve", "order-unknown", "--as", "refused", *WHO],
            ["moved", "--base-url", "https://new.example"],
        ):
            assert main(["ledger", *change, "--yes"]) == 2
            said = capfd.readouterr().err.splitlines()[-1]
            assert "another process has it open: stop it first; nothing was changed" in said
            assert "worker" not in said
        holder.communicate(b"")
    assert holder.returncode == 0
    assert main(["ledger", "list"]) == 0
