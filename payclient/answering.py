"""How long people take to answer, as numbers that a schedule can be worked out from. Pure; all times are seconds.

Wanted are only two things: how likely an answer is just now, and what it costs to look away. `Crowd` says both, for
any law of answers, from sums over a grid of ages that are made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise

import attrs

__all__: list[str] = []

#: Ages from 0 to the end of the window at which the sums are known; between them they are straight lines.
POINTS = 1200


def lognormal(median: float, sigma: float) -> Callable[[float], float]:
    """The chance that somebody has answered by an age: half by the median, sigma says how unlike people are."""

    def answered(age: float) -> float:
        return (1 + math.erf(math.log(age / median) / (sigma * math.sqrt(2)))) / 2 if age > 0 else 0.0

    return answered


@attrs.frozen(eq=False, slots=False)
class Crowd:
    """People who get a push request: a part of them answers by the law `answered`, `silent` never do.

    `window` is how long they may (§8). Whoever would answer after it counts as silent.
    """

    answered: Callable[[float], float]
    silent: float
    window: float

    @property
    def step(self) -> float:
        """Seconds between two points of the grid."""
        return self.window / POINTS

    @cached_property
    def by(self) -> Sequence[float]:
        """By each point: the chance that this sale has been answered (F)."""
        return [(1 - self.silent) * self.answered(self.step * point) for point in range(POINTS + 1)]

    @cached_property
    def waits(self) -> Sequence[float]:
        """Up to each point: the sum of `by`, the seconds that an answer has lain there on average, nobody asking."""
        halves = ((a + b) / 2 * self.step for a, b in pairwise(self.by))
        return list(accumulate(halves, initial=0.0))

    @cached_property
    def worth(self) -> Sequence[float]:
        """Up to each point: the sum over time of the square root of the hazard.

        The hazard is the chance that somebody who has not answered yet answers in this very second. To ask in
        proportion to its square root makes the mean delay as small as a number of queries can.
        """
        roots = (math.sqrt(max(b - a, 0.0) / (1 - (a + b) / 2) * self.step) for a, b in pairwise(self.by))
        return list(accumulate(roots, initial=0.0))

    @cached_property
    def share(self) -> float:
        """The part of the sales that is answered within the window (q)."""
        return self.by[-1]

    @cached_property
    def effort(self) -> float:
        """Queries times mean delay, of the best schedule there can be, is the square of this over twice `share`.

        It is the sum of the square root of (answers a second x part not answered yet): Cauchy and Schwarz's bound.
        """
        return sum(math.sqrt(max(b - a, 0.0) * (1 - (a + b) / 2) * self.step) for a, b in pairwise(self.by))

    def least_queries(self, delay: float) -> float:
        """No schedule reaches this mean delay with fewer queries for each sale."""
        return self.effort**2 / (2 * self.share * delay)

    def unanswered(self, age: float) -> float:
        """The chance that a sale of this age is not answered yet (S)."""
        return 1 - between(self.by, age / self.window)

    def undetected(self, since: float, age: float) -> float:
        """Seconds that an answer has lain there unseen on average, the last query at age `since` having seen none."""
        known = between(self.by, since / self.window)
        return (self._lain(age) - self._lain(since) - known * (age - since)) / (1 - known)

    def _lain(self, age: float) -> float:
        return between(self.waits, age / self.window) + max(age - self.window, 0.0) * self.share

    @cached_property
    def ages(self) -> Sequence[float]:
        """`worth` read backwards: the ages by which it has come to even parts of its end."""
        sums, ages, point = self.worth, [0.0], 0
        for number in range(1, POINTS + 1):
            wanted = sums[-1] * number / POINTS
            while point < POINTS - 1 and sums[point + 1] < wanted:
                point += 1
            ages.append((point + (wanted - sums[point]) / (sums[point + 1] - sums[point])) * self.step)
        return ages


def between(values: Sequence[float], part: float) -> float:
    """A table of POINTS and one values, read at a part of its length: the straight line between two of them."""
    point = part * POINTS
    if point >= POINTS:
        return values[POINTS]
    before = int(point)
    value = values[before]
    return value + (values[before + 1] - value) * (point - before)


@lru_cache(maxsize=8)
def people(window: float = 300.0) -> Crowd:
    """What is presumed of people: half answer within 28 s, very unlike one another, 12 of 100 never do.

    Broad on purpose: it fits no crowd exactly, and none badly. It is stretched to other windows than 300 s.
    """
    return Crowd(lognormal(28.0 * window / 300.0, 1.1), 0.12, window)
