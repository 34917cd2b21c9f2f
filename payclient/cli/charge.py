"""`payclient charge`: a file of charges, checked whole, then sent."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import attrs
from cyclopts import Group, Parameter

from payclient.batch import ChargeRow
from payclient.cli import terminal
from payclient.cli.files import check_apart, unfit, write_file
from payclient.cli.page import RunPage
from payclient.cli.plan import Plan, in_words, read_ledger
from payclient.cli.progress import Look, next_steps
from payclient.cli.report import Report, carried_from
from payclient.cli.run import Run
from payclient.cli.settings import ChargeOptions, Limits, location_of
from payclient.cli.tables import Dialect, bad_rows
from payclient.cli.texts import counted, text
from payclient.errors import ConfigurationError
from payclient.rows import ChargeFile, read_file
from payclient.rows.cells import RowError
from payclient.rows.format import Format, delimiter_of

#: Reasons shown of the bad rows of one file; all are counted.
MAX_ERRORS = 50


@Parameter(name="*", group=Group("What is asked and shown", sort_key=3))
@attrs.frozen(kw_only=True)
class ShownOptions:
    """The options of what a run asks and shows."""

    dry_run: bool = False
    """Check the file, show what it would charge, and stop."""
    yes: bool = False
    """Do not ask."""
    skip_bad: Path | None = None
    """Go on without the bad rows, and write them to this file, to be corrected and charged later."""
    report: Path | None = None
    """Write the outcome of each row to a .csv, .xlsx or .jsonl file."""
    report_delimiter: str | None = attrs.field(default=None, converter=delimiter_of)
    """Between the columns of a CSV report: , ; tab or another character. Default: the file's, or the language's."""
    report_decimal_mark: Literal[",", "."] | None = None
    """The decimal mark of a CSV report. Default: the file's, or the language's."""
    html: Path | None = None
    """Write a page for people."""
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
    file: Path,
    /,
    *,
    options: ChargeOptions = ChargeOptions(),
    form: Annotated[
        Format, Parameter(name="*", group=Group("How the file is written", sort_key=1))
    ] = Format(),
    limits: Limits = Limits(),
    shown: ShownOptions = ShownOptions(),
) -> int:
    """Charge every row of a file, each customer once, and follow it to its end.

    Run again, the same command goes on where it stopped and charges nobody twice. A file has 100,000 rows at most.
    Exit codes: 0 all accepted; 3 finished, some not paid; 4 for some it is not known whether they paid, or they are not
    sent yet; 5 the report could not be written, so that no more was sent; 2 bad input, nothing sent; 130 interrupted,
    run it again.

    :param file: A .csv, .xlsx, .ods or .jsonl file; its columns are the fields of a sale.
    """
    look = shown.look()
    options.check(dry_run=shown.dry_run)
    profile = options.loaded_profile
    outputs = {"--report": shown.report, "--skip-bad": shown.skip_bad, "--html": shown.html}
    check_apart({"FILE": file, **outputs, **_input_files(options)})
    rows = read_file(file, form, profile=profile)
    can_send = print_errors(rows, shown.skip_bad)
    if not (can_send or shown.dry_run):
        return 2
    mark = shown.report_decimal_mark or form.decimal_mark
    carried = carried_from(rows, form.keep, delimiter=shown.report_delimiter, mark=mark)
    bad_file = _file_of_bad_rows(rows, shown.skip_bad, carried.dialect)
    report = Report(shown.report, carried) if shown.report else None
    window, html = profile.sale_window, shown.html
    page = RunPage(html, title=file.name, window=window, carried=carried) if html else None
    charges, skip_bad = charge_rows(rows), shown.skip_bad
    known = asyncio.run(read_ledger(options, limits, charges, {} if report is None else report.earlier))
    plan = Plan(file=rows, known=known, options=options, limits=limits, skip_bad=skip_bad, report=report)
    _show(plan, shown, can_send)
    if shown.dry_run:
        return 0 if can_send else 2
    terminal.ask(text("ask.send", count=plan.to_send), "nothing was sent", yes=shown.yes or not plan.to_send)
    if shown.yes and plan.replaced:  # else the plan has it
        terminal.say(text("plan.replaced", count=len(plan.replaced)))
    if bad_file is not None:
        write_file("--skip-bad", *bad_file)
        terminal.say(text("file.left_out", count=len(rows.bad), path=shown.skip_bad))
    run = Run(charges, limits, report=report, page=page, look=look)
    # A new ledger was agreed to by the plan. One that the plan has read, and that is gone by now, is not made anew.
    code = asyncio.run(run.charge(options, create=plan.known.new))
    run.end(code)
    if look != "quiet":
        for line in next_steps(run.tally, location_of(options.ledger), code, window):
            terminal.say(line, whole=True)
    return code


def _input_files(options: ChargeOptions) -> dict[str, Path | None]:
    """Return the files that every charge reads by its options: no output may go there."""
    kind, _, place = (options.ledger or "").partition(":")
    return {
        "--ledger": Path(place) if kind == "sqlite" else None,
        "--token-file": options.token_file,
        "--profile": Path(options.profile) if options.profile else None,
    }


def _file_of_bad_rows(file: ChargeFile, path: Path | None, dialect: Dialect) -> tuple[Path, bytes] | None:
    """Return the path and content of the file of the bad rows. `ConfigurationError`: another file is there."""
    if path is None or not (file.requests and file.bad):
        return None
    content = bad_rows(file, path, dialect)
    if path.exists() and path.read_bytes() != content:
        # Somebody may have corrected them there.
        raise unfit("--skip-bad", path, "is there already, with other rows")
    return path, content


def _show(plan: Plan, shown: ShownOptions, can_send: bool) -> None:
    """Print the plan. Raises `ConfigurationError` where nothing may be sent, or nobody can be asked.

    With `--yes` two things are printed: a total that is not the sum of the rows, since a row may lack its key and
    phone; and what the ledger knows of the rows, which may have the keys of another month.
    """
    file = plan.file
    if shown.dry_run:
        # With --json each line of stdout is an object.
        (terminal.err if shown.json else terminal.out()).print(plan.picture(), soft_wrap=False)
    elif not shown.yes:
        terminal.check_can_ask("nothing was sent")
        terminal.err.print(plan.picture(), soft_wrap=False)
    else:
        for fault in file.total_faults:
            terminal.say(in_words(fault))
        if plan.known.labels and not shown.quiet:
            terminal.say(plan.describe_ledger())
    plan.check()
    if plan.known.new and shown.yes and plan.options.ledger and not plan.options.may_make:
        raise plan.options.missing()
    if shown.dry_run and can_send:
        terminal.say(text("file.dry", name=file.path.name, count=len(file.requests)))


def print_errors(file: ChargeFile, skip_bad: Path | None) -> bool:
    """Print the errors of a file, and return whether its good rows may be sent."""
    groups: dict[tuple[str | None, str], list[RowError]] = {}
    for error in file.errors:
        groups.setdefault((error.column, error.reason), []).append(error)
    for errors in list(groups.values())[:MAX_ERRORS]:
        terminal.say(in_words(*errors))
    if not groups:
        return True
    words = f"{file.path.name}: {counted(len(file.errors), 'fault')}"
    if len(groups) > MAX_ERRORS:
        words += text("file.more", most=MAX_ERRORS)
    if skip_bad is not None and file.requests:
        terminal.say(text("file.left", words=words))
        return True
    terminal.complain(text("file.stopped", words=words))
    if file.requests:
        terminal.say(text("file.skip", count=len(file.requests)))
    return False


def charge_rows(file: ChargeFile) -> list[ChargeRow]:
    """Return the good rows of a file, in its order."""
    return [ChargeRow(request=row.request, purchase=row.purchase) for row in file.rows if row.request]
