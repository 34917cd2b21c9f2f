"""When to query next: pure functions of time. All times are seconds.

People answer a push within half a minute or so, or never. To ask every two seconds for five minutes wastes most
queries on those who never answer; to ask less and less often, as machines are asked, misses the very moment at which
people answer. `Attentive` asks often while an answer is likely, and seldom before and after. How often exactly is the
one rule by which a given number of queries finds answers soonest: in proportion to the square root of the chance that
somebody who has not answered yet does so now (`answering.Crowd.worth`).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import attrs

from payclient.answering import POINTS, Crowd, between, people
from payclient.errors import ConfigurationError

__all__ = ["Attentive", "Fixed", "Forecast", "Schedule", "Steps"]

#: Gaps of the last queries: the first counts from the expiry, the others from one another.
LAST_QUERIES = (2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)

#: Ages of an expired sale at which it is queried again in the background.
AFTERTHOUGHTS = (600.0, 3600.0, 86400.0)

#: The push request's life that the figures above are made for (§8); they scale with a profile's own.
NORMAL_WINDOW = 300.0

#: However surely notifications arrive, routine queries go on: this part of them is taken to get lost.
LEAST_LOST = 0.03

#: How much rarer queries get as notifications arrive. At a half a query would keep its price in seconds of delay; a
#: little more turns a part of the delay that notifications save into fewer queries.
THINNING = 0.58


class Schedule(Protocol):
    """Says when to ask for a pending sale."""

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Seconds from a query made at this age of the sale to the next one.

        `part` is the part of a gap that is wanted (the first query of each sale comes after another part of one); a
        smaller part takes no longer.
        `heard` is the share of answers of which a notification came of late, from 0 to 1; a schedule may thin by it.
        """


def _positive(value: float | None, name: str) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ConfigurationError(f"schedule: {name} is a positive number")


@attrs.frozen
class Fixed:
    """Ask at a fixed beat."""

    seconds: float = 2.0

    def __attrs_post_init__(self) -> None:
        _positive(self.seconds, "seconds")

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """The same at every age."""
        return self.seconds * part


@attrs.frozen(init=False)
class Steps:
    """Ask at a beat for each stretch of the sale's life: pairs of the age (seconds) up to which it holds, and the gap.

    `Steps((60, 5), (300, 20))` asks every 5 s in the first minute and every 20 s afterwards, whatever the age.
    """

    steps: tuple[tuple[float, float], ...]

    def __init__(self, *steps: tuple[float, float]) -> None:
        until = [age for age, _ in steps]
        if not steps or until != sorted(until):
            raise ConfigurationError("schedule: steps are pairs of an age and a gap, by rising ages")
        for _, seconds in steps:
            _positive(seconds, "a gap")
        self.__attrs_init__(steps)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """The gap of the step that the age is in."""
        return part * next((seconds for until, seconds in self.steps if age < until), self.steps[-1][1])


@attrs.frozen(kw_only=True)
class Attentive:
    """Ask often while an answer is likely. One knob: `target_delay`, or `max_queries`.

    `target_delay` is the mean number of seconds from an answer to its discovery, without notifications; 1.0 unless
    given. `max_queries` is how many routine queries a customer who never answers gets; the last ones, after the
    expiry, are made all the same. `window` is the profile's `sale_window`: answers are presumed to scale with it.
    """

    target_delay: float | None = None
    max_queries: float | None = None
    window: float = NORMAL_WINDOW
    #: `worth` for which one query is made, and the tables from ages to `worth` and back.
    _price: float = attrs.field(init=False, eq=False, repr=False)
    _worth: Sequence[float] = attrs.field(init=False, eq=False, repr=False)
    _ages: Sequence[float] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.target_delay is not None and self.max_queries is not None:
            raise ConfigurationError("schedule: give target_delay or max_queries, not both")
        for name in ("target_delay", "max_queries", "window"):
            _positive(getattr(self, name), name)
        crowd = people(self.window)
        if self.max_queries is not None:
            price = crowd.worth[-1] / self.max_queries
        else:
            delay = self.window / NORMAL_WINDOW if self.target_delay is None else self.target_delay
            price = 2 * crowd.share * delay / crowd.effort
        for name, value in (("_price", price), ("_worth", crowd.worth), ("_ages", crowd.ages)):
            object.__setattr__(self, name, value)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Until the price of a query has come together; dearer, the more answers notifications bring."""
        price = self._price * part
        if heard:
            price /= max(1 - heard, LEAST_LOST) ** THINNING
        worth = self._worth[-1]
        due = price + between(self._worth, age / self.window) if age else price
        if due < worth:
            return between(self._ages, due / worth) - age
        # After the window it goes on as it ended.
        rate = (worth - self._worth[-2]) * POINTS / self.window
        return price / rate if age >= self.window else self.window + (due - worth) / rate - age


@attrs.frozen(kw_only=True)
class Forecast:
    """What a schedule costs and brings."""

    #: Queries for each sale, the one that finds the answer or the first after the expiry among them.
    queries: float
    #: Mean seconds from an answer to its discovery.
    delay: float
    #: No schedule reaches this delay with fewer queries.
    least_queries: float


def forecast(schedule: Schedule, crowd: Crowd, *, phases: int = 20) -> Forecast:
    """Work out what a schedule does with a crowd, no notifications coming: exactly, and averaged over the phases."""
    end = crowd.window + LAST_QUERIES[0] * crowd.window / NORMAL_WINDOW
    queries = delay = 0.0
    for number in range(phases):
        last = 0.0
        for age in _ages(schedule, (number + 0.5) / phases, crowd.window, end):
            left = crowd.unanswered(last)
            queries += left
            delay += left * crowd.undetected(last, age)
            last = age
    delay /= phases * crowd.share
    return Forecast(queries=queries / phases, delay=delay, least_queries=crowd.least_queries(delay))


def _ages(schedule: Schedule, spread: float, window: float, end: float) -> Iterator[float]:
    age = schedule.gap(0.0, part=first_part(spread))
    while age < window:
        yield age
        age += schedule.gap(age)
    yield end


def first_part(spread: float) -> float:
    """The part of a gap after which a new sale is first asked for, from its `phase`: one on average."""
    return 0.5 + spread


def phase(client_transaction_id: str) -> float:
    """A part of one, from 0 to 1, by the id alone: it spreads queries, and repeats after a restart."""
    return zlib.crc32(client_transaction_id.encode("utf-8", "surrogatepass")) / 2**32
