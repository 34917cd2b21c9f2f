"""`payclient schedule`: when sales are asked for, what that costs and brings, and how people really answered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from cyclopts import Parameter

from payclient.answering import Crowd, people
from payclient.cli import terminal
from payclient.cli.ledger_opening import opened
from payclient.cli.settings import LedgerUrl, Number, Profile, Whole, profile_of
from payclient.errors import ConfigurationError
from payclient.events import Evidence
from payclient.lifecycle import Record
from payclient.schedule import LAST_QUERIES, NORMAL_WINDOW, Attentive, Fixed, Forecast, forecast

__all__: list[str] = []

#: Rows of the plot, and characters of its bars.
ROWS, WIDTH = 16, 26

#: Answers fewer than these are no picture of how people answer.
FEW = 30


def schedule(
    *,
    target_delay: Annotated[
        float | None, Number, Parameter(help="Mean seconds from an answer to its discovery; 1 by default.")
    ] = None,
    max_queries: Annotated[
        int | None, Whole, Parameter(help="Instead: queries for a customer who never answers.")
    ] = None,
    profile: Profile = None,
    ledger: LedgerUrl = None,
) -> int:
    """Print when pending sales are asked for and what that costs; with --ledger, how people really answered."""
    if target_delay is not None and max_queries is not None:
        raise ConfigurationError("give --target-delay or --max-queries, not both")
    found = profile_of(profile)
    plan = Attentive(target_delay=target_delay, max_queries=max_queries, window=found.sale_window)
    presumed, crowd, count = people(found.sale_window), None, 0
    if ledger:
        answers, silent = asyncio.run(_answers(ledger))
        answers = [age for age in answers if age < found.sale_window]
        count = len(answers)
        if count:
            crowd = observed(answers, silent, found.sale_window)
    out = terminal.out()
    asked = _asked(plan, found.sale_window)
    out.print(
        f"A sale is pending for {found.sale_window:g} s at most. One that nobody answers is asked for",
        markup=False,
    )
    out.print(_wrapped(asked), markup=False)
    later = ", ".join(f"{when:g}" for when in _last(found.sale_window))
    out.print(f"  and, after its expiry, {later} s: then a wait ends.\n", markup=False)
    for line in plot(plan, presumed, crowd):
        out.print(line, markup=False)
    out.print()
    _compare(plan, "as presumed", presumed)
    if crowd is not None:
        _compare(plan, f"as {count:,} really answered", crowd)
    if ledger and count < FEW:
        terminal.say(f"the ledger has {count} answers: too few to judge by")
    rate = found.queries_per_minute
    if rate is not None:
        each = forecast(plan, crowd or presumed).queries
        out.print(
            f"\nThe profile allows {rate:g} queries a minute: {rate / each:.1f} new sales a minute can be followed "
            "so.\nWith more, those are asked for first whose answer has probably lain there longest.",
            markup=False,
        )
    return 0


async def _answers(url: str) -> tuple[list[float], int]:
    """Seconds after which people answered, by the ledger, and how many never did."""
    answers, silent = [], 0
    async with opened(url) as book:
        async for record in book.records():
            age = answer_age(record)
            if age is not None:
                answers.append(age)
            elif record.kind == "sale" and record.transaction_id is not None and record.state.decided:
                silent += 1
    return sorted(answers), silent


def answer_age(record: Record) -> float | None:
    """Seconds from the request to the answer: when it was notified, or else found; None where nobody answered."""
    if record.kind != "sale" or record.evidence is not Evidence.QUERY or not record.state.decided:
        return None
    seen = record.notified_at if record.notified_at is not None else record.decided_at
    if seen is None or record.expires_at is None or seen >= record.expires_at:
        return None
    return max(seen - record.created_at, 0.0)


def observed(answers: Sequence[float], silent: int, window: float) -> Crowd:
    """The crowd that a ledger shows: each answer counts alike, spread a little so that the sums are smooth."""
    logs = [math.log(max(age, window * 1e-4)) for age in answers]
    middle = sum(logs) / len(logs)
    spread = math.sqrt(sum((each - middle) ** 2 for each in logs) / len(logs)) or 0.5
    width = max(spread * len(logs) ** -0.2, 0.05) * math.sqrt(2)
    if len(logs) > 500:  # as good a picture, and quick
        logs = [logs[number * len(logs) // 500] for number in range(500)]

    def answered(age: float) -> float:
        if age <= 0:
            return 0.0
        at = math.log(age)
        return sum(1 + math.erf((at - each) / width) for each in logs) / (2 * len(logs))

    return Crowd(answered, silent / (silent + len(answers)), window)


def _asked(plan: Attentive, window: float) -> list[float]:
    ages, age = [], plan.gap(0.0)
    while age < window:
        ages.append(age)
        age += plan.gap(age)
    return ages


def _wrapped(ages: Sequence[float]) -> str:
    """The first and the last of them."""
    texts = [f"{age:.3g}" for age in ages]
    if len(texts) > 16:
        texts = [*texts[:8], "...", *texts[-3:]]
    return f"  {len(ages)} times: at {', '.join(texts)} s,"


def _last(window: float) -> list[float]:
    ages, age = [], window
    for gap in LAST_QUERIES:
        age += gap * window / NORMAL_WINDOW
        ages.append(round(age, 3))
    return ages


def plot(plan: Attentive, presumed: Crowd, crowd: Crowd | None) -> list[str]:
    """A line for each stretch of ages: the gap between queries, and the answers that come, presumed and real."""
    window = presumed.window
    edges = [window * (number / ROWS) ** 2 for number in range(ROWS + 1)]
    shown = [("presumed", presumed)] + ([] if crowd is None else [("in the ledger", crowd)])
    # Over stretches of unequal length: answers in a second of each.
    rates = {
        name: [
            (one.unanswered(start) - one.unanswered(end)) / (end - start) for start, end in pairwise(edges)
        ]
        for name, one in shown
    }
    most = max(max(rate) for rate in rates.values()) or 1.0
    width = WIDTH if len(shown) > 1 else 2 * WIDTH
    lines = [f"{'age, s':>13}  {'gap, s':>7}  " + "  ".join(f"{'answers a second, ' + name:{width}}" if len(shown) == 1
             else f"{'answers, ' + name:{width}}" for name, _ in shown)]  # fmt: skip
    for number, (start, end) in enumerate(pairwise(edges)):
        gap = plan.gap((start + end) / 2)
        bars = "  ".join(f"{_bar(rates[name][number] / most, width):{width}}" for name, _ in shown)
        lines.append(f"{_short(start):>5} - {_short(end):>5}  {_short(gap):>7}  {bars}".rstrip())
    return lines


def _short(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"


def _bar(part: float, width: int) -> str:
    """Eighths of a character."""
    eighths = round(part * width * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _compare(plan: Attentive, whose: str, crowd: Crowd) -> None:
    mine = forecast(plan, crowd)
    beat = forecast(Fixed(2 * mine.delay), crowd)
    out = terminal.out()
    out.print(f"If people answer {whose} ({1 - crowd.share:.0%} never do):", markup=False)
    out.print(f"  {_words(mine)};", markup=False)
    out.print(
        f"  a fixed beat needs {beat.queries:.1f} for it, and no schedule fewer than {mine.least_queries:.1f}",
        markup=False,
    )


def _words(one: Forecast) -> str:
    return f"{one.queries:.1f} queries a sale find an answer after {one.delay:.2g} s on average"
