"""`payclient demo`: 200 charges against the simulator, from the file to the outcome, in seconds."""

import csv
import random
import tempfile
from pathlib import Path

import attrs

from payclient.amounts import split_tax
from payclient.cli import terminal
from payclient.cli.charge import charge_rows
from payclient.cli.page import RunPage
from payclient.cli.report import Report, Tally
from payclient.cli.run import Run
from payclient.cli.settings import ChargeOptions, Limits
from payclient.cli.simulate import settings_of
from payclient.cli.texts import counted, label, text
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import State
from payclient.profile import find_profile
from payclient.rows import read_file
from payclient.simulator import Answers, Simulator

ROWS, CHARGES = 200, "charges.csv"
#: The status queries and the windows of its service.
PROFILE = Path(__file__).with_name("demo.toml")
CROWD = "approve=0.72,reject=0.12,ignore=0.16"
DELAY, SPREAD = 0.7, 0.5
COLUMNS = ("client_transaction_id", "phone_number", "country_code", "currency", "amount_with_tax", "tax")
#: The states of the report, each with its word of the simulator's counts.
_PAIRS = (
    (State.ACCEPTED, "approved"), (State.CANCELLED, "rejected"), (State.EXPIRED, "expired"), (State.REFUSED, "refused")
)  # fmt: skip
TOKEN = "demo"  # noqa: S105 - no secret


async def demo() -> int:
    """Charge 200 made-up customers of the simulator, and compare the report with what it did. Needs no settings."""
    place = Path(tempfile.mkdtemp(prefix="payclient-demo-"))
    refused = _write(place)
    profile = find_profile(str(PROFILE))
    settings = attrs.evolve(
        settings_of(profile), refuse_with=dict.fromkeys(refused, 22), forgets_expired=True
    )
    # The ledger is made here, so that the run does not warn of a new one.
    await (await SqliteLedger.open(str(place / "demo.db"))).aclose()
    answers = Answers.parse(CROWD, delay=(DELAY, SPREAD))
    async with Simulator(settings=settings, answers=answers) as simulator:
        charges = place / CHARGES
        terminal.say(text("demo.begin", count=ROWS, file=charges))
        options = ChargeOptions(
            base_url=simulator.url,
            profile=str(PROFILE),
            token_file=place / "token.txt",
            ledger=f"sqlite:{place / 'demo.db'}",
        )
        page = RunPage(place / "report.html", title=CHARGES, window=profile.sale_window)
        rows = charge_rows(read_file(charges, profile=profile))
        run = Run(rows, Limits(), report=Report(place / "report.csv"), page=page)
        code = await run.charge(options)
        run.end(code)
    if code == 130:
        terminal.say(text("demo.interrupted"))
        return code
    equal = _compare(run.tally, simulator)
    if left := run.tally.counts[State.EXPIRED]:
        terminal.say(text("demo.left", count=left))
    return 0 if equal else 4


def _compare(tally: Tally, simulator: Simulator) -> bool:
    """Print the reported counts beside those of the service, and return whether they are equal."""
    table = terminal.simple_table("outcome", numbers=("payclient reports", "the service did"))
    table.add_column("")
    twice = sum(times > 1 for times in simulator.created_per_client_id.values())
    equal = twice == 0
    for state, word in _PAIRS:
        count = getattr(simulator.counts, word)
        same = tally.counts[state] == count
        equal = equal and same
        words = f"[green]{text('demo.equal')}[/]" if same else f"[bold red]{text('demo.different')}[/]"
        table.add_row(label(state), str(tally.counts[state]), counted(count, word), words)
    terminal.out().print(table)
    customers, key = len(simulator.created_per_client_id), "demo.all_equal" if equal else "demo.differ"
    terminal.print_result(text(key, sales=simulator.counts.created, customers=customers, twice=twice))
    return equal


def _write(place: Path) -> frozenset[str]:
    """Write the charges and the token, and return the phones that the service will refuse."""
    (place / "token.txt").write_text(TOKEN, encoding="utf-8")
    chance = random.Random(7)  # noqa: S311 - the same charges in every demo
    phones = [f"09{number:08}" for number in chance.sample(range(10**8), ROWS)]
    with (place / CHARGES).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for number, phone in enumerate(phones, 1):
            price = split_tax(chance.randrange(300, 9000, 5), 15)
            rows.writerow((f"demo-{number:03}", phone, "593", "USD", price.amount_with_tax, price.tax))
    return frozenset(phones[12::25])
