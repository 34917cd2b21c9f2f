"""What a run would do, shown before it does: rows, money, customers, what the ledger knows, how long it takes."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import attrs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from payclient.batch.pace import sends_per_second
from payclient.batch.results import passes
from payclient.cli import terminal
from payclient.cli.report import LABELS
from payclient.cli.run import CHUNK, Limits
from payclient.cli.settings import location_of
from payclient.errors import LedgerInUseError, LedgerMissingError
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.rows import ChargeFile
from payclient.schedule import ANSWERED, NORMAL_WINDOW

__all__: list[str] = []

#: Seconds of one exchange with the service.
EXCHANGE = 0.3

#: Of one sale under the schedule used unless told otherwise: mean seconds that it is open, for a window of 300 s, and
#: status queries. `benchmarks/schedule_table.py` computes them.
OPEN_SECONDS, QUERIES = 78.7, 33.1


@attrs.frozen
class Known:
    """What the ledger holds of the rows, before anything is sent."""

    #: Rows by state; rows without one are not counted.
    states: Counter[str] = attrs.field(factory=Counter)
    #: Refused rows that would be tried again.
    again: int = 0
    in_use: bool = False
    #: There is no ledger yet.
    new: bool = False


async def read_ledger(url: str | None, file: ChargeFile, limits: Limits) -> Known:
    """Look the rows up, and close the ledger again."""
    if not url or url.startswith("memory:"):
        return Known(new=True)
    try:
        book = await open_ledger(url, create=False)
    except LedgerInUseError:
        return Known(in_use=True)
    except LedgerMissingError:
        return Known(new=True)
    states, again = Counter[str](), 0
    try:
        keys = (request.client_transaction_id for request in file.requests)
        while chunk := list(itertools.islice(keys, CHUNK)):
            for record in (await book.get_many(chunk)).values():
                states[record.state] += 1
                again += record.state is State.REFUSED and (
                    limits.retry == "refused" or passes(record.evidence, record.error_type)
                )
    finally:
        await book.aclose()
    return Known(states, again)


@attrs.frozen(kw_only=True)
class Plan:
    """All that is known before the first charge."""

    file: ChargeFile
    known: Known
    limits: Limits
    #: Where the bad rows go.
    skip_bad: Path | None
    #: Where it goes; None where a dry run was not told.
    base_url: str | None
    profile: ServiceProfile
    ledger: str | None = attrs.field(repr=False)  # its address may hold a password

    @property
    def to_send(self) -> int:
        """Rows that are sent, as far as the ledger knows."""
        return len(self.file.requests) - self.known.states.total() + self.known.again

    def picture(self) -> RenderableType:
        """Return it for people: the money, then a line for each thing to know."""
        file, lanes = self.file, self.file.lanes
        money = terminal.simple_table("currency", numbers=("charges", "total"))
        for currency, (count, cents) in file.totals.items():
            money.add_row(currency, f"{count:,}", terminal.money(cents, currency))
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold", no_wrap=True)
        facts.add_column(overflow="fold")
        facts.add_row("file", Text(f"{file.path.name}: {file.description}"))
        bad = f", {len(file.bad):,} bad" if file.bad else ""
        left_out = f", which are left out and go to {self.skip_bad}" if bad and self.skip_bad else ""
        facts.add_row("rows", Text(f"{len(file.requests):,} good").append(bad, "bold red").append(left_out))
        longest = max(lanes.values(), default=0)
        if lanes:
            many = f"; one of them has {longest:,} charges, one at a time" if longest > 1 else ""
            facts.add_row("customers", f"{len(lanes):,}{many}")
        facts.add_row("ledger", self._ledger())
        facts.add_row("to send", self._to_send(longest))
        if self.base_url is not None:
            facts.add_row("to", Text(f"{self.base_url} as {self.profile.name}"))
        return Group(money, facts, Text(""))

    def _ledger(self) -> Text:
        if self.ledger is None:
            return Text("not told: give --ledger to see what was charged before")
        known, text = self.known, Text(location_of(self.ledger))
        if known.new:
            return text.append(" is new", "bold yellow").append(": it knows no earlier charge")
        if known.in_use:
            return text.append(" is in use by another run")
        if not known.states.total():
            return text.append(" knows none of the rows")
        counts = ", ".join(f"{known.states[state]:,} {state}" for state in LABELS if known.states[state])
        again = f" ({known.again:,} of them tried again)" if known.again else ""
        return text.append(f" knows {terminal.counted(known.states.total(), 'row')}: {counts}{again}")

    def _to_send(self, longest_lane: int) -> str:
        if not self.to_send:
            return "nothing"
        if self.file.bad and self.skip_bad is None:
            return f"nothing: a row is bad; --skip-bad FILE would send the other {self.to_send:,}"
        seconds, bound_by, queries = expected(self.profile, self.to_send, longest_lane, self.limits)
        asked = "no status queries: the profile names none"
        if self.profile.status is not None:
            asked = f"{float(f'{queries:.2g}'):,.0f} status queries"
        charges, about = terminal.counted(self.to_send, "charge"), terminal.duration(seconds)
        return f"{charges}; expect about {about} ({bound_by}), and {asked}"


def expected(
    profile: ServiceProfile, rows: int, longest_lane: int, limits: Limits
) -> tuple[float, str, float]:
    """Return about how many seconds a run takes, what it waits for most, and how many status queries it makes."""
    window, asks = profile.sale_window, profile.status is not None and limits.wait != 0
    # Seconds that a sale is open, on average.
    held = OPEN_SECONDS * window / NORMAL_WINDOW if profile.status is not None else window
    held = held if limits.wait is None else min(held, limits.wait)
    sends = sends_per_second(profile, limits.rate, limits.wait)
    parts = {
        "the time of each request": rows * EXCHANGE / limits.max_in_flight,
        "the rate of sends": 0.0 if limits.rate is None else rows / limits.rate,
        "queries_per_minute": 0.0 if sends is None or sends == limits.rate else rows / sends,
        "the prompts that may be open at once": rows * held / limits.max_pending,
        "the customer with most charges": min(longest_lane, rows) * held,
    }
    bound_by = max(parts, key=lambda part: parts[part])
    # The last ones answer late, or never.
    late = window if rows * (1 - ANSWERED) >= 1 and limits.wait is None else held
    seconds = max(parts[bound_by] - held, 0.0) + late
    most = float("inf") if profile.queries_per_minute is None else seconds * profile.queries_per_minute / 60.0
    return seconds, "people's answers" if seconds < 2 * late else bound_by, min(rows * QUERIES * asks, most)
