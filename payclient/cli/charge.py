"""`payclient charge`: a file of charges, checked whole, then sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from payclient.cli import terminal
from payclient.cli.file_options import FileOptions, check_apart
from payclient.cli.html_report import Page
from payclient.cli.plan import Plan, ask_ledger, show, show_faults
from payclient.cli.progress import Look
from payclient.cli.report import Report
from payclient.cli.running import Run
from payclient.cli.settings import (
    BaseUrl,
    Flag,
    LedgerUrl,
    Number,
    Profile,
    Service,
    TokenFile,
    Wait,
    Whole,
    profile_of,
    service_of,
)
from payclient.cli.unfinished import Limits, Workload
from payclient.errors import ConfigurationError, LedgerInUseError
from payclient.rows.check import FileCheck, check_file
from payclient.rows.left_out import write_left_out

__all__: list[str] = []

_PLAIN = FileOptions()

#: Where `--help` shows the options.
_PACE = Group("How fast, and how long", sort_key=2)
_SHOWN = Group("What is asked and shown", sort_key=3)


def charge(
    file: Annotated[Path, Parameter(help="A .csv or .jsonl file; its columns are the fields of a sale.")],
    /,
    *,
    ledger: LedgerUrl = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    report: Annotated[
        Path | None, Parameter(group=_SHOWN, help="Write what became of each row to a .csv or .jsonl file.")
    ] = None,
    options: FileOptions = _PLAIN,
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

    Run again, the same command goes on where it stopped and charges nobody twice. Exit codes: 0 all accepted;
    3 finished, some refused or cancelled; 4 for some it is not known whether they paid, or they were never sent;
    2 bad input, nothing sent; 130 interrupted, run it again.
    """
    limits = Limits(
        max_in_flight=_one_or_more("--max-in-flight", max_in_flight),
        max_pending=_one_or_more("--max-pending", max_pending),
        rate=rate,
        wait=wait,
        retry=() if retry is None else (retry,),
    )
    if rate == 0:
        raise ConfigurationError("--rate: must be above 0")
    service = None if dry_run else service_of(base_url, profile, ledger, token_file)
    check_apart("--skip-bad", skip_bad, file)
    check_apart("--report", report, file)
    if quiet and json:
        raise ConfigurationError("--quiet and --json: give one of them")
    look: Look = "json" if json else "quiet" if quiet else "auto"
    known_profile = profile_of(profile) if service is None else service.profile
    with check_file(file, options.format(), profile=known_profile) as checked:
        good = can_go_on(checked, skip_bad)
        if not good and not dry_run:
            return 2
        if dry_run or not yes:
            known = asyncio.run(ask_ledger(ledger, checked, limits.retry))
            if known is not None and known.in_use and not dry_run:
                where = terminal.without_password(ledger or "")
                raise LedgerInUseError(f"the ledger {where} is in use by another run; nothing was sent")
            plan = Plan(
                checked=checked,
                known=known,
                limits=limits,
                profile=known_profile,
                base_url=base_url or known_profile.base_url,
                ledger=ledger,
                left_out=skip_bad,
            )
        if service is None:
            show(terminal.out(), plan.picture())
            if good:
                terminal.say(f"{file.name} {_verdict(checked)}; nothing was sent")
            return 0 if good else 2
        book = None if report is None else Report(report)
        page = None if html is None else Page(html, title=file.name, window=known_profile.sale_window)
        if not yes and not _confirmed(plan):
            return 2
        if skip_bad is not None and checked.bad_rows:
            write_left_out(checked, skip_bad)
            terminal.say(f"{checked.bad_rows:,} rows are left out; they are in {skip_bad}")
        return asyncio.run(charge_file(checked, service, limits, book, page=page, look=look))[0]


def can_go_on(checked: FileCheck, left_out: Path | None) -> bool:
    """Show the faults of a file; False: nothing of it may be sent."""
    if checked.good:
        return True
    show_faults(checked)
    name, count = checked.path.name, checked.fault_count
    more = f", of which the first {len(checked.faults)} are above" if count > len(checked.faults) else ""
    faults = f"{name}: {count:,} fault{'' if count == 1 else 's'}{more}"
    if checked.fatal is not None:
        terminal.complain(f"{checked.fatal}; nothing was sent")
        return False
    if left_out is None or not checked.good_rows:
        terminal.complain(f"{faults}; nothing was sent")
        if checked.good_rows:
            terminal.say(
                f"--skip-bad FILE charges the other {checked.good_rows:,} rows, and writes these to FILE"
            )
        return False
    terminal.say(f"{faults}; these rows are left out")
    return True


async def charge_file(
    checked: FileCheck,
    service: Service,
    limits: Limits,
    report: Report | None,
    *,
    page: Page | None = None,
    look: Look = "auto",
) -> tuple[int, Run]:
    """Pass two: charge the rows, print the outcome, and give the exit code with the run."""
    with checked.requests() as requests:
        run = Run(
            requests,
            Workload(checked.good_rows, limits, checked.longest_lane),
            report=report,
            page=page,
            look=look,
        )
        code = await run.charge(service)
    files = {"report": report, "html": page}
    run.progress.end(code, **{name: str(one.path) for name, one in files.items() if one is not None})
    if report is not None and look != "quiet":
        terminal.say(f"the report is in {report.path}", whole=True)
    if page is not None and look != "quiet":
        terminal.say(f"the page for people is in {page.path}", whole=True)
    if code == 130:
        terminal.say(f"interrupted; to go on: {terminal.again()}", whole=True)
    return code, run


def _verdict(checked: FileCheck) -> str:
    if not checked.bad_rows:
        return f"is good: {checked.good_rows:,} charges"
    return f"has {checked.good_rows:,} good charges, and {checked.bad_rows:,} rows that would be left out"


def _confirmed(plan: Plan) -> bool:
    terminal.check_can_ask("nothing was sent")
    show(terminal.err, plan.picture())
    return not plan.to_send or terminal.agrees(f"Send these {plan.to_send:,} charges?", "nothing was sent")


def _one_or_more(option: str, value: int) -> int:
    if value < 1:
        raise ConfigurationError(f"{option}: must be 1 or more")
    return value
