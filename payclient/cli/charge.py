"""`payclient charge`: a file of charges, checked whole, then sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from payclient.cli import terminal
from payclient.cli.files import atomic_write, check_apart, check_output
from payclient.cli.page import RunPage
from payclient.cli.plan import Known, Plan, in_words, read_ledger
from payclient.cli.progress import Look, next_steps, say_reasons
from payclient.cli.report import Report, carried_from
from payclient.cli.run import Run
from payclient.cli.settings import ChargeOptions, Count, Limits, Service, location_of, pair_of, profile_of
from payclient.cli.tables import Dialect
from payclient.cli.texts import reason, text
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.rows import ChargeFile, read_file
from payclient.rows.cells import RowError
from payclient.rows.format import KEY, Format

__all__: list[str] = []

#: Reasons shown of the bad rows of one file; all are counted.
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
    ignore_rest: bool = False
    """Pass over all columns of no known name."""
    sheet: str | None = None
    """A spreadsheet's sheet, by name or number. Default: the one with content."""
    header_row: Count | None = None
    """The line of the header. Default: found, also under a title."""
    keep: tuple[str, ...] = ()
    """A column that the report and the page take over, such as a name, and nothing else uses. Repeatable."""
    delimiter: str | None = None
    """Between columns: , ; tab or another character. Default: found."""
    encoding: str | None = None
    """Such as utf-8, cp1252 or utf-16. Default: found."""
    amounts: Literal["cents", "decimal"] | None = None
    """Whole cents (1050), or units with decimals (10.50). Default: cents, unless all of them are small."""
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
            ignore_rest=self.ignore_rest,
            sheet=self.sheet,
            header_row=self.header_row,
            kept=self.keep,
            delimiter=_delimiter(self.delimiter),
            encoding=self.encoding,
            amounts=self.amounts or "cents",
            decimal_mark=self.decimal_mark,
        )


def _delimiter(named: str | None) -> str | None:
    return named and _NAMED_DELIMITERS.get(named, named)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, value = pair_of(
            option, each, "must be FIELD=COLUMN" if option == "--map" else "must be FIELD=VALUE"
        )
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
    """Write the outcome of each row to a .csv, .xlsx or .jsonl file."""
    report_delimiter: str | None = None
    """Between the columns of a CSV report: , ; tab or another character. Default: the file's, or the language's."""
    report_decimal_mark: Literal[",", "."] | None = None
    """The decimal mark of a CSV report. Default: the file's, or the language's."""
    html: Path | None = None
    """Write a page for people: totals, pictures, rows that need somebody."""
    quiet: bool = False
    """Show errors and warnings only."""
    json: bool = False
    """One JSON object a line on stdout, for machines."""

    def look(self) -> Look:
        """Return how a run shows itself. Raises `ConfigurationError` for two ways at once."""
        if self.quiet and self.json:
            raise ConfigurationError("--quiet and --json: give one of them")
        return "json" if self.json else "quiet" if self.quiet else "auto"


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
    they are not sent yet; 5 the report could not be written, so that no more was sent; 2 bad input, nothing sent; 130
    interrupted, run it again.
    """
    look = shown.look()
    service = options.told_service() if shown.dry_run else options.service()
    _check_apart(file, options, written, shown)
    profile = profile_of(options.profile)
    rows = read_file(file, written.format(), profile=profile)
    good = can_go_on(rows, written.skip_bad)
    if not (good or shown.dry_run):
        return 2
    skipped, report, page = _outputs(rows, written, shown, profile.sale_window)
    earlier = report.earlier() if report else {}
    known = asyncio.run(read_ledger(options.ledger, rows, limits, earlier))
    plan = attrs.evolve(_plan(rows, known, options, written, limits), reported=earlier)
    _show_plan(plan, shown, service)
    if shown.dry_run or service is None:
        return _end_dry_run(rows, good)
    if not shown.yes and not _agrees(plan):
        return 2
    # Without --yes the plan showed that the ledger is new.
    service = attrs.evolve(service, new_ledger=service.new_ledger or (known.new and not shown.yes))
    if skipped is not None:
        skipped.write()
    code, run = asyncio.run(charge_file(rows, service, limits, report, page=page, look=look))
    if look != "quiet":
        files = {"FILE": file, "--report": shown.report, "--html": shown.html, "--skip-bad": written.skip_bad}
        _say_all(next_steps(run.tally, service.ledger, code, window=profile.sale_window, files=files))
    return code


def _say_all(lines: Iterable[str]) -> None:
    for line in lines:
        terminal.say(line, whole=True)


def _outputs(
    file: ChargeFile, written: FileOptions, shown: ShownOptions, window: float
) -> tuple[_Skipped | None, Report | None, RunPage | None]:
    """Return what a run writes beside the ledger: bad rows, a report, a page. Raises `ConfigurationError`."""
    delimiter = _delimiter(shown.report_delimiter)
    mark = shown.report_decimal_mark or written.decimal_mark
    carried = carried_from(file, written.keep, delimiter=delimiter, mark=mark)
    skipped = None
    if written.skip_bad is not None and file.requests and file.bad:
        skipped = _Skipped(written.skip_bad, file, carried.dialect)
    report = None if shown.report is None else Report(shown.report, carried)
    page = None
    if shown.html is not None:
        page = RunPage(shown.html, title=file.path.name, window=window, carried=carried)
    return skipped, report, page


def _plan(
    file: ChargeFile, known: Known, options: ChargeOptions, written: FileOptions, limits: Limits
) -> Plan:
    profile = profile_of(options.profile)
    return Plan(
        file=file,
        known=known,
        limits=limits,
        profile=profile,
        base_url=options.base_url or profile.base_url,
        ledger=options.ledger,
        has_token=options.has_token,
        skip_bad=written.skip_bad,
        guessed_cents=written.amounts is None and file.delimiter != "",
    )


def _check_apart(file: Path, options: ChargeOptions, written: FileOptions, shown: ShownOptions) -> None:
    """Raise `ConfigurationError` where one file is named for two things."""
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


def _show_plan(plan: Plan, shown: ShownOptions, service: Service | None) -> None:
    """Print the plan, unless `--yes` wants none. Raises `ConfigurationError` or `LedgerInUseError` for a bad one."""
    if plan.known.in_use and not shown.dry_run:
        place = location_of(plan.ledger or "")
        raise LedgerInUseError(f"the ledger {place} is in use by another run; nothing was sent")
    if shown.dry_run:
        terminal.out().print(plan.picture(), soft_wrap=False)
    elif not shown.yes:
        terminal.check_can_ask("nothing was sent")
        terminal.err.print(plan.picture(), soft_wrap=False)
    elif plan.replaced:
        terminal.say(text("plan.replaced", count=plan.replaced))
    plan.check("" if shown.report is None else shown.report.name)
    if plan.known.new and shown.yes and service is not None:
        service.check_consent()


def _end_dry_run(file: ChargeFile, good: bool) -> int:
    """Print that the file could be charged, where it could, and return the exit code."""
    if good:
        key, count = "file.dry_bad" if file.bad else "file.dry", len(file.requests)
        terminal.say(text(key, name=file.path.name, count=count, bad=len(file.bad)))
    return 0 if good else 2


def _agrees(plan: Plan) -> bool:
    """Ask whether the rows may be sent; where none is to be sent, there is nothing to ask."""
    question = text("ask.send", count=plan.to_send)
    return not plan.to_send or terminal.agrees(question, text("ask.nothing"))


def can_go_on(file: ChargeFile, skip_bad: Path | None) -> bool:
    """Print the errors of a file; False: nothing of it may be sent."""
    groups: dict[tuple[str | None, str], list[RowError]] = {}
    for error in file.errors:
        groups.setdefault((error.column, error.reason), []).append(error)
    for (column, why), errors in list(groups.items())[:MAX_ERRORS]:
        one = in_words(errors[0])
        if len(errors) > 1:
            lines = text(
                "file.lines", lines=terminal.listed([error.line for error in errors]), count=len(errors)
            )
            one = f"{lines}{f', {column}' if column else ''}: {reason(why)}"
        terminal.say(one)
    if not groups:
        return True
    more = "more" if len(groups) > MAX_ERRORS else "faults"
    words = f"{file.path.name}: {text(f'file.{more}', count=len(file.errors), most=MAX_ERRORS)}"
    if skip_bad is not None and file.requests:
        terminal.say(text("file.left", words=words))
        return True
    terminal.complain(text("file.stopped", words=words))
    if file.requests:
        terminal.say(text("file.skip", count=len(file.requests)))
    return False


class _Skipped:
    """The bad rows of a file, in a file of their own."""

    def __init__(self, path: Path, file: ChargeFile, dialect: Dialect) -> None:
        """Raises `ConfigurationError` where the path is not a place for them; nothing is written yet."""
        check_output("--skip-bad", path)
        self._path, self._count = path, len(file.bad)
        self._content = file.bad_rows(path, reason, delimiter=dialect.delimiter, mark=dialect.mark)
        with self._told():
            if path.exists() and path.read_bytes() != self._content:
                # Perhaps somebody has corrected it there.
                raise ConfigurationError(
                    f"--skip-bad {path.name}: is there already, with other rows; nothing was sent"
                )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = f"--skip-bad {self._path.name}: cannot be written: {error.strerror}"
            raise ConfigurationError(words) from None

    def write(self) -> None:
        """Write them. Raises `ConfigurationError`."""
        with self._told(), atomic_write(self._path) as file:
            file.write(self._content)
        terminal.say(text("file.left_out", count=self._count, path=self._path))


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
    run = Run(file.requests, limits, purchases=file.purchases, report=report, page=page, look=look)
    code = await run.charge(service)
    written = {"report": report if run.reported else None, "html": page}
    files = {name: str(one.path) for name, one in written.items() if one is not None}
    run.progress.end(code, **files)
    if look != "quiet":
        say_reasons(run.lines.values())
        for name, path in files.items():
            terminal.say(text(f"run.{name}", path=path), whole=True)
    return code, run
