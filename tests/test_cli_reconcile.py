"""`payclient reconcile`: every cent of the ledger and of a statement in exactly one class, and what that decides."""

import asyncio
import csv
import datetime
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import Said
from payclient.cli import main, terminal
from payclient.cli.reconcile import Class, Pair, compare
from payclient.cli.statement import Entry
from payclient.events import Event, FoundAccepted, Notified, ReversalPermitted, ReversalRefused
from payclient.ledger import Ledger
from payclient.ledger.postgres import PostgresLedger
from payclient.lifecycle import Record, State
from postgres_server import PostgresServer
from test_cli_ledger import Book, book, listed, person
from test_ledger import NOW, brought, fresh, opened

__all__ = ["book", "person"]


RECORD = Record(
    client_transaction_id="order-1", digest=b"d", lane=b"l", amount=1150, currency="USD", created_at=1.0,
    state=State.ACCEPTED, transaction_id=7,
)  # fmt: skip


def entry(amount: int = 1150, line: int = 2, **more: object) -> Entry:
    return Entry(**{"line": line, "amount": amount, "client_transaction_id": "order-1", **more})  # type: ignore[arg-type]  # by name


def kinds(records: list[Record], entries: list[Entry]) -> list[Class]:
    return [pair.kind for pair in compare(records, entries)]


# --- The comparison


BACK, AGAIN = entry(-1150, line=3), entry(line=3)


@pytest.mark.parametrize(
    ("state", "entries", "kind"),
    [
        (State.ACCEPTED, [entry()], Class.AGREED),
        (State.ACCEPTED, [entry(currency="USD", transaction_id=7)], Class.AGREED),
        (State.ACCEPTED, [entry(client_transaction_id=None, transaction_id=7)], Class.AGREED),
        (State.ACCEPTED, [], Class.ONLY_HERE),
        (State.ACCEPTED, [entry(1149)], Class.AMOUNTS_DIFFER),
        (State.ACCEPTED, [entry(currency="EUR")], Class.AMOUNTS_DIFFER),
        (State.ACCEPTED, [entry(), AGAIN], Class.AMOUNTS_DIFFER),
        (State.ACCEPTED, [entry(), entry(line=3, currency="EUR")], Class.AMOUNTS_DIFFER),
        (State.ACCEPTED, [entry(), entry(line=3, is_read=False)], Class.AMOUNTS_DIFFER),
        (State.ACCEPTED, [entry(), BACK], Class.GIVEN_BACK),
        (State.ACCEPTED, [entry(), AGAIN, entry(-1150, line=4)], Class.AGREED),
        (State.ACCEPTED, [BACK], Class.GIVEN_BACK),
        (State.ACCEPTED, [entry(), entry(-150, line=3)], Class.GIVEN_BACK),
        (State.REVERSED, [entry(), BACK], Class.AGREED),
        (State.REVERSED, [BACK], Class.AGREED),
        (State.REVERSED, [entry(), BACK, entry(-1150, line=4)], Class.GIVEN_BACK),
        (State.REVERSED, [entry(-150)], Class.GIVEN_BACK),
        (State.REVERSING, [entry(), BACK], Class.GIVEN_BACK),
        *((state, [entry()], Class.PAID_THERE) for state in State if state is not State.ACCEPTED),
        (State.UNKNOWN, [entry(1149)], Class.PAID_THERE),
        (State.UNKNOWN, [entry(currency="EUR")], Class.AMOUNTS_DIFFER),
        (State.UNKNOWN, [entry(), AGAIN], Class.PAID_THERE),
        (State.UNKNOWN, [entry(), BACK], Class.GIVEN_BACK),
        *((state, [], None) for state in State if state is not State.ACCEPTED),  # absence decides nothing
    ],
)
def test_each_pair_has_its_class(state: State, entries: list[Entry], kind: Class | None) -> None:
    """What both sides say of one payment decides. Resolved is what is undecided and listed once with its amount."""
    pairs = compare([attrs.evolve(RECORD, state=state)], entries)
    assert [pair.kind for pair in pairs] == ([] if kind is None else [kind])
    can_be_resolved = state in (State.UNKNOWN, State.EXPIRED) and entries == [entry()]
    assert any(pair.can_be_resolved for pair in pairs) is can_be_resolved


def test_another_transaction_of_a_known_id_is_only_there() -> None:
    """It may be a second charge; so are two ids that name two sales, and an id that is not known."""
    other = attrs.evolve(RECORD, client_transaction_id="order-2", transaction_id=8)
    only_there = [Class.AGREED, Class.AGREED, Class.ONLY_THERE]
    agreed = [entry(), entry(client_transaction_id="order-2", line=3)]
    for last in (entry(transaction_id=9), entry(transaction_id=8), entry(client_transaction_id="order-9")):
        assert kinds([RECORD, other], [*agreed, last]) == only_there


def test_the_attempt_that_is_paid_is_meant() -> None:
    """Of several attempts under one id; of none that is, one that was not refused."""
    refused = attrs.evolve(RECORD, state=State.REFUSED, transaction_id=None)
    unknown = attrs.evolve(RECORD, state=State.UNKNOWN, attempt=2, transaction_id=None)
    (pair,) = compare([refused, unknown], [entry(transaction_id=9)])
    assert pair.record == unknown
    assert pair.can_be_resolved
    given_back = attrs.evolve(RECORD, state=State.REVERSED)
    (pair,) = compare([given_back, attrs.evolve(refused, attempt=2)], [entry()])
    assert pair.record == given_back


def test_two_lines_prove_no_sale_paid() -> None:
    """Though they add up to it: nobody pays a push in parts."""
    unknown = attrs.evolve(RECORD, state=State.UNKNOWN, transaction_id=None)
    for entries, proven in (([entry()], True), ([entry(575), entry(575, line=3)], False)):
        (pair,) = compare([unknown], entries)
        assert (pair.kind, pair.can_be_resolved) == (Class.PAID_THERE, proven)


KEYS, NUMBERS = st.sampled_from(["a", "b", "c"]), st.none() | st.integers(1, 4)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Record]:
    """Attempts with the ids that a ledger allows: a transaction belongs to one attempt."""
    found: list[Record] = []
    for identifier in draw(st.sets(KEYS)):
        for attempt in range(1, draw(st.integers(1, 2)) + 1):
            number, taken = draw(NUMBERS), {record.transaction_id for record in found}
            found.append(
                attrs.evolve(
                    RECORD, client_transaction_id=identifier, attempt=attempt, amount=draw(st.integers(1, 3)),
                    transaction_id=None if number in taken else number, state=draw(st.sampled_from(State)),
                    currency=draw(st.sampled_from(["USD", "EUR"])),
                )
            )  # fmt: skip
    return found


ENTRIES = st.builds(
    Entry, line=st.integers(2, 99), transaction_id=NUMBERS, client_transaction_id=KEYS,
    amount=st.integers(-3, 3), currency=st.sampled_from([None, "USD", "EUR"]),
)  # fmt: skip


def facts(pairs: list[Pair]) -> Counter[object]:
    return Counter((pair.kind, pair.record, frozenset(Counter(pair.entries).items())) for pair in pairs)


@given(ledgers(), st.lists(ENTRIES, max_size=8), st.randoms())
def test_each_cent_of_both_sides_is_in_exactly_one_class(
    records: list[Record], entries: list[Entry], chance: random.Random
) -> None:
    """No payment and no line is lost, doubled, or parted between two classes, in whatever order the lines stand."""
    pairs = compare(records, entries)
    assert facts(pairs) == facts(compare(records, chance.sample(entries, len(entries))))
    assert Counter(entry for pair in pairs for entry in pair.entries) == Counter(entries)
    here = [pair.record for pair in pairs if pair.record is not None]
    assert len(here) == len({(record.client_transaction_id, record.attempt) for record in here})
    assert {each for each in records if each.state is State.ACCEPTED} <= {*here} <= {*records}
    assert sum(pair.here for pair in pairs) == sum(r.amount for r in records if r.state is State.ACCEPTED)
    for pair in pairs:
        assert pair.there == sum(
            each.amount for each in pair.entries if each.currency in (None, pair.currency)
        )
        assert pair.entries or pair.kind is Class.ONLY_HERE
        assert (pair.record is None) == (pair.kind is Class.ONLY_THERE)
        if pair.kind is Class.AGREED:
            assert pair.here == max(pair.there, 0)
        if pair.can_be_resolved:
            assert pair.record is not None
            assert pair.record.state.paid is None


# --- The command


@pytest.fixture
def month(book: Book) -> Book:
    """A ledger with two sales that are paid, and one that is unknown."""

    async def fill(ledger: Ledger) -> None:
        for identifier in ("rent-1", "rent-2"):
            await brought(ledger, State.ACCEPTED, identifier)

    book.use(fill)
    return book


def statement(path: Path, *rows: str) -> Path:
    """A bank's statement: a title, Spanish names, decimal commas, a total below."""
    lines = ["Banco de los Andes;;;", "Referencia;Fecha;Valor;Estado", *rows, ";;99,00;"]
    path.write_text("\n".join([*lines, ""]), encoding="cp1252")
    return path


MAP = ["--map", "client_transaction_id=Referencia", "--map", "amount=Valor", "--map", "state=Estado"]


def test_a_statement_is_compared_and_told(month: Book, tmp_path: Path, capfd: Said) -> None:
    """Terminal, report and page have the six classes; a second run writes the files anew."""
    file = statement(
        tmp_path / "enero.csv", "rent-1;1/1;11,50;Aceptado", "rent-2;1/1;0,01;Aceptado",
        "order-unknown;1/1;11,50;Aceptado", "rent-9;1/1;11,50;Aceptado", "rent-8;1/1;5,00;Cancelado",
    )  # fmt: skip
    report, page = tmp_path / "r.csv", tmp_path / "r.html"
    arguments = ["reconcile", str(file), *MAP, "--report", str(report), "--html", str(page)]
    for _ in range(2):
        assert main(arguments) == 3
    shown = capfd.readouterr()
    assert "1 line passed over, of other states: Cancelado (1); --paid WORD" in shown.err
    assert "1 undecided here and listed as paid: --resolve --actor NAME decides them" in shown.err
    assert "1 line at the end passed over, which name no payment: 8" in shown.err
    with report.open(encoding="utf-8-sig", newline="") as lines:
        rows = {row["client_transaction_id"]: row for row in csv.DictReader(lines, delimiter=";")}
    assert {key: row["class"] for key, row in rows.items()} == {
        "rent-1": "agreed", "rent-2": "amounts differ", "order-unknown": "paid there, not known here",
        "rent-9": "only there", "order-accepted": "only here",
    }  # fmt: skip
    assert "only there: rent-9 (line 6)\n" in shown.out
    assert "paid there, not known here: order-unknown (line 5)\n" in shown.out
    assert "only here: order-accepted\n" in shown.out
    assert "agreed:" not in shown.out
    assert rows["rent-9"]["currency"] == "USD"
    assert rows["rent-1"]["there_units"] == "11,50"
    assert rows["rent-2"]["lines"] == "4"
    text = page.read_text()
    assert "Differences" in text
    assert all(f"{kind.capitalize()}: 1" in text for kind in ("only there", "only here", "amounts differ"))


def test_what_was_given_back_is_a_number_in_the_report(month: Book, tmp_path: Path) -> None:
    """Behind an apostrophe it would be a text, and a spreadsheet's sum of the column would pass over it."""
    file, report = statement(tmp_path / "enero.csv", "rent-1;1/1;-11,50;Aceptado"), tmp_path / "r.csv"
    assert main(["reconcile", str(file), *MAP, "--report", str(report)]) == 3
    with report.open(encoding="utf-8-sig", newline="") as lines:
        (row,) = (
            row for row in csv.DictReader(lines, delimiter=";") if row["client_transaction_id"] == "rent-1"
        )
    assert (row["there"], row["there_units"]) == ("-1150", "-11,50")


def test_the_terminal_names_the_first_of_each_class(month: Book, tmp_path: Path, capfd: Said) -> None:
    """And how many more there are; the money of all is in the ledger's one currency."""
    lines = [f"else-{number};1/1;1,50;Aceptado" for number in range(5)]
    file = statement(tmp_path / "enero.csv", *lines)
    assert main(["reconcile", str(file), *MAP]) == 3
    out = capfd.readouterr().out
    named = (
        "only there: else-0 (line 3), else-1 (line 4), else-2 (line 5), and 2 more: --report FILE names all\n"
    )
    assert named in out
    assert re.search(r"only there +5 +USD 0\.00 +USD 7\.50", out)
    row = out.splitlines()[next(n for n, line in enumerate(out.splitlines()) if line.startswith(" all")) + 1]
    assert not row.strip(), "one currency, one line"


@pytest.mark.parametrize("euros", ["11.50,EUR", "EUR 11.50,", "11.50 €,"])
def test_money_of_another_currency_is_not_counted_as_the_ledgers(
    month: Book, tmp_path: Path, capfd: Said, euros: str
) -> None:
    """Beside a payment in dollars a line in euros is euros, in the table and in the report, also by its sign alone."""
    file, report = tmp_path / "s.csv", tmp_path / "r.csv"
    file.write_text("client_transaction_id,amount,currency\nrent-1,€ 11.50,USD\n")
    assert main(["reconcile", str(file)]) == 2
    assert "has the sign of another currency" in capfd.readouterr().err
    file.write_text(f"client_transaction_id,amount,currency\nrent-1,{euros}\nrent-2,11.50,USD\n")
    assert main(["reconcile", str(file), "--report", str(report)]) == 3
    out = capfd.readouterr().out
    assert re.search(r"amounts differ +1 +EUR 0\.00 +EUR 11\.50\s+USD 11\.50 +USD 0\.00", out)
    assert re.search(r" all +3 +EUR 0\.00 +EUR 11\.50\s+USD 34\.50 +USD 11\.50", out)
    with report.open(encoding="utf-8-sig", newline="") as lines:
        rows = {row["client_transaction_id"]: row for row in csv.DictReader(lines)}
    assert (rows["rent-1"]["currency"], rows["rent-1"]["there"]) == ("USD", "0")


def test_a_state_that_is_not_read_is_asked_for(month: Book, tmp_path: Path, capfd: Said) -> None:
    """What a bank rejected must not be taken for paid, least of all by `--resolve`."""
    file, resolving = tmp_path / "enero.csv", ["--resolve", "--actor", "ana", "--yes"]
    for name, word in (
        ("Estado", "Rechazado"),
        ("Situación", ""),
        ("Nota", "REVERSADA"),
        ("EstadoPago", "Pendiente"),
        ("Detalle", "No autorizada"),
    ):
        file.write_text(f"Referencia;Valor;{name}\norder-unknown;11,50;{word}\n", encoding="utf-8")
        for more in ([], resolving):
            assert main(["reconcile", str(file), *MAP[:4], *more]) == 2
            said = f"the column {name} may say that a line was not paid: give --map state={name}"
            assert said in capfd.readouterr().err
        assert main(["reconcile", str(file), *MAP[:4], "--map", f"state={name}", *resolving]) in (0, 3)
    assert month.get("order-unknown").state == "unknown"
    file.write_text("Referencia;Valor;Estado\norder-x;11,50;Ana Pérez 0984111222\n", encoding="utf-8")
    main(["reconcile", str(file), *MAP[:4], "--map", "state=Estado"])
    said = "".join(capfd.readouterr())
    assert "? (1)" in said
    assert "Ana" not in said, "what may be a person's data is not repeated"


def test_what_statements_list_is_decided_on_a_persons_word(month: Book, tmp_path: Path, capfd: Said) -> None:
    """With its name and the line as evidence; then each cent of the days agrees."""
    keys = ["rent-1", "rent-2", "order-accepted", "order-unknown"]
    file = statement(tmp_path / "enero.csv", *(f"{key};1/1;11,50;aceptado" for key in keys))
    assert main(["reconcile", str(file), *MAP]) == 3
    assert main(["reconcile", str(file), *MAP, "--resolve", "--actor", "Ana", "--yes"]) == 0
    record = month.get("order-unknown")
    assert (record.state, record.evidence) == ("accepted", "listed")
    capfd.readouterr()
    assert main(["ledger", "show", "order-unknown"]) == 0
    out = capfd.readouterr().out
    assert "a person read it in a statement" in out
    assert "actor: Ana" in out
    assert "enero.csv, line 6" in " ".join(out.split())
    assert main(["ledger", "export", "--format", "jsonl"]) == 0
    rows = {row["client_transaction_id"]: row for row in map(json.loads, capfd.readouterr().out.splitlines())}
    assert rows["order-unknown"]["actor"] == "Ana"
    assert month.get("order-expired").state == "expired"


@pytest.mark.parametrize(
    ("paid", "other", "state"),
    [
        (";order-unknown", ";order-unknown", "unknown"),
        ("70;order-unknown", ";order-unknown", "unknown"),
        (";order-unknown", "70;order-unknown", "unknown"),
        ("70;order-unknown", "70;", "unknown"),
        ("70;order-unknown", "-;order-unknown", "unknown"),
        # The id cannot be read.
        (";order-unknown", ";=A1", "unknown"),
        # Another transaction, and another sale.
        ("70;order-unknown", "60;order-unknown", "accepted"),
        ("70;order-unknown", "60;rent-1", "accepted"),
    ],
)
def test_what_another_line_may_say_was_given_back_is_not_decided(
    month: Book, tmp_path: Path, paid: str, other: str, state: str
) -> None:
    """A word that is not read may mean that; a person's word for good would be that it is paid."""
    file = tmp_path / "enero.csv"
    lines = f"{paid};11,50;Aceptado\n{other};11,50;Reversado\n"
    file.write_text(f"transaction_id;client_transaction_id;amount;state\n{lines}", encoding="utf-8")
    assert main(["reconcile", str(file), "--resolve", "--actor", "Ana", "--yes"]) in (2, 3)
    assert month.get("order-unknown").state == state


def test_a_line_with_the_ledgers_other_id_is_about_the_same_payment(month: Book, tmp_path: Path) -> None:
    """The statement gives one id in each line, and the ledger has both of the payment."""
    number = month.get("order-expired").transaction_id
    file = tmp_path / "enero.csv"
    lines = f";order-expired;11,50;Aceptado\n{number};;11,50;Reversado\n"
    file.write_text(f"transaction_id;client_transaction_id;amount;state\n{lines}", encoding="utf-8")
    assert main(["reconcile", str(file), "--resolve", "--actor", "Ana", "--yes"]) == 3
    assert month.get("order-expired").state == "expired"


@pytest.mark.parametrize("back", ["-11,50", "- $11,50", "11,50 -", "( 11,50 )", "($ 11,50)"])
def test_an_amount_that_was_given_back_is_never_taken_for_paid(
    month: Book, tmp_path: Path, back: str
) -> None:
    """However its sign is written, with blanks or without; other signs are no amount."""
    file = statement(tmp_path / "enero.csv", f"order-unknown;1/1;{back};Aceptado")
    assert main(["reconcile", str(file), *MAP, "--resolve", "--actor", "Ana", "--yes"]) == 3
    assert month.get("order-unknown").state == "unknown"
    returned = [*MAP, "--returned", "Reversado", "--resolve", "--actor", "Ana", "--yes"]
    assert main(["reconcile", str(statement(file, f"order-unknown;1/1;{back};Reversado")), *returned]) == 3
    assert month.get("order-unknown").state == "unknown", "said twice it is no payment"
    assert main(["reconcile", str(file), *returned, "--paid", "Reversado"]) == 3
    statement(file, "order-unknown;1/1;11,50;Reversado")
    assert main(["reconcile", str(file), *returned, "--paid", "Reversado"]) == 3
    assert month.get("order-unknown").state == "unknown", "nor is what may mean either"
    for odd in ("(11,50", "11,50)", "--11,50", "-1 1,50", "-(11,50)", "-11,50-"):
        assert main(["reconcile", str(statement(file, f"order-unknown;1/1;{odd};Aceptado")), *MAP]) == 2


def test_a_minus_sign_may_be_a_true_one(month: Book, tmp_path: Path) -> None:
    """As a word processor or a bank writes it; and the mark of the amounts may be given."""
    file = tmp_path / "enero.csv"
    lines = "rent-1;\N{MINUS SIGN}1.150,00\nrent-2;1.150\n"
    file.write_text(f"client_transaction_id;amount\n{lines}", encoding="utf-8")
    report = tmp_path / "r.csv"
    main(["reconcile", str(file), "--report", str(report), "--decimal-mark", ","])
    with report.open(encoding="utf-8-sig", newline="") as rows:
        there = {row["client_transaction_id"]: row["there"] for row in csv.DictReader(rows, delimiter=";")}
    assert (there["rent-1"], there["rent-2"]) == ("-115000", "115000")


def test_a_hostile_currency_is_no_markup(month: Book, tmp_path: Path, capfd: Said) -> None:
    """Square brackets, which the library of the tables would read as a style, or fail at."""
    file = tmp_path / "enero.csv"
    file.write_text("client_transaction_id;amount;currency;state\norder:a:1;11,50;[/b];Aceptado\n")
    assert main(["reconcile", str(file)]) == 3
    shown = capfd.readouterr().out
    assert "[/b] 11.50" in shown
    assert "order:a:1 (line 2)" in shown


def test_a_hostile_statement_writes_no_escape_sequence(month: Book, tmp_path: Path, capfd: Said) -> None:
    """One could hide the lines that do not agree."""
    file, report = tmp_path / "enero.csv", tmp_path / "r.csv"
    file.write_text(
        "client_transaction_id;amount;currency;state\n\x1b[2Ja;11,50;U\x9b2JD;Aceptado\n", encoding="utf-8"
    )
    assert main(["reconcile", str(file), "--report", str(report)]) == 3
    shown = capfd.readouterr()
    text = shown.out + shown.err + report.read_text()
    assert "only there: \\x1b[2Ja (line 2)" in shown.out
    assert not {*"\x1b\x9b"} & {*text}


def test_it_asks_before_it_decides(month: Book, person: list[str], tmp_path: Path, capfd: Said) -> None:
    """No is no; the sales are named first."""
    file = statement(tmp_path / "enero.csv", "order-unknown;1/1;11,50;Aceptado")
    person[:] = ["n"]
    assert main(["reconcile", str(file), *MAP, "--resolve", "--actor", "Ana"]) == 2
    assert "order-unknown: USD" in capfd.readouterr().err
    assert month.get("order-unknown").state == "unknown"


def test_a_sale_that_changes_while_a_person_is_asked_is_left_alone(
    month: Book, monkeypatch: pytest.MonkeyPatch, person: list[str], tmp_path: Path, capfd: Said
) -> None:
    """A charge goes on meanwhile; the answer was about what the sale was before."""
    file = statement(tmp_path / "enero.csv", "order-unknown;1/1;11,50;Aceptado")

    def ask(_: str) -> str:
        with ThreadPoolExecutor() as elsewhere:  # another process would have a loop of its own
            notified = Notified(at=1.0, transaction_id=7)
            elsewhere.submit(
                month.use, lambda ledger: ledger.apply(fresh("order-unknown"), notified)
            ).result()
        return "y"

    monkeypatch.setattr(terminal.err, "input", ask)
    assert main(["reconcile", str(file), *MAP, "--resolve", "--actor", "Ana"]) == 3
    assert "Ana" not in capfd.readouterr().out
    assert month.get("order-unknown").state == "unknown"


def test_a_sale_that_another_process_decides_first_is_left_alone(
    postgres: PostgresServer, new_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: Said
) -> None:
    """Right before a person's word is written; the other sales that the statement lists are decided all the same."""
    url, apply = postgres.url(new_database), PostgresLedger.apply
    monkeypatch.setenv("PAYCLIENT_LEDGER", url)

    async def fill() -> None:
        async with opened(url) as ledger:
            for name in ("order-1", "order-2"):
                await brought(ledger, State.UNKNOWN, name)

    async def late(self: PostgresLedger, record: Record, event: Event) -> Record:
        monkeypatch.setattr(PostgresLedger, "apply", apply)
        async with opened(url) as other:
            await other.apply(record, FoundAccepted(at=NOW + 90, transaction_id=7))
        return await self.apply(record, event)

    asyncio.run(fill())
    file = statement(tmp_path / "enero.csv", *(f"order-{n};1/1;11,50;Aceptado" for n in (1, 2)))
    monkeypatch.setattr(PostgresLedger, "apply", late)
    assert main(["reconcile", str(file), *MAP, "--resolve", "--actor", "Ana", "--yes"]) == 0
    assert "1 sale paid from now on" in capfd.readouterr().err
    rows = asyncio.run(postgres.execute(new_database, "SELECT state, evidence FROM payclient.records"))
    assert sorted(map(tuple, rows)) == [("accepted", "listed"), ("accepted", "query")]


def test_options_that_do_not_fit_are_refused(month: Book, tmp_path: Path, capfd: Said) -> None:
    """A name without a decision, a decision without a name, a page in the place of the statement, another kind."""
    assert main(["reconcile", str(tmp_path / "enero.pdf")]) == 2
    assert capfd.readouterr().err == "payclient: enero.pdf: must end in .csv, .xlsx, .ods or .jsonl\n"
    file = statement(tmp_path / "enero.csv", "rent-1;1/1;11,50;Aceptado")
    before = file.read_bytes()
    for options, said in (
        (["--actor", "Ana"], "--resolve and --actor NAME: give both or none"),
        (["--resolve", "--yes"], "--resolve and --actor NAME: give both or none"),
        (["--html", str(file)], "--html"),
    ):
        assert main(["reconcile", str(file), *MAP, *options]) == 2
        assert said in capfd.readouterr().err
    assert file.read_bytes() == before


def test_only_the_days_of_the_statement_are_compared(month: Book, tmp_path: Path) -> None:
    """What was paid on other days is in another statement."""
    file = statement(tmp_path / "enero.csv", "rent-9;1/1;1,50;Reversado")
    arguments = ["reconcile", str(file), *MAP]
    assert main(arguments) == 3
    assert main([*arguments, "--until", "2001-01-31"]) == 0
    assert main([*arguments, "--since", "2001-01-31"]) == 3
    assert main([*arguments, "--since", "2001-01-31", "--until", "2001-01-01"]) == 2
    # What is decided by hand long after was paid while its customer could pay.
    why = ["--actor", "Ana", "--reason", "seen in the portal", "--yes"]
    assert main(["ledger", "resolve", "order-unknown", "--as", "accepted", *why]) == 0
    assert main([*arguments, "--since", "2024-01-31"]) == 0
    # So was what could not be given back long after.
    late = NOW + 1e8

    async def ask_back(ledger: Ledger) -> None:
        record = await ledger.get("rent-1")
        assert record is not None
        record = await ledger.apply(record, ReversalPermitted(at=late, expires_at=late + 60))
        await ledger.apply(record, ReversalRefused(at=late, error_code=20))

    month.use(ask_back)
    assert main([*arguments, "--since", "2024-01-31"]) == 0


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose day is another than that of UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_the_days_are_whole(month: Book, tmp_path: Path) -> None:
    """Of this machine's clock, the first and the last included; what is listed is compared whenever it was."""
    file = statement(tmp_path / "enero.csv", "rent-9;1/1;1,50;Reversado")
    decided_at = month.get("rent-1").decided_at or 0.0
    day = datetime.datetime.fromtimestamp(decided_at, datetime.UTC).astimezone().date()
    before, after = day - datetime.timedelta(1), day + datetime.timedelta(1)
    for since, until, code in ((day, day, 3), (before, before, 0), (after, after, 0)):
        assert main(["reconcile", str(file), *MAP, "--since", str(since), "--until", str(until)]) == code
    statement(file, "rent-1;1/1;11,50;Aceptado")
    assert main(["reconcile", str(file), *MAP, "--since", str(after)]) == 0


def test_the_settings_of_a_charge_are_not_those_of_a_comparison(month: Book, tmp_path: Path) -> None:
    """Their names are the same: a statement's result would replace the report of the charges."""
    (tmp_path / "payclient.toml").write_text('report = "cobros.csv"\namounts = "cents"\n')
    file = statement(tmp_path / "enero.csv", "rent-1;1/1;11,50;Aceptado")
    assert main(["reconcile", str(file), *MAP]) == 3
    assert not (tmp_path / "cobros.csv").exists()


def test_lines_of_json_have_whole_cents(month: Book, tmp_path: Path) -> None:
    """As in a file of charges."""
    file = tmp_path / "enero.jsonl"
    lines = [{"clientTransactionId": each, "amount": 1150} for each in ("rent-1", "rent-2", "order-accepted")]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in lines))
    report = tmp_path / "r.jsonl"
    main(["reconcile", str(file), "--report", str(report)])
    rows = {row["client_transaction_id"]: row for row in map(json.loads, report.read_text().splitlines())}
    assert [rows[each["clientTransactionId"]]["class"] for each in lines] == ["agreed"] * 3


def test_a_spreadsheet_with_transaction_ids(month: Book, tmp_path: Path) -> None:
    """Numbers as a spreadsheet has them; less than 0 is given back."""
    sheet = openpyxl.Workbook()
    sheet.active.append(["clientTransactionId", "transactionId", "amount"])
    sheet.active.append(["rent-1", month.get("rent-1").transaction_id, 11.5])
    sheet.active.append(["rent-1", month.get("rent-1").transaction_id, -11.5])
    sheet.active.row_dimensions[3].hidden = True  # a filter hides it, and the statement lists it all the same
    sheet.save(tmp_path / "s.xlsx")
    report = tmp_path / "r.jsonl"
    options = ["--amounts", "decimal", "--report", str(report)]
    assert main(["reconcile", str(tmp_path / "s.xlsx"), *options]) == 3
    rows = {row["client_transaction_id"]: row for row in map(json.loads, report.read_text().splitlines())}
    assert rows["rent-1"]["class"] == "given back there"
    assert (rows["rent-1"]["here"], rows["rent-1"]["there"]) == (1150, 0)


def test_a_statement_that_says_two_things_is_asked_about(month: Book, tmp_path: Path, capfd: Said) -> None:
    """Nothing is guessed; the error names the line."""
    good = "transaction_id,amount\n7,1.50\n"
    # The header is found under a title, though no column is known.
    titled = "Banco de los Andes;;;\nReferencia;Fecha;Valor;Estado\nrent-1;1/1;1,50;Aceptado\n;;99,00;\n"
    for text, more, said in (
        (titled, "", "line 2 lacks columns: give --map amount=COLUMN --map client_transaction_id"),
        (
            titled,
            "--map amount=Valor",
            "give --map client_transaction_id=COLUMN; the line has Referencia, Fecha",
        ),
        # Nothing above them can be totalled; the ledger may have nothing of their days, and each cent would agree.
        ("transaction_id,amount\n,1.50\n,2.00\n", "", "line 2: names no payment"),
        ("transaction_id,amount\n7,25\n", "", "give --amounts cents or decimal"),
        (f"{good}x,1.50\n", "", "line 3: transaction_id: must be a number"),
        (f"{good}8,1.505\n", "", "line 3: has 3 digits"),
        ("transaction_id,amount\n7,\n8,1.50\n", "", "line 2"),
        (f"{good}8,=A1\n", "", "line 3: is not an amount"),
        (f'name,{good}"A,7,1.50\nB",8,2.50\n', "--amounts decimal", "has a cell that holds other lines"),
        ("amount\n1.50\n", "", "give --map client_transaction_id=COLUMN"),
        ("transaction_id\n7\n", "", "give --map amount=COLUMN"),
        ("transaction_id,amount,state,State\n", "", "line 1: state is there twice"),
        (good, "--map phone=x", "--map phone: the field must be one of amount, client_transaction_id, "),
        (good, "--resolve", "give both or none"),
        (good, "--since 31/1", "--since: must be a day such as 2026-01-31"),
    ):
        (tmp_path / "s.csv").write_text(text)
        assert main(["reconcile", str(tmp_path / "s.csv"), *more.split()]) == 2
        err = capfd.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_file_of_somebodys_own_is_left_alone(month: Book, tmp_path: Path, capfd: Said) -> None:
    """Report and page replace files of this command only."""
    file = statement(tmp_path / "enero.csv", "rent-9;1/1;1,50;Aceptado")
    for option, name in (("--report", "mine.csv"), ("--html", "mine.html"), ("--report", "enero.csv")):
        path = tmp_path / name
        before = path.read_bytes() if path.exists() else b"name,phone\n"
        path.write_bytes(before)
        assert main(["reconcile", str(file), *MAP, option, str(path)]) == 2
        assert path.read_bytes() == before
    assert listed(capfd.readouterr().out) == {}
