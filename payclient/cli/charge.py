"""`payclient charge`: a file of charges, checked whole, then sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from payclient.cli import terminal
from payclient.cli.files import atomic_write, check_apart, check_regular
from payclient.cli.page import RunPage
from payclient.cli.plan import Plan, read_ledger
from payclient.cli.progress import Look, say_reasons
from payclient.cli.report import Report
from payclient.cli.run import Limits, Run
from payclient.cli.settings import ChargeOptions, Service, location_of, pair_of, profile_of
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.rows import ChargeFile, read_file
from payclient.rows.format import KEY, Format

__all__: list[str] = []

#: Errors shown of one file; all are counted.
MAX_ERRORS = 50

_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|"}


@Parameter(name="*", group=Group("How the file is written", sort_key=1))
@attrs.frozen(kw_only=True)
class FileOptions:
    """How the file is written; what is left out is found in the file, never guessed."""

    key: str = KEY
    """The column that is the client transaction id."""
    map: tuple[str, ...] = ()
    """FIELD=COLUMN, where a column has another name: phone_number=telefono. Repeatable."""
    set: tuple[str, ...] = ()
    """FIELD=VALUE, the same in every row: currency=USD. Repeatable."""
    ignore: tuple[str, ...] = ()
    """A column to pass over. Repeatable."""
    delimiter: str | None = None
    """Between columns: , ; tab or another character. Default: found."""
    encoding: str | None = None
    """Such as utf-8, cp1252 or utf-16. Default: found."""
    amounts: Literal["cents", "decimal"] = "cents"
    """Whole cents (1050), or units with decimals (10.50)."""
    decimal_mark: Literal[",", "."] | None = None
    """The decimal mark of the amounts. Default: found."""
    skip_bad: Path | None = None
    """Go on without the bad rows, and write them to this file, to be corrected and charged later."""

    def format(self) -> Format:
        """Return them checked. Raises `ConfigurationError`."""
        columns = _pairs("--map", self.map)
        return Format(
            columns=columns if self.key == KEY else {KEY: self.key, **columns},
            constants=_pairs("--set", self.set),
            ignored=frozenset(self.ignore),
            delimiter=self.delimiter and _NAMED_DELIMITERS.get(self.delimiter, self.delimiter),
            encoding=self.encoding,
            amounts=self.amounts,
            decimal_mark=self.decimal_mark,
        )


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, value = pair_of(option, each, "FIELD=COLUMN" if option == "--map" else "FIELD=VALUE")
        if name in pairs:
            raise ConfigurationError(f"{option} {name}: is given twice")
        pairs[name] = value
    return pairs


@Parameter(name="*", group=Group("What is asked and shown", sort_key=3))
@attrs.frozen(kw_only=True)
class ShownOptions:
    """What a run asks and shows."""

    dry_run: bool = False
    """Check the file, show what it would charge, and stop."""
    yes: bool = False
    """Do not ask."""
    report: Path | None = None
    """Write the outcome of each row to a .csv or .jsonl file."""
    html: Path | None = None
    """Write a page for people: totals, pictures, rows that need somebody."""
    quiet: bool = False
    """Show errors and warnings only."""
    json: bool = False
    """One JSON object a line on stdout, for machines."""


def charge(
    file: Annotated[
        Path, Parameter(help="A .csv, .xlsx, .ods or .jsonl file; its columns are the fields of a sale.")
    ],
    /,
    *,
    options: ChargeOptions = ChargeOptions(),
    written: FileOptions = FileOptions(),
    limits: Limits = Limits(),
    shown: ShownOptions = ShownOptions(),
) -> int:
    """Charge every row of a file, each customer once, and follow it to its end.

    Run again, the same command goes on where it stopped and charges nobody twice. A file has 100,000 rows at most.
    Exit codes: 0 all accepted; 3 finished, some refused or cancelled; 4 for some it is not known whether they paid, or
    they are not sent yet; 2 bad input, nothing sent; 130 interrupted, run it again.
    """
    if shown.quiet and shown.json:
        raise ConfigurationError("--quiet and --json: give one of them")
    service = None if shown.dry_run else options.service()
    kind, _, place = (options.ledger or "").partition(":")
    check_apart(
        {
            "FILE": file,
            "--report": shown.report,
            "--skip-bad": written.skip_bad,
            "--html": shown.html,
            "--ledger": Path(place) if kind == "sqlite" else None,
            "--token-file": options.token_file,
            "--profile": Path(options.profile) if options.profile else None,
        }
    )
    profile = profile_of(options.profile) if service is None else service.profile
    rows = read_file(file, written.format(), profile=profile)
    good = can_go_on(rows, written.skip_bad)
    left_out = None if written.skip_bad is None or not good else rows.bad_rows(written.skip_bad)
    if not good and service is not None:
        return 2
    if service is None or not shown.yes:
        plan = Plan(
            file=rows,
            known=asyncio.run(read_ledger(options.ledger, rows, limits)),
            limits=limits,
            profile=profile,
            base_url=options.base_url or profile.base_url,
            ledger=options.ledger,
            skip_bad=written.skip_bad,
        )
    if service is None:
        terminal.out().print(plan.picture(), soft_wrap=False)
        bad = f", and {terminal.counted(len(rows.bad), 'row')} that would be left out" if rows.bad else ""
        if good:
            terminal.say(
                f"{file.name} has {terminal.counted(len(rows.requests), 'good charge')}{bad}; nothing was sent"
            )
        return 0 if good else 2
    report = None if shown.report is None else Report(shown.report)
    page = None if shown.html is None else RunPage(shown.html, title=file.name, window=profile.sale_window)
    if not shown.yes:
        if plan.known.in_use:
            place = location_of(options.ledger or "")
            raise LedgerInUseError(f"the ledger {place} is in use by another run; nothing was sent")
        terminal.check_can_ask("nothing was sent")
        terminal.err.print(plan.picture(), soft_wrap=False)
        question = f"Send {terminal.counted(plan.to_send, 'charge')}?"
        if plan.to_send and not terminal.agrees(question, "nothing was sent"):
            return 2
        # The plan showed that the ledger is new.
        service = attrs.evolve(service, new_ledger=options.new_ledger or plan.known.new)
    if written.skip_bad is not None and left_out is not None and rows.bad:
        _write_skipped(written.skip_bad, left_out)
        terminal.say(f"left out: {terminal.counted(len(rows.bad), 'row')}, now in {written.skip_bad}")
    look: Look = "json" if shown.json else "quiet" if shown.quiet else "auto"
    return asyncio.run(charge_file(rows, service, limits, report, page=page, look=look))[0]


def can_go_on(file: ChargeFile, skip_bad: Path | None) -> bool:
    """Print the errors of a file; False: nothing of it may be sent."""
    errors = file.errors
    if not errors:
        return True
    for error in errors[:MAX_ERRORS]:
        terminal.say(str(error))
    more = f", of which the first {MAX_ERRORS} are above" if len(errors) > MAX_ERRORS else ""
    words = f"{file.path.name}: {terminal.counted(len(errors), 'fault')}{more}"
    if skip_bad is not None and file.requests:
        terminal.say(f"{words}; these rows are left out")
        return True
    terminal.complain(f"{words}; nothing was sent")
    if file.requests:
        terminal.say(
            f"--skip-bad FILE charges the other {terminal.counted(len(file.requests), 'row')}, and writes these to "
            "FILE"
        )
    return False


def _write_skipped(path: Path, content: bytes) -> None:
    check_regular("--skip-bad", path)
    try:
        if path.exists() and path.read_bytes() != content:
            # Perhaps somebody has corrected it there.
            raise ConfigurationError(
                f"--skip-bad {path.name}: is there already, with other rows; nothing was sent"
            )
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigurationError(f"--skip-bad {path.name}: cannot be written: {error.strerror}") from None


async def charge_file(
    file: ChargeFile,
    service: Service,
    limits: Limits,
    report: Report | None,
    *,
    page: RunPage | None = None,
    look: Look = "auto",
) -> tuple[int, Run]:
    """Charge the rows, print the outcome, and return the exit code with the run."""
    run = Run(file.requests, limits, report=report, page=page, look=look)
    code = await run.charge(service)
    files = {"report": report, "html": page}
    run.progress.end(code, **{name: str(one.path) for name, one in files.items() if one is not None})
    if look != "quiet":
        say_reasons(run.lines.values())
        if report is not None:
            terminal.say(f"the report is in {report.path}", whole=True)
        if page is not None:
            terminal.say(f"the page for people is in {page.path}", whole=True)
    if code == 130:
        terminal.say(f"interrupted; to go on: {terminal.again()}", whole=True)
    return code, run
