"""How a run is watched: live, in plain lines, quietly, by a machine; and the page that it leaves."""

import asyncio
import io
import json
import os
import re
import shlex
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cli_runs import (
    TOKEN,
    Said,
    Service,
    charge_arguments,
    check_truth,
    read_report,
    rows_of,
    start,
    write_csv,
)
from fake_service import FakeService, lost_answer, sale, tracking
from pages import Read, digest_of
from payclient import DOCUMENT
from payclient.cli import main, terminal
from payclient.cli.page import LISTED, RunPage
from payclient.cli.progress import Progress, outcome_table
from payclient.cli.report import NOT_SENT_YET, Line, Tally
from payclient.clock import cancel_all
from payclient.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("clean_environment")


NOW = 1_763_720_000.0


def line(number: int, state: str = "accepted", **more: object) -> Line:
    known: dict[str, object] = {
        "client_transaction_id": f"row-{number}", "state": state, "amount": 1000 + number, "currency": "USD"
    }  # fmt: skip
    return Line(**{**known, **more})  # type: ignore[arg-type]  # by name, for brevity


def tally_of(*lines: Line) -> Tally:
    return Tally(lines)


# --- What is not finished


async def test_what_is_open_of_this_run_is_counted() -> None:
    """Pending with the time left of the next to expire and the last end; sales of other runs are passed over."""
    service = FakeService()
    async with tracking(service, profile=DOCUMENT) as tracker:
        for each in range(4):
            service.scripts = [lost_answer] if each == 2 else []
            await tracker.sale(sale(f"row-{each}", phone=f"099{each}"))
            await service.clock.advance(10)

        progress = Progress(Tally(), 4, {"row-1", "row-2", "row-3", "row-9"})
        progress.tracker = tracker
        counts, left = progress.unfinished()
        assert counts == {"pending": 2, "expired": 0, "unknown": 1, "queued": 1}
        assert left == [270, 290]  # row 1 was asked 30 s ago
        await service.clock.advance(280)
        counts, left = progress.unfinished()
        assert (counts["pending"], counts["expired"], left) == (1, 1, [10])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "0.1"], "over in 44 s at the latest"),
        (["--max-pending", "1"], "over in 16 s at the latest"),
        ([], "over in 4 s at the latest"),
    ],
)
def test_a_plan_says_its_latest_end(tmp_path: Path, options: list[str], said: str, capfd: Said) -> None:
    """By the rate of sends, the prompts that may be open at once, and the customers' time."""
    profile = tmp_path / "profile.toml"
    profile.write_text("sale_window = 3")
    file = write_csv(tmp_path / "charges.csv", rows_of("binds", 4))
    assert main(["charge", str(file), "--dry-run", "--profile", str(profile), *options]) == 0
    assert said in " ".join(capfd.readouterr().out.split())
    # Machines read the output of --json: the plan is for people.
    assert main(["charge", str(file), "--dry-run", "--json", "--profile", str(profile), *options]) == 0
    shown = capfd.readouterr()
    assert (shown.out, said in " ".join(shown.err.split())) == ("", True)


# --- What is shown


async def picture(monkeypatch: pytest.MonkeyPatch, width: int) -> str:
    out = io.StringIO()
    monkeypatch.setattr(
        terminal, "err", Console(file=out, width=width, force_terminal=True, color_system=None)
    )
    tally = tally_of(*(line(n) for n in range(3)), line(3, "cancelled"), line(4, "expired", currency="EUR"))
    live = Progress(tally, 12_345, set())
    now = {"pending": 980, "expired": 3, "unknown": 2, "queued": 50}
    monkeypatch.setattr(live, "unfinished", lambda: (now.copy(), [192.0]))
    shown = asyncio.create_task(live.show())
    await asyncio.sleep(0)
    await cancel_all([shown])
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", out.getvalue())


@pytest.mark.parametrize("width", [60, 80, 120])
async def test_the_picture_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """And holds the money, the time left and the end, in words and not in colours alone."""
    text = await picture(monkeypatch, width)
    assert max(map(len, text.splitlines())) <= width
    assert re.search(r"accepted .* 3 +USD 30.03", text)
    if width >= 80:
        assert re.search(r"done .* 5 +of 12,345; running", text)
    if width >= 120:
        assert re.search(r"waiting .* 980 +for a customer; the next expires in 3 min 12 s; 3 expired", text)


async def test_a_plain_line_says_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end is what the plan said, and no other one is promised."""
    now = [NOW]
    monkeypatch.setattr("time.time", lambda: now[0])
    plain = Progress(tally_of(line(1), line(2, "refused")), 9, ())
    said = "2 of 9 done; 1 accepted (USD 10.01); 1 refused (USD 10.02); no customer pending"
    assert said in plain.sentence()
    plain.ends_by = NOW + 70
    assert f"over by {terminal.at(NOW + 70)} at the latest" in plain.sentence()
    now[0] = NOW + 71
    assert "later than reckoned" in plain.sentence()


async def test_rows_that_are_not_sent_yet_are_counted_apart(tmp_path: Path) -> None:
    """Neither done nor unknown, in the progress, at the end, and on the page."""
    lines = [line(1), *(line(n, "", message="not sent yet: interrupted") for n in range(2, 5))]
    sentence = Progress(tally_of(*lines), 4, {}).sentence()
    assert "1 of 4 done; 3 not sent yet (USD 30.09); 1 accepted (USD 10.01)" in sentence
    console = Console(width=100, file=io.StringIO())
    console.print(outcome_table(tally_of(*lines)))
    assert isinstance(console.file, io.StringIO)
    assert re.search(r"not sent yet +3 +USD 30\.09", console.file.getvalue())
    page = read_page(page_of(tmp_path / "r.html", *lines, code=130)).text
    assert "1 of 4 charges were paid: USD 10.01. 3 are not sent yet." in page
    assert "unknown" not in console.file.getvalue() + page.partition("“Paid” is")[0]


async def test_a_machine_that_hangs_up_ends_no_run(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    """Who reads the events may go."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    events = Progress(Tally(), 2, (), "json")
    events.row(line(1))
    events.row(line(2))


def test_durations_are_rounded_up() -> None:
    """A moment of another day has its day."""
    for seconds, text in ((0.2, "1 s"), (59.5, "1 min 0 s"), (200, "3 min 20 s"), (7441, "2 h 5 min")):
        assert terminal.duration(seconds) == text
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", terminal.at(NOW))


# --- The page


def read_page(text: str) -> Read:
    """A page that needs nothing from outside, and no script."""
    read = Read(text)
    assert read.is_whole
    addresses = [
        attributes.get(name) or "#"
        for _, attributes in read.tags
        for name in ("src", "href", "action", "data")
    ]
    assert all(address.startswith("#") for address in addresses)
    assert "script" not in dict(read.tags)
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src "
    assert policy + digest_of(read.inline["style"]) in text
    assert "url(h" not in text
    return read


def page_of(path: Path, *lines: Line, code: int | None = 4, total: int | None = None) -> str:
    page = RunPage(path, title="charges.csv", window=300)
    page.write(lines, tally_of(*lines), total=len(lines) if total is None else total, code=code)
    return path.read_text(encoding="utf-8")


def test_the_page_says_what_came_of_the_rows(tmp_path: Path) -> None:
    """Totals by outcome and currency, the answers' times, and who needs a person with the service's words."""
    timed = [
        line(n, "accepted" if n < 8 else "cancelled", created_at=NOW, decided_at=NOW + 20 + n, notified_at=NOW + 10)
        for n in range(10)
    ]  # fmt: skip
    late = line(10, "cancelled", created_at=NOW, decided_at=NOW + 303)
    text = page_of(
        tmp_path / "r.html", *timed, late, line(11, "unknown", currency="EUR"), line(12, "expired"),
        line(13, "refused", error_code=22, message="El cliente no existe"), line(14, "", message="not sent yet"),
    )  # fmt: skip
    page = read_page(text)
    for words in (
        "8 of 15 charges were paid: USD 80.28.", "3 rows need a person. 1 is not sent yet.",
        "Half of them answered within 10 s, nine of ten within 10 s. 3 did not answer in time",
        "row-11", "EUR 10.11", "row-12", "row-13", "El cliente no existe", "22", NOT_SENT_YET.capitalize(),
    ):  # fmt: skip
        assert words in page.text
    assert "row-3" not in page.text
    assert 'aria-label="8 accepted, 3 cancelled, 1 refused, 1 expired, 1 unknown, 1 not sent yet"' in text
    assert 'http-equiv="refresh"' not in text


@pytest.mark.parametrize(("quick", "said"), [(1, "3 min 20 s"), (4, "3 min 20 s"), (9, "10 s")])
def test_the_page_says_how_long_nine_of_ten_took(tmp_path: Path, quick: int, said: str) -> None:
    """However few answered: the time in which 8 of 10 did is not called that of nine."""
    seconds = [10] * quick + [200]
    text = page_of(
        tmp_path / "r.html", *(line(n, created_at=NOW, decided_at=NOW + each) for n, each in enumerate(seconds))
    )  # fmt: skip
    assert f"Half of them answered within 10 s, nine of ten within {said}." in read_page(text).text


def test_what_others_wrote_is_escaped(tmp_path: Path) -> None:
    """No markup, no quotes that end an attribute, no characters that turn the line around."""
    nasty = "\"><script>alert(1)</script>'\u202etxt.exe\x00"
    page = RunPage(tmp_path / "r.html", title=nasty, window=300)
    each = line(1, "refused", message=nasty, client_transaction_id=nasty, currency=nasty)
    page.write([each], tally_of(each), total=1, code=3)
    text = (tmp_path / "r.html").read_text()
    read = read_page(text)
    assert "<script" not in text
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "alert(1)" in read.text


def test_a_page_of_a_run_that_goes_on_loads_itself_again(tmp_path: Path) -> None:
    """And says that the rest has no outcome yet; that of an interrupted one says that it was."""
    text = page_of(tmp_path / "r.html", line(1), code=None, total=9)
    assert '<meta http-equiv="refresh" content="30">' in text
    for words in ("Still running", "The run goes on", "8 have no outcome yet"):
        assert words in read_page(text).text
    for words in ("0 of 3 charges were paid.", "Interrupted"):
        assert words in read_page(page_of(tmp_path / "r.html", code=130, total=3)).text


def test_a_page_lists_so_many_and_counts_all(tmp_path: Path) -> None:
    """Its memory is bounded, and no flood of refusals hides an unknown one."""
    lines = [line(n, "refused", message="no") for n in range(LISTED + 50)]
    page = read_page(page_of(tmp_path / "r.html", *lines, line(9999, "unknown")))
    assert f"The first {LISTED} of {LISTED + 50}" in page.text
    assert "row-9999" in page.text
    assert len(re.findall(r"row-\d", page.text)) == LISTED + 1


def test_a_file_that_is_no_page_of_ours_is_left_alone(tmp_path: Path) -> None:
    """One of ours is replaced in one step, and nothing stays beside it. It ends in .html, in a folder that is there."""
    (tmp_path / "a.html").write_text("<h1>mine</h1>")
    for name, said in (
        ("a.html", "payclient did not write it"),
        ("r.txt", "must end in .html"),
        ("no/r.html", "directory"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            RunPage(tmp_path / name, title="x", window=300)
    for _ in range(2):
        page_of(tmp_path / "b.html", line(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


# --- The command


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(each) for each in text.splitlines()]


def test_events_for_machines_and_a_page_that_is_rebuilt(mixed: Service, tmp_path: Path, capfd: Said) -> None:
    """`--json`: begin, a row each, the end, and nothing else on stdout; again, it sends nothing and writes the page."""
    rows, page = rows_of("json", 20), tmp_path / "page.html"
    report = tmp_path / ("d" * 250) / ("e" * 250) / "report.csv"  # makes a long event, which stays whole
    report.parent.mkdir(parents=True)
    file = write_csv(tmp_path / "charges.csv", rows)
    arguments = charge_arguments(mixed, file, "--json", "--html", str(page), "--report", str(report))
    assert main(arguments) == 3
    events = events_of(capfd.readouterr().out)
    kinds = [event["event"] for event in events if event["event"] != "progress"]
    assert kinds == ["begin", *["row"] * 20, "end"]
    assert len({event["client_transaction_id"] for event in events if event["event"] == "row"}) == 20
    end = events[-1]
    assert (end["exit_code"], end["done"], end["html"], end["report"]) == (3, 20, str(page), str(report))
    assert sum(outcome["rows"] for outcome in end["outcomes"].values()) == 20
    lines = read_report(report)
    assert len(lines) == 20
    check_truth(lines, mixed.truth("json-"))
    assert {line["currency"] for line in lines.values()} == {"USD", "EUR"}
    assert lines["json-7"]["amount"] == "1157"
    phones = rows[0]["phone_number"][:7]  # a transaction id may hold the first four
    assert not re.search(f"{phones}|{TOKEN}", page.read_text() + json.dumps(events) + report.read_text())
    first = read_page(page.read_text())
    page.unlink()
    before = mixed.counts()
    assert main(arguments) == 3
    assert mixed.counts() == before
    assert before["duplicates"] == {}
    assert read_report(report) == lines
    again = events_of(capfd.readouterr().out)
    assert [again[n]["event"] for n in (0, 1, -1)] == ["begin", "row", "end"]
    written = re.compile(r"This page was written.*?\)")
    assert written.sub("", read_page(page.read_text()).text) == written.sub("", first.text)


def test_quiet_says_nothing_where_all_is_well(tmp_path: Path, mixed: Service, capfd: Said) -> None:
    """An earlier `ledger init` is the consent that `--new-ledger` would be."""
    file, report = write_csv(tmp_path / "charges.csv", rows_of("quiet", 5)), tmp_path / "r.csv"
    arguments = charge_arguments(mixed, file, "--quiet", "--report", str(report))
    assert main(["ledger", "init", "--ledger", f"sqlite:{tmp_path / 'ledger.db'}"]) == 0
    assert "the ledger is ready" in capfd.readouterr().err
    arguments.remove("--new-ledger")
    assert main(arguments) in (0, 3)
    assert capfd.readouterr() == ("", "")
    assert all(row["created_at"].endswith("Z") for row in read_report(report).values())
    assert main([*arguments, "--json"]) == 2
    assert "give one of them" in capfd.readouterr().err


def test_ctrl_c_thrice_ends_it_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a send hangs: the ledger and the report hold what is known, it is 130, and the cursor is shown."""
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich this is a terminal
    monkeypatch.setenv("TERM", "xterm")
    file, report = write_csv(tmp_path / "charges.csv", rows_of("thrice", 2)), tmp_path / "report.csv"
    profile = tmp_path / "profile.toml"
    profile.write_text('name = "tests"\n')
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        where = Service(f"http://127.0.0.1:{deaf.getsockname()[1]}", profile)
        with start(charge_arguments(where, file, "--report", str(report))) as process:
            connection, _ = deaf.accept()
            assert connection.recv(100)
            assert process.stderr is not None
            for words in ("sending no more", "stopped waiting"):
                process.send_signal(signal.SIGINT)
                while words not in (said := process.stderr.readline()):
                    assert said
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=60) == 130
            connection.close()
            hide, show = "\x1b[?25l", "\x1b[?25h"
            assert process.communicate()[1].rpartition(hide)[2].count(show) == 1


def test_ctrl_c_twice_at_the_beginning_waits_for_nobody(
    silent: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the ledger is still read: what an earlier run left pending is reported so."""
    report = tmp_path / "report.csv"
    file = write_csv(tmp_path / "charges.csv", rows_of("early", 3))
    arguments = charge_arguments(silent, file, "--json", "--report", str(report))
    assert main([*arguments, "--wait", "0"]) == 4
    begin = Progress.begin

    def interrupted(progress: Progress, location: str) -> None:
        begin(progress, location)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "begin", interrupted)
    assert main(arguments) == 130
    assert [row["state"] for row in read_report(report).values()] == ["pending"] * 3


def test_an_interrupted_run_tells_machines_and_leaves_a_page(silent: Service, tmp_path: Path) -> None:
    """A signal once: no more is sent, and it waits for whom it has asked, and tells machines until when."""
    file, page = write_csv(tmp_path / "charges.csv", rows_of("told", 8)), tmp_path / "page.html"
    report = tmp_path / "report.csv"
    more = ["--json", "--html", str(page), "--report", str(report), "--max-pending", "3"]
    with start(charge_arguments(silent, file, *more)) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline())]
        while not events[-1].get("pending"):
            events.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGHUP)
        while events[-1]["event"] != "waiting":
            events.append(json.loads(process.stdout.readline()))
        silent.reject("told")
        rest, _ = process.communicate(timeout=60)
    events += events_of(rest)
    assert process.returncode == 130
    kinds = [event["event"] for event in events]
    assert "stopping" in kinds
    assert kinds[-1] == "end"
    waiting = next(event for event in events if event["event"] == "waiting")
    assert waiting["pending"] == 3
    assert waiting["until"].endswith("Z")
    assert len(silent.truth("told")) == 3
    states = [row["state"] for row in read_report(report).values()]
    assert sorted(states) == [""] * 5 + ["cancelled"] * 3
    text = read_page(page.read_text()).text
    assert "Interrupted" in text
    assert "Not sent yet" in text
    assert os.environ["PAYCLIENT_TOKEN"] not in page.read_text()


def test_names_are_shown_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither an escape sequence in the name of a file nor a word between colons becomes anything else."""
    name = "order:a:17 [red]\x1b[2J"
    terminal.say(name)
    terminal.print_result(name)
    terminal.print_facts({name: name})
    shown = "order:a:17 [red]\\x1b[2J"
    said = capfd.readouterr()
    assert said.out.split("\n") == [shown, f"{shown}  {shown}", ""]
    assert said.err == f"{shown}\n"


def test_a_ledgers_password_is_not_printed() -> None:
    """The command that goes on and the plan name a ledger without what opens it, or consent to another one."""
    for text, shown in (
        ("--ledger=postgresql://shop:s3cr:e/t@x@db/shop", "--ledger=postgresql://shop:***@db/shop"),
        ("postgres://shop:secret@a,b/shop?x=1", "postgres://shop:***@a,b/shop?x=1"),
        ("postgresql://shop@db/shop?password=secret&x=1", "postgresql://shop@db/shop?password=***&x=1"),
        ("postgresql+asyncpg://shop:secret@db/shop", "postgresql+asyncpg://shop:***@db/shop"),
        ("postgresql://shop@corp:secret@db/shop", "postgresql://shop@corp:***@db/shop"),
        ("postgresql://db/shop?PGPASSWORD=secret", "postgresql://db/shop?PGPASSWORD=***"),
        ("host=db user=shop password='se cret'", "host=db user=shop password=***"),
        ("POSTGRESQL://shop:secret@db/shop", "POSTGRESQL://shop:***@db/shop"),
        ("postgresql://shop@db/shop", "postgresql://shop@db/shop"),
        ("sqlite:charges:1@2.db", "sqlite:charges:1@2.db"),
    ):
        assert terminal.without_password(text) == shown
        new = ("--new-ledger", "--new-ledger=true")
        token = terminal.command_line.set(("charge", "a.csv", *new, "--ledger", text))
        assert terminal.again() == shlex.join(("payclient", "charge", "a.csv", "--ledger", shown))
        terminal.command_line.reset(token)
