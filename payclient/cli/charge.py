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
from payclient.cli.plan import MAX_ERRORS, Plan, ask_ledger, show_errors
from payclient.cli.progress import Limits, Look
from payclient.cli.report import Report
from payclient.cli.run import Run
from payclient.cli.settings import (
    BaseUrl,
    Flag,
    LedgerUrl,
    NewLedger,
    Number,
    Profile,
    Service,
    TokenFile,
    Wait,
    Whole,
    location_of,
    profile_of,
    service_of,
)
from payclient.cli.summary import say_reasons
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.rows import ChargeFile, read_file
from payclient.rows.format import KEY, Format

__all__: list[str] = []

_NAMED_DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "bar": "|"}

#: Where `--help` shows the options.
_FILE = Group("How the file is written", sort_key=1)
_PACE = Group("How fast, and how long", sort_key=2)
_SHOWN = Group("What is asked and shown", sort_key=3)

_REPEATABLE = Parameter(negative=(), show_default=False)


@Parameter(name="*", group=_FILE)
@attrs.frozen(kw_only=True)
class FileOptions:
    """The options that say how the file is written; what is left out is found in the file, never guessed."""

    key: Annotated[str, Parameter(help="The column that is the client transaction id.")] = KEY
    map: Annotated[
        tuple[str, ...],
        _REPEATABLE,
        Parameter(help="FIELD=COLUMN, where a column has another name: phone_number=telefono. Repeatable."),
    ] = ()
    set: Annotated[
        tuple[str, ...],
        _REPEATABLE,
        Parameter(help="FIELD=VALUE, the same in every row: currency=USD. Repeatable."),
    ] = ()
    ignore: Annotated[tuple[str, ...], _REPEATABLE, Parameter(help="A column to pass over. Repeatable.")] = ()
    delimiter: Annotated[
        str | None, Parameter(help="Between columns: , ; tab or another character. Default: found.")
    ] = None
    encoding: Annotated[str | None, Parameter(help="Such as utf-8, cp1252 or utf-16. Default: found.")] = None
    amounts: Annotated[
        Literal["cents", "decimal"], Parameter(help="Whole cents (1050), or units with decimals (10.50).")
    ] = "cents"
    decimal_mark: Annotated[
        Literal[",", "."] | None, Parameter(help="The decimal mark of the amounts, . or , . Default: found.")
    ] = None

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
        name, equals, value = each.partition("=")
        if not equals or not name or not value:
            raise ConfigurationError(f"{option}: must be FIELD={'COLUMN' if option == '--map' else 'VALUE'}")
        if name in pairs:
            raise ConfigurationError(f"{option} {name}: is given twice")
        pairs[name] = value
    return pairs


def charge(
    file: Annotated[
        Path, Parameter(help="A .csv, .xlsx, .ods or .jsonl file; its columns are the fields of a sale.")
    ],
    /,
    *,
    ledger: LedgerUrl = None,
    new_ledger: NewLedger = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
    report: Annotated[
        Path | None, Parameter(group=_SHOWN, help="Write what became of each row to a .csv or .jsonl file.")
    ] = None,
    options: FileOptions = FileOptions(),
    skip_bad: Annotated[
        Path | None,
        Parameter(
            help="Go on without the bad rows, and write them to this file, to be corrected and charged later."
        ),
    ] = None,
    token_file: TokenFile = None,
    max_in_flight: Annotated[int, Whole, Parameter(group=_PACE, help="Requests at once.")] = 50,
    max_pending: Annotated[
        int, Whole, Parameter(group=_PACE, help="Prompts on people's phones at once.")
    ] = 1000,
    rate: Annotated[float | None, Number, Parameter(group=_PACE, help="Sends a second, at most.")] = None,
    wait: Annotated[Wait, Parameter(group=_PACE)] = None,
    retry: Annotated[
        Literal["refused"] | None, Parameter(group=_PACE, help="Try again what the service refused before.")
    ] = None,
    dry_run: Annotated[
        bool, Flag, Parameter(group=_SHOWN, help="Check the file, show what it would charge, and stop.")
    ] = False,
    yes: Annotated[bool, Flag, Parameter(group=_SHOWN, help="Do not ask.")] = False,
    html: Annotated[
        Path | None,
        Parameter(group=_SHOWN, help="Write a page for people: totals, pictures, rows that need somebody."),
    ] = None,
    quiet: Annotated[bool, Flag, Parameter(group=_SHOWN, help="Show errors and warnings only.")] = False,
    json: Annotated[
        bool, Flag, Parameter(group=_SHOWN, help="One JSON object a line on stdout, for machines.")
    ] = False,
) -> int:
    """Charge every row of a file, each customer once, and follow it to its end.

    Run again, the same command goes on where it stopped and charges nobody twice. A file has 100,000 rows at most.
    Exit codes: 0 all accepted; 3 finished, some refused or cancelled; 4 for some it is not known whether they paid, or
    they were never sent; 2 bad input, nothing sent; 130 interrupted, run it again.
    """
    for option, value in (
        ("--max-in-flight", max_in_flight),
        ("--max-pending", max_pending),
        ("--rate", rate),
    ):
        if value is not None and (value < 1 if isinstance(value, int) else value == 0):
            raise ConfigurationError(
                f"{option}: must be {'1 or more' if isinstance(value, int) else 'above 0'}"
            )
    if quiet and json:
        raise ConfigurationError("--quiet and --json: give one of them")
    look: Look = "json" if json else "quiet" if quiet else "auto"
    limits = Limits(
        max_in_flight=max_in_flight,
        max_pending=max_pending,
        rate=rate,
        wait=wait,
        retry=() if retry is None else (retry,),
    )
    service = None if dry_run else service_of(base_url, profile, ledger, token_file, new_ledger=new_ledger)
    kind, _, place = (ledger or "").partition(":")
    check_apart(
        {
            "FILE": file,
            "--report": report,
            "--skip-bad": skip_bad,
            "--html": html,
            "--ledger": Path(place) if kind == "sqlite" else None,
            "--token-file": token_file,
            "--profile": Path(profile) if profile else None,
        }
    )
    known_profile = profile_of(profile) if service is None else service.profile
    rows = read_file(file, options.format(), profile=known_profile)
    good = can_go_on(rows, skip_bad)
    left_out = rows.bad_rows(skip_bad) if good and skip_bad is not None and rows.bad else None
    if not good and not dry_run:
        return 2
    known = asyncio.run(ask_ledger(ledger, rows, limits.retry)) if dry_run or not yes else None
    plan = Plan(
        file=rows,
        known=known,
        limits=limits,
        profile=known_profile,
        base_url=base_url or known_profile.base_url,
        ledger=ledger,
        skip_bad=skip_bad,
    )
    if service is None:
        terminal.out().print(plan.picture(), soft_wrap=False)
        if good:
            terminal.say(f"{file.name} {_verdict(rows)}; nothing was sent")
        return 0 if good else 2
    book = None if report is None else Report(report)
    page = None if html is None else RunPage(html, title=file.name, window=known_profile.sale_window)
    if not yes:
        if known is not None and known.in_use:
            raise LedgerInUseError(
                f"the ledger {location_of(ledger or '')} is in use by another run; nothing was sent"
            )
        if not _confirmed(plan):
            return 2
        # Whoever agreed has seen that the ledger is new.
        service = attrs.evolve(service, new_ledger=new_ledger or (known is not None and known.new))
    if skip_bad is not None and left_out is not None:
        _write_skipped(skip_bad, left_out)
        terminal.say(f"{len(rows.bad):,} rows are left out; they are in {skip_bad}")
    return asyncio.run(charge_file(rows, service, limits, book, page=page, look=look))[0]


def can_go_on(file: ChargeFile, skip_bad: Path | None) -> bool:
    """Show the errors of a file; False: nothing of it may be sent."""
    errors = file.errors
    if not errors:
        return True
    show_errors(errors)
    more = f", of which the first {MAX_ERRORS} are above" if len(errors) > MAX_ERRORS else ""
    words = f"{file.path.name}: {len(errors):,} fault{'' if len(errors) == 1 else 's'}{more}"
    if skip_bad is None or not file.requests:
        terminal.complain(f"{words}; nothing was sent")
        if file.requests:
            terminal.say(
                f"--skip-bad FILE charges the other {len(file.requests):,} rows, and writes these to FILE"
            )
        return False
    terminal.say(f"{words}; these rows are left out")
    return True


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


def _verdict(file: ChargeFile) -> str:
    good = len(file.requests)
    if not file.bad:
        return f"is good: {good:,} charges"
    return f"has {good:,} good charges, and {len(file.bad):,} rows that would be left out"


def _confirmed(plan: Plan) -> bool:
    terminal.check_can_ask("nothing was sent")
    terminal.err.print(plan.picture(), soft_wrap=False)
    return not plan.to_send or terminal.agrees(f"Send these {plan.to_send:,} charges?", "nothing was sent")
