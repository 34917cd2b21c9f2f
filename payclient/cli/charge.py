"""`payclient charge`: a file of charges, checked whole, then sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.html_report import Page
from payclient.cli.progress import Look
from payclient.cli.report import Report
from payclient.cli.running import Limits, Run
from payclient.cli.settings import (
    BaseUrl,
    Flag,
    LedgerUrl,
    Number,
    Profile,
    Service,
    Wait,
    Whole,
    profile_of,
    service_of,
)
from payclient.cli.tables import plan_table
from payclient.errors import ConfigurationError, InvalidRequestError
from payclient.models import SaleRequest
from payclient.profile import ServiceProfile
from payclient.rows import KEY, FileCheck, check_file, read_rows

__all__: list[str] = []


def charge(
    file: Annotated[Path, Parameter(help="A .csv or .jsonl file; its columns are the fields of a sale.")],
    /,
    *,
    ledger: LedgerUrl = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    report: Annotated[
        Path | None, Parameter(help="Write what became of each row to a .csv or .jsonl file.")
    ] = None,
    key: Annotated[str, Parameter(help="The column that is the client transaction id.")] = KEY,
    max_in_flight: Annotated[int, Whole, Parameter(help="Requests at once.")] = 50,
    max_pending: Annotated[int, Whole, Parameter(help="Prompts on people's phones at once.")] = 1000,
    rate: Annotated[float | None, Number, Parameter(help="Sends a second, at most.")] = None,
    wait: Wait = None,
    retry: Annotated[
        Literal["refused"] | None, Parameter(help="Try again what the service refused before.")
    ] = None,
    dry_run: Annotated[
        bool, Flag, Parameter(help="Check the file, show what it would charge, and stop.")
    ] = False,
    yes: Annotated[bool, Flag, Parameter(help="Do not ask.")] = False,
    html: Annotated[
        Path | None, Parameter(help="Write a page for people: totals, pictures, rows that need somebody.")
    ] = None,
    quiet: Annotated[bool, Flag, Parameter(help="Show errors and warnings only.")] = False,
    json: Annotated[bool, Flag, Parameter(help="One JSON object a line on stdout, for machines.")] = False,
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
    service = None if dry_run else service_of(base_url, profile, ledger)
    checked = check(file, key, profile_of(profile) if service is None else service.profile)
    if checked is None:
        return 2
    if service is None:
        terminal.out().print(plan_table(checked.charges, checked.totals))
        terminal.say(f"{file.name} is good: {checked.rows:,} charges; nothing was sent")
        return 0
    if report is not None and report.exists() and report.samefile(file):
        raise ConfigurationError("--report: is the file of the charges itself")
    if quiet and json:
        raise ConfigurationError("--quiet and --json: give one of them")
    book = None if report is None else Report(report)
    page = None if html is None else Page(html, title=file.name, window=service.profile.sale_window)
    if not yes and not _confirmed(checked, service):
        terminal.complain("nothing was sent")
        return 2
    look: Look = "json" if json else "quiet" if quiet else "auto"
    return asyncio.run(charge_file(file, key, checked, service, limits, book, page=page, look=look))[0]


def check(file: Path, key: str, profile: ServiceProfile) -> FileCheck | None:
    """Pass one. Shows the faults and gives None where there are any."""
    checked = check_file(file, key=key, profile=profile)
    if checked.good:
        return checked
    for fault in checked.faults:
        terminal.say(fault)
    more = checked.fault_count - len(checked.faults)
    shown = f", of which the first {len(checked.faults)} are above" if more else ""
    terminal.complain(f"{file.name}: {checked.fault_count:,} faults{shown}; nothing was sent")
    return None


async def charge_file(
    file: Path,
    key: str,
    checked: FileCheck,
    service: Service,
    limits: Limits,
    report: Report | None,
    *,
    page: Page | None = None,
    look: Look = "auto",
) -> tuple[int, Run]:
    """Pass two: charge the rows, print the outcome, and give the exit code with the run."""
    run = Run(
        lambda: _requests(file, key, checked),
        checked.rows,
        limits=limits,
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


def _requests(file: Path, key: str, checked: FileCheck) -> Iterator[SaleRequest]:
    """The rows again, as they were checked."""
    for row in read_rows(file, key=key):
        if row.request is None or row.key is None or checked.lines.get(row.key) != row.line:
            raise InvalidRequestError(f"{file.name}: line {row.line} changed since it was checked")
        yield row.request


def _confirmed(checked: FileCheck, service: Service) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no terminal to ask on: give --yes; nothing was sent")
    terminal.err.print(plan_table(checked.charges, checked.totals))
    terminal.say(f"to {service.base_url} as {service.profile.name}, recorded in {service.ledger}")
    return terminal.agrees(f"Charge these {checked.rows:,} customers?")


def _one_or_more(option: str, value: int) -> int:
    if value < 1:
        raise ConfigurationError(f"{option}: must be 1 or more")
    return value
