"""What the schedule of queries costs and brings, beside what is usual, over eight laws of how people answer.

Run: python benchmarks/bench_schedule.py. Virtual time: the first table is worked out exactly, the second is
the driver itself with a crowd.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import attrs

import payclient
from _measure import row
from crowd import PROFILE, Service, notify, now, push, tracking
from payclient.schedule import Attentive, Fixed, Schedule
from payclient.tracking.followup import Followed, Scheduled
from schedule_table import Crowd, Forecast, forecast, lognormal
from virtual_loop import run


def gamma_of_two(mean: float) -> Callable[[float], float]:
    return lambda age: 1 - math.exp(-2 * age / mean) * (1 + 2 * age / mean)


def mixture(age: float) -> float:
    return 0.6 * lognormal(12, 0.8)(age) + 0.4 * lognormal(60, 0.8)(age)


LAWS = {
    "lognormal, median 25 s, sigma 0.5": Crowd(lognormal(25, 0.5), 0.10),
    "lognormal, median 25 s, sigma 0.8": Crowd(lognormal(25, 0.8), 0.10),
    "lognormal, median 25 s, sigma 1.0": Crowd(lognormal(25, 1.0), 0.10),
    "median 15 s, sigma 0.6, 5 % silent": Crowd(lognormal(15, 0.6), 0.05),
    "median 40 s, sigma 0.9, 25 % silent": Crowd(lognormal(40, 0.9), 0.25),
    "gamma k=2, mean 30 s": Crowd(gamma_of_two(30), 0.10),
    "60/40 mixture, medians 12 s, 60 s": Crowd(mixture, 0.10),
    "exponential, mean 36 s": Crowd(lambda age: 1 - math.exp(-age / 36), 0.10),
}
USUAL = LAWS["lognormal, median 25 s, sigma 0.8"]


class Exponential:
    """1, 2, 4, ... seconds up to 30: how machines are asked. The gap after a query at age a is a + 1."""

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        return part * min(age + 1.0, 30.0)


class Waited:
    """5 s of silence, then every 2 s."""

    def gap(self, age: float, *, part: float = 1.0, heard: float = 0.0) -> float:
        return 5.0 + 2.0 * part if age == 0 else 2.0 * part


def at_delay(crowd: Crowd, delay: float) -> Forecast:
    """The forecast of the one of our schedules that has this mean delay."""
    low, high = 0.01, 100.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        if forecast(Attentive(target_delay=middle), crowd).delay > delay:
            high = middle
        else:
            low = middle
    return forecast(Attentive(target_delay=low), crowd)


def tables() -> None:
    others: dict[str, Schedule] = {
        "fixed 2 s": Fixed(2.0),
        "5 s + 2 s": Waited(),
        "1, 2, 4 .. 30 s": Exponential(),
    }
    print(f"queries @ mean delay in seconds; {'the bound at our delay, and ours':>40}")
    print(f"{'':36} {'bound':>6} {'ours':>11}  " + "  ".join(f"{name:>15}" for name in others))
    worst, ours = 0.0, Attentive(target_delay=1.0)
    for name, crowd in LAWS.items():
        mine = forecast(ours, crowd)
        cells = (forecast(other, crowd) for other in others.values())
        print(
            f"{name:36} {mine.least_queries:6.1f} {mine.queries:5.1f} @{mine.delay:4.2f}  "
            + "  ".join(f"{cell.queries:7.1f} @{cell.delay:6.2f}" for cell in cells)
        )
        for other in (Fixed(), Exponential()):
            shown = forecast(other, crowd)
            worst = max(worst, at_delay(crowd, shown.delay).queries / shown.queries)
        worst = max(worst, mine.queries / forecast(Fixed(2 * mine.delay), crowd).queries)
    print()
    one, fixed = at_delay(USUAL, 1.0), forecast(Fixed(2.0), USUAL)
    against = f"fixed 2 s: {fixed.queries:.1f} queries at {fixed.delay:.2f} s"
    row(f"queries at {one.delay:.2f} s mean delay", one.queries / fixed.queries, 0.83, against)
    print(f"      {one.least_queries / fixed.queries:8.2f}x  is the bound (Cauchy-Schwarz)")
    row("the worst of eight laws, at equal delay", worst, 1.0, "fixed, and exponential back-off")


# --- A crowd in virtual time


class Customers(Service):
    """The crowd of the tests (median 25 s, sigma 0.8, 10 % silent); a tracker follows each sale to its end."""

    def __init__(
        self,
        seed: int,
        *,
        queries_per_minute: float | None = None,
        notified: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(seed=seed)
        status = attrs.evolve(PROFILE.status, by_client_transaction_id=None)
        self.profile = attrs.evolve(PROFILE, queries_per_minute=queries_per_minute, status=status)
        #: The chance that the answer of a sale is notified, by the sale's number.
        self.notified = notified or (lambda number: 0.0)
        #: Per sale: seconds from the answer to the end of the wait; and from its creation.
        self.delays: dict[int, float] = {}
        self.lives: dict[int, float] = {}

    def prepare(self, tracker: payclient.Tracker) -> None:
        """Leave the tracker as it is shipped."""

    async def follow(self, arrivals: Iterator[float]) -> None:
        """One sale at each of these times, each followed to its end."""
        async with tracking(self, profile=self.profile) as tracker:
            self.prepare(tracker)
            self.answered = partial(self._answered, tracker)
            async with asyncio.TaskGroup() as waits:
                for number, when in enumerate(arrivals, 1):
                    await asyncio.sleep(max(when - now(), 0.0))
                    waits.create_task(self._follow(tracker, number))

    def _answered(self, tracker: payclient.Tracker, number: int, identifier: str) -> None:
        if self.random.random() < self.notified(number):
            asyncio.create_task(notify(tracker, number, identifier))  # noqa: RUF006 - it is over at once

    async def _follow(self, tracker: payclient.Tracker, number: int) -> None:
        began, pending = now(), await tracker.sale(push(f"order-{number}"))
        outcome = await pending.wait()
        self.lives[number] = now() - began
        if outcome.paid:
            self.delays[number] = now() - self.truth[pending.client_transaction_id][0]

    def mean_delay(self, first: int = 0, last: int = 10**9) -> float:
        """Of the sales numbered so."""
        return statistics.fmean(each for number, each in self.delays.items() if first <= number <= last)

    def mean_queries(self, first: int = 1) -> float:
        """Of the sales from this number on."""
        made = Counter(name for _, name in self.asked)
        return statistics.fmean(made[f"order-{number}"] for number in range(first, len(self.truth) + 1))


class RoundRobin(Customers):
    """The same poller, the same rate; whoever was asked least recently comes next, whatever his age."""

    def prepare(self, tracker: payclient.Tracker) -> None:
        tracker._poller._lines.lag = self._longest  # type: ignore[method-assign]  # that is the comparison

    @staticmethod
    def _longest(ask: Scheduled, now: float) -> float:
        assert isinstance(ask, Followed)
        return now - max(ask.queried_at, ask.created)


def every(seconds: float, count: int) -> Iterator[float]:
    return (number * seconds for number in range(count))


def poisson(rate: float, count: int, seed: int) -> Iterator[float]:
    random_ = random.Random(seed)  # noqa: S311 - it must repeat
    return itertools.accumulate(random_.expovariate(rate) for _ in range(count))


def notifications(count: int) -> None:
    learnt = 100  # sales after which the share of notifications is known
    crowd = Customers(1, notified=lambda number: 0.95)
    run(crowd.follow(every(3.0, count)))
    what = "queries, 95 % of notifications arriving, not told"
    row(what, crowd.mean_queries(learnt), 6.0, "the last included", unit=" ")
    row("mean delay meanwhile", crowd.mean_delay(learnt), 0.6, "answer to wait()", unit=" s")

    dead = count // 2
    dying = Customers(2, notified=lambda number: 0.95 if number <= dead else 0.0)
    run(dying.follow(every(3.0, count)))
    polling = Customers(2)
    run(polling.follow(every(3.0, count)))
    back = dying.mean_delay(dead + 51) / polling.mean_delay(dead + 51)
    after = dying.mean_delay(dead + 1, dead + 50)
    print(f"      {after:8.2f} s  mean delay of the 50 sales after their death")
    row("mean delay later than 50 sales after notifications died", back, 1.1, "polling alone")


def rationed(count: int) -> None:
    """30 queries a minute. The nearer the sales come to one every two seconds, the more of them are pending."""
    for arrivals in (0.3, 0.4, 0.5):
        figures = []
        for kind in (RoundRobin, Customers):
            crowd = kind(3, queries_per_minute=30.0)
            run(crowd.follow(poisson(arrivals, 2 * count, 4)))
            delays = sorted(crowd.delays.values())
            lives = [life for number, life in crowd.lives.items() if number > count]
            pending = arrivals * sum(lives) / len(lives)
            figures.append(
                (crowd.mean_delay(count), delays[int(0.95 * len(delays))], crowd.mean_queries(), pending)
            )
        (robin, robin95, robin_queries, _), (mine, mine95, queries, pending) = figures
        what = f"{pending:.0f} pending, {queries:.2f} queries a sale (round robin {robin_queries:.2f})"
        if queries > 1.1:
            row(f"mean delay at 30 queries a minute, {what}", mine / robin, 0.80, "round robin")
        else:
            print(f"      {mine / robin:8.2f}x  {what}: with one query for each there is nothing to choose")
        print(
            f"      {mine:8.1f} s  mean, {mine95:.1f} s p95; round robin {robin:.1f} s, {robin95:.1f} s p95"
        )


if __name__ == "__main__":
    tables()
    notifications(1500)
    rationed(1500)
