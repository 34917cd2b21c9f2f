"""When to query next: pure functions of time. All times are seconds.

People answer a push within half a minute or so, or never. A fixed interval spends most queries on those who never
answer; exponential back-off misses the moment at which people answer. A given number of queries finds answers soonest
if the queries are spread in proportion to the square root of the chance that a customer who has not answered yet does
so now. `benchmarks/schedule_table.py` computes that spread for the customers presumed here: half answer within 28 s
(lognormal, sigma 1.1), and 12 of 100 never do.
"""

import math
import zlib
from bisect import bisect_right
from operator import itemgetter
from typing import Any, Protocol

import attrs
from attrs.validators import optional

from payclient.errors import ConfigurationError
from payclient.validation import is_positive

__all__ = ["Attentive", "Fixed", "Schedule", "Steps"]

#: Delays of the final queries: the first after the expiry, each other one after the one before.
FINAL_QUERY_DELAYS = (2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 60.0)

#: Ages of an expired sale at which it is queried again in the background.
RECHECK_AGES = (600.0, 3600.0, 86400.0)

#: The push request's life that the figures above are made for (§8); they scale with a profile's own.
NORMAL_WINDOW = 300.0

#: The share of notifications that is presumed to get lost at least, so that routine queries never end.
LEAST_LOST = 0.03

#: How much rarer queries get as notifications arrive. At 0.5 a query would keep its price in seconds of delay; a larger
#: value turns a part of the delay that notifications save into fewer queries.
THINNING = 0.58

#: Ages of a sale between which equal parts of its queries are made, for a window of 300 s.
AGES = (
    0, 4.72, 7.68, 10.49, 13.27, 16.07, 18.9, 21.78, 24.73, 27.73, 30.81, 33.97, 37.2,
    40.52, 43.93, 47.43, 51.02, 54.71, 58.51, 62.41, 66.43, 70.57, 74.84, 79.24, 83.78, 88.46,
    93.3, 98.31, 103.49, 108.85, 114.41, 120.18, 126.17, 132.4, 138.88, 145.63, 152.67, 160.03, 167.72,
    175.78, 184.23, 193.11, 202.44, 212.28, 222.67, 233.66, 245.32, 257.69, 270.87, 284.94, 300,
)  # fmt: skip

#: The part of all queries that one query is, for a mean delay of one second.
PORTION = 0.010594

#: How people are presumed to answer, for the same window: the share that does, and the lognormal law of its ages.
ANSWERED, MEDIAN, SIGMA = 0.88, 28.0, 1.1
MEAN = MEDIAN * math.exp(SIGMA**2 / 2)


class Schedule(Protocol):
    """The rule of when a pending sale is queried."""

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Return the seconds from a query made at this age of the sale to the next one.

        `part` is 1, but for the first query of each sale: there it is between 0 and 1.5, which spreads the queries of
        sales that begin together. A smaller part must not take longer. `heard` is the recent share of answers of which
        a notification came, from 0 to 1; a schedule may query less by it.
        """


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if not is_positive(value):
        raise ConfigurationError(f"schedule: {attribute.name} must be a positive number")


@attrs.frozen
class Fixed:
    """Query at a fixed interval.

    - `seconds`: Between two queries, above 0.
    """

    seconds: float = attrs.field(default=2.0, validator=_positive)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Return the interval, at every age."""
        return self.seconds * part


def _is_step(step: object) -> bool:
    match step:
        case (int() | float() as age, gap):
            return age >= 0 and is_positive(gap)
    return False


@attrs.frozen(init=False)
class Steps:
    """Query at an interval for each stretch of the sale's life.

    `Steps((60, 5), (300, 20))` queries every 5 s in the first minute and every 20 s afterwards, whatever the age.

    - `steps`: Pairs of the age up to which an interval holds and the interval, in the order of the ages.
    """

    steps: tuple[tuple[float, float], ...]

    def __init__(self, *steps: tuple[float, float]) -> None:
        if not steps or not all(map(_is_step, steps)) or [*steps] != sorted(steps, key=itemgetter(0)):
            raise ConfigurationError(
                "schedule: steps must be pairs of an age and a positive gap, by rising ages"
            )
        self.__attrs_init__(steps)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Return the interval of the stretch that the age is in."""
        return part * next((seconds for until, seconds in self.steps if age < until), self.steps[-1][1])


@attrs.frozen(kw_only=True)
class Attentive:
    """Query often while an answer is likely. Set `target_delay` or `max_queries`, not both.

    - `target_delay`: The mean seconds from an answer to its discovery without notifications; 1.0 unless given.
    - `max_queries`: How many routine queries a customer who never answers gets; the final ones come on top.
    - `window`: The profile's `sale_window`: answers are presumed to scale with it.
    """

    target_delay: float | None = attrs.field(default=None, validator=optional(_positive))
    max_queries: float | None = attrs.field(default=None, validator=optional(_positive))
    window: float = attrs.field(default=NORMAL_WINDOW, validator=_positive)
    #: From one query to the next, the part of the routine queries of a whole window.
    _portion: float = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.target_delay is not None and self.max_queries is not None:
            raise ConfigurationError("schedule: target_delay must not be given beside max_queries")
        portion = PORTION
        if self.max_queries is not None:
            portion = 1 / self.max_queries
        elif self.target_delay is not None:
            portion *= self.target_delay * NORMAL_WINDOW / self.window
        object.__setattr__(self, "_portion", portion)

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        """Return the seconds in which one more portion of all queries is due; notifications make portions larger."""
        portion = self._portion * part
        if heard:
            portion /= max(1 - heard, LEAST_LOST) ** THINNING
        scale = self.window / NORMAL_WINDOW
        return _age_at(_part_at(age / scale) + portion) * scale - age


def _part_at(age: float) -> float:
    """Return the part of all queries that is made up to this age; beyond the window it grows on as at its end."""
    age = max(age, 0.0)  # a clock may have been set back
    row = min(bisect_right(AGES, age), len(AGES) - 1)
    return (row - 1 + (age - AGES[row - 1]) / (AGES[row] - AGES[row - 1])) / (len(AGES) - 1)


def _age_at(part: float) -> float:
    """Return the age up to which this part of all queries is made: `_part_at` read backwards."""
    rows = part * (len(AGES) - 1)
    row = min(int(rows), len(AGES) - 2)
    return AGES[row] + (rows - row) * (AGES[row + 1] - AGES[row])


def expected_lag(since: float, age: float, window: float = NORMAL_WINDOW) -> float:
    """Return the mean seconds for which an answer has been undetected, if a query at age `since` found none.

    That is the integral of (age - x) f(x) over the ages x since then, divided by S(since), with f the answers per
    second and S the share not answered yet. Under a binding rate the sale with the largest lag is queried first.
    """
    scale = window / NORMAL_WINDOW
    first, last = _deviation(since / scale), _deviation(age / scale)
    answered = _normal(last) - _normal(first)
    sum_of_ages = MEAN * scale * (_normal(last - SIGMA) - _normal(first - SIGMA))
    return ANSWERED * (age * answered - sum_of_ages) / (1 - ANSWERED * _normal(first))


def _deviation(age: float) -> float:
    """Return how far an age, at most the window, is from the median, in standard deviations of its logarithm."""
    return math.log(min(max(age, 1e-9), NORMAL_WINDOW) / MEDIAN) / SIGMA


def _normal(z: float) -> float:
    return (1 + math.erf(z / math.sqrt(2))) / 2


def first_part(spread: float) -> float:
    """Return the part of a gap after which a new sale is first queried, from its `phase`: 1 on average."""
    return 0.5 + spread


def phase(client_transaction_id: str) -> float:
    """Return a number from 0 to 1 by the id alone: it spreads queries, and is the same after a restart."""
    return zlib.crc32(client_transaction_id.encode("utf-8", "surrogatepass")) / 2**32
