"""The model behind `payclient.Attentive`: how people answer, the best schedule for it, and what any schedule brings.

Run: python benchmarks/schedule_table.py. Prints the numbers that `payclient/schedule.py` holds. Pure; all times are
seconds.

With F the chance that a sale of an age has been answered, S = 1 - F, f the answers per second and h = f / S: a given
number of queries finds answers soonest if it is spread in proportion to sqrt(h) (Keller 1974, optimum checking
schedules). Queries times mean delay are then (integral of sqrt(f S))^2 / (2 x the answered share), the least there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import attrs

from payclient.schedule import FINAL_QUERY_DELAYS, NORMAL_WINDOW, Schedule, first_part

#: Ages from 0 to the end of the window at which the sums are known; between them they are straight lines.
POINTS = 1200

#: Rows of the table in the package.
ROWS = 50


def lognormal(median: float, sigma: float) -> Callable[[float], float]:
    """Return the law of people of whom half answer by the median; sigma is how unlike one another they are."""

    def answered(age: float) -> float:
        return (1 + math.erf(math.log(age / median) / (sigma * math.sqrt(2)))) / 2 if age > 0 else 0.0

    return answered


@attrs.frozen(eq=False, slots=False)
class Crowd:
    """People who get a push request: some answer by the law `answered` within `window`, the share `silent` never."""

    answered: Callable[[float], float]
    silent: float
    window: float = NORMAL_WINDOW

    @property
    def step(self) -> float:
        """Seconds between two points of the grid."""
        return self.window / POINTS

    @cached_property
    def by(self) -> Sequence[float]:
        """The chance at each point that this sale has been answered (F)."""
        return [(1 - self.silent) * self.answered(self.step * point) for point in range(POINTS + 1)]

    @cached_property
    def waits(self) -> Sequence[float]:
        """The integral of `by` up to each point: seconds for which an answer has been there, on average."""
        halves = ((a + b) / 2 * self.step for a, b in pairwise(self.by))
        return list(accumulate(halves, initial=0.0))

    @cached_property
    def worth(self) -> Sequence[float]:
        """The integral of the square root of the hazard up to each point."""
        roots = (math.sqrt(max(b - a, 0.0) / (1 - (a + b) / 2) * self.step) for a, b in pairwise(self.by))
        return list(accumulate(roots, initial=0.0))

    @cached_property
    def share(self) -> float:
        """The part of the sales that is answered within the window (q)."""
        return self.by[-1]

    @cached_property
    def effort(self) -> float:
        """The integral of sqrt(f S)."""
        return sum(math.sqrt(max(b - a, 0.0) * (1 - (a + b) / 2) * self.step) for a, b in pairwise(self.by))

    def least_queries(self, delay: float) -> float:
        """Return the queries per sale below which no schedule has this mean delay."""
        return self.effort**2 / (2 * self.share * delay)

    def unanswered(self, age: float) -> float:
        """Return the chance that a sale of this age is not answered yet (S)."""
        return 1 - between(self.by, age / self.window)

    def undetected(self, since: float, age: float) -> float:
        """Return the mean seconds for which an answer has been there unseen, if a query at `since` saw none."""
        known = between(self.by, since / self.window)
        return (self._waited(age) - self._waited(since) - known * (age - since)) / (1 - known)

    def _waited(self, age: float) -> float:
        return between(self.waits, age / self.window) + max(age - self.window, 0.0) * self.share

    def ages(self, rows: int) -> list[float]:
        """Return the ages by which `worth` has come to even parts of its end: `worth` read backwards."""
        sums, ages, point = self.worth, [0.0], 0
        for number in range(1, rows + 1):
            wanted = sums[-1] * number / rows
            while point < POINTS - 1 and sums[point + 1] < wanted:
                point += 1
            ages.append((point + (wanted - sums[point]) / (sums[point + 1] - sums[point])) * self.step)
        return ages


def between(values: Sequence[float], part: float) -> float:
    """Read a table of POINTS and one values at a part of its length, on the straight line between two of them."""
    point = part * POINTS
    if point >= POINTS:
        return values[POINTS]
    before = int(point)
    value = values[before]
    return value + (values[before + 1] - value) * (point - before)


#: What is presumed of people, broad on purpose: no crowd is exactly so, and none is far from it.
PRESUMED = Crowd(lognormal(28.0, 1.1), 0.12)


@attrs.frozen(kw_only=True)
class Forecast:
    """What a schedule costs and brings."""

    #: Queries per sale, with the one that finds the answer or the first after the expiry.
    queries: float
    #: Mean seconds from an answer to its discovery.
    delay: float
    #: No schedule reaches this delay with fewer queries.
    least_queries: float


def forecast(schedule: Schedule, crowd: Crowd, *, phases: int = 20) -> Forecast:
    """Work out what a schedule does with a crowd that sends no notifications, averaged over the phases."""
    end = crowd.window + FINAL_QUERY_DELAYS[0] * crowd.window / NORMAL_WINDOW
    queries = delay = 0.0
    for number in range(phases):
        last = 0.0
        for age in _query_ages(schedule, (number + 0.5) / phases, crowd.window, end):
            left = crowd.unanswered(last)
            queries += left
            delay += left * crowd.undetected(last, age)
            last = age
    delay /= phases * crowd.share
    return Forecast(queries=queries / phases, delay=delay, least_queries=crowd.least_queries(delay))


def _query_ages(schedule: Schedule, spread: float, window: float, end: float) -> Iterator[float]:
    age = schedule.gap(0.0, part=first_part(spread))
    while age < window:
        yield age
        age += schedule.gap(age)
    yield end


def portion_for_a_second() -> float:
    """Return the part of all `worth` for which one query is made, for a mean delay of one second."""
    return 2 * PRESUMED.share / (PRESUMED.effort * PRESUMED.worth[-1])


def table() -> tuple[float, ...]:
    """Return the ages that `payclient.schedule` holds."""
    return tuple(round(age, 2) for age in PRESUMED.ages(ROWS))


if __name__ == "__main__":
    print(f"portion for one second of mean delay: {portion_for_a_second():.6f}")
    ages = table()
    for first in range(0, len(ages), 13):
        print(", ".join(f"{age:g}" for age in ages[first : first + 13]) + ",")
