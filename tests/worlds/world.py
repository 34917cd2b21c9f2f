"""One world: its time, its machines, and what happens in it, all by one seed."""

from __future__ import annotations

import gc
import heapq
import logging
import math
import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import attrs

from payclient import State
from payclient.events import DecidedAccepted, DecidedCancelled, DecidedRefused, Decision
from worlds.oracle import Oracle
from worlds.process import Machine, Process
from worlds.purchases import Customers, Till
from worlds.service import Service
from worlds.settings import QUIET, Settings
from worlds.store import Store

__all__ = ["Result", "World", "run", "stopped_everywhere"]


@attrs.frozen(kw_only=True)
class Result:
    """How a world went."""

    seed: int
    violations: tuple[str, ...]
    #: What happened, one line each.
    story: tuple[str, ...] = attrs.field(repr=False)
    posts: int


class World:
    """Runs chaos, then repairs everything, then restarts everybody, then asks the oracle."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.profile = settings.profile
        self.random = random.Random(f"world {settings.seed}")  # noqa: S311 - it must repeat
        self.now = 0.0
        #: Everything is repaired: no more faults.
        self.calm = False
        self.incidents = 0
        self.story: list[str] = []
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self._lives: list[Process] = []
        self.oracle = Oracle(self)
        self.till = Till(self)
        self.customers = Customers(self)
        self.store = Store(self)
        self.service = Service(self)
        self.machines = [Machine(number) for number in range(settings.workers)]
        self.processes: dict[int, Process] = {}
        #: Those that never stood still, and lived until everybody was restarted.
        self.lasting: list[Process] = []

    # --- Time

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> None:
        """Let something happen at a time."""
        self._number += 1
        heapq.heappush(self._events, (when, self._number, callback, args))

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Let something happen in so many seconds."""
        self.at(self.now + delay, callback, *args)

    def run(self, until: float) -> None:
        """Let time pass, to the first violation."""
        violations = self.oracle.violations
        while not violations:
            for process in tuple(self.processes.values()):
                if process.loop.ready and not process.away:
                    process.run_ready()
            if violations:
                return
            if any(each.loop.ready and not each.away for each in self.processes.values()):
                continue
            when = self._events[0][0] if self._events else math.inf
            for process in self.processes.values():
                if not process.away and (timer := process.next_timer()) is not None:
                    when = min(when, timer)
            if when > until:
                break
            self.now = max(self.now, when)
            for process in self.processes.values():
                if not process.away:
                    process.loop.wake()
            if self._events and self._events[0][0] <= self.now:
                _, _, callback, args = heapq.heappop(self._events)
                callback(*args)
        self.now = max(self.now, until)

    def note(self, what: str) -> None:
        """Write down what happened."""
        self.story.append(f"{self.now:10.3f} {what}")

    # --- Chance

    def happens(self, rate: float, *, endless: bool = False) -> bool:
        """Whether a fault of this rate comes now; an endless one also when all else is repaired."""
        quiet = self.calm and not (endless and self.settings.endless)
        return not quiet and rate > 0.0 and self.random.random() < rate

    def token(self) -> str:
        """What a process is given as its token now."""
        if self.settings.accounts == "another" and not self.calm and self.random.random() < 0.4:
            return "B"
        if self.settings.accounts == "rotated" and self.now > self.settings.chaos / 2:
            return "A2"
        return "A"

    def may_happen(self) -> bool:
        """Whether another crash or pause is still to come in this world."""
        return not self.calm and self.incidents < self.settings.incidents

    def draw_incident(self, process: Process) -> int:
        """The step of a process before which something happens to it; 0: none."""
        if self.settings.first_incident is not None:
            return self.settings.first_incident if self.incidents == 0 else 0
        if not self.may_happen() or self.random.random() < 0.3:
            return 0
        return process.steps + self.random.randint(1, self.random.choice((15, 60, 400)))

    # --- What happens

    def start(self, machine: Machine) -> None:
        """Start a process on a machine whose last one is dead."""
        old = self.processes.get(machine.number)
        if old is None or old.dead:
            process = Process(self, machine)
            self._lives.append(process)
            self.processes[machine.number] = process

    def somebody(self) -> Process | None:
        """A worker that is there, if any is."""
        there = [each for each in self.processes.values() if each.open and not each.dead]
        return self.random.choice(there) if there else None

    def let(self, action: str, *arguments: Any, again: float = 0.0) -> None:
        """Let any worker do this; again after so long, or never, if none is there."""
        if (process := self.somebody()) is not None:
            process.do(getattr(process, action)(*arguments))
        elif again:
            self.after(again, partial(self.let, action, *arguments, again=again))

    def bring(self, client_id: str, phone: str, tax: int) -> None:
        """A customer's request comes in, to any worker."""
        process = self.somebody()
        if process is None:
            self.after(10.0, self.bring, client_id, phone, tax)
            return
        process.do(process.buy(client_id, phone, tax))
        if self.random.random() < 0.3:  # a double click
            process.do(process.buy(client_id, phone, tax))
        if self.may_happen() and self.happens(self.settings.cancels):
            self.incidents += 1
            process.loop.call_soon(process.cancel_all)  # its send has not begun then

    def _forge(self, client_ids: list[str]) -> None:
        known = [transaction.number for transaction in self.service.transactions.values()]
        by_hand = (0, -7) if self.settings.again else ()
        number = self.random.choice([*by_hand, 7, 1000, *known])
        self.let("hear", number, self.random.choice([*client_ids, "nobody"]))

    def _storm(self, client_ids: list[str]) -> None:
        """Every transaction is notified again, and many that are not there, within a second or two."""
        self.note("a storm of notifications")
        for transaction in tuple(self.service.transactions.values()):
            for _ in range(self.random.choice((1, 1, 3))):
                delay = self.random.uniform(0.0, 2.0)
                self.after(delay, self.let, "hear", transaction.number, transaction.client_id)
        for _ in range(self.settings.flood):
            self.after(self.random.uniform(0.0, 2.0), self._forge, client_ids)

    def _operate(self) -> None:
        """An operator looks at what is unresolved, and decides it truthfully."""
        process = self.somebody()
        for record in self.store.all():
            client_id = record.client_transaction_id
            if process is None or record.kind == "form" or record.state not in (State.UNKNOWN, State.EXPIRED):
                continue
            if not self.oracle.settled(client_id):
                continue
            words = {each.state for each in self.oracle.transactions_of(client_id)}
            kind: type[Decision] = DecidedRefused
            if words:
                kind = DecidedAccepted if "Aceptado" in words else DecidedCancelled
            if record.transaction_id is not None and len(words) > 1:
                continue
            event = kind(at=process.time(), actor="Ana", reason="called")
            self.note(f"operator says {kind.__name__} of {client_id}")
            process.do(process.decide(record, event))

    def _jump(self) -> None:
        machine = self.random.choice(self.machines)
        if self.settings.purchases:
            # Whether a form's links are dead the wall clocks say: they differ by less than the links' life.
            machine.offset = self.random.choice((-0.7, -0.5, -0.1, 0.1, 0.5, 0.7)) * self.settings.window
        else:
            machine.offset += self.random.choice((-7200.0, -400.0, -20.0, 20.0, 400.0, 7200.0))
        self.note(f"m{machine.number} wall clock is off by {machine.offset:g} s")

    def _plan(self) -> list[str]:
        """Draw who comes when."""
        settings, r = self.settings, self.random
        client_ids = [f"order-{number}" for number in range(settings.orders)]
        for client_id in client_ids:
            phone = f"09841112{r.randrange(settings.customers):02}"
            begin = r.uniform(0.0, settings.chaos * 0.5)
            times = [begin]
            for _ in range(r.randint(0, 3)):
                times.append(begin + r.uniform(0.0, r.choice((1.0, 60.0, settings.chaos))))
            for _ in range(settings.again):
                when = times[-1] + r.choice((0.01, 0.2, 1.2)) * r.uniform(0.5, 1.0) * settings.window
                times.append(min(when, settings.chaos + settings.window))
            if r.random() < 0.5:
                # Brought again once absence may have been proven.
                times.append(begin + settings.absent_after * r.uniform(1.0, 1.5))
            for when in times:
                # What an earlier attempt created with another content is nobody's to tell apart.
                tax = 151 if r.random() < 0.1 and not settings.again else 150
                self.at(when, self.bring, client_id, phone, tax)
        if settings.purchases:
            self.customers.plan()
        if settings.jump:
            for _ in range(r.randint(1, 3)):
                self.at(r.uniform(0.0, settings.chaos), self._jump)
        if settings.forge:
            for _ in range(r.randint(1, 6) + (0 if settings.storms else settings.flood)):
                self.at(r.uniform(0.0, settings.chaos), self._forge, client_ids)
        for _ in range(settings.storms):
            self.at(r.uniform(settings.window, settings.chaos + settings.window), self._storm, client_ids)
        if settings.operator:
            for _ in range(r.randint(1, 3)):
                self.at(r.uniform(100.0, settings.chaos + settings.window), self._operate)
        return client_ids

    def live(self) -> Result:
        """Run it from its beginning to its end."""
        settings = self.settings
        for machine in self.machines:
            machine.offset = self.random.uniform(-2.0, 2.0)
            self.start(machine)
        client_ids = self._plan()
        self.run(settings.chaos)
        # Everything is repaired. Whoever lives goes on, and every wait of theirs must end.
        self.calm = True
        self.note("calm")
        for machine in self.machines:
            self.start(machine)
        for process in self.processes.values():
            process.resume()
        # What is shed for ever, or queued for a rate, is waited for as long as a wait may last.
        begun = self.now
        self.run(self.now + max(2.5 * settings.absent_after, settings.slow_wait))
        self._none_waits("calm", begun + settings.absent_after)
        self._restart(client_ids)
        if not self.oracle.violations:
            self.oracle.at_the_end()
        return self._end()

    def _restart(self, client_ids: list[str]) -> None:
        """Everybody ends, well or not, and begins anew: what is in the ledger is found and followed to its end."""
        ending = tuple(self.processes.values())  # a crash under way may start another one meanwhile
        self.lasting = [each for each in ending if each.open and not each.dead and each.awake() == self.now]
        for process in ending:
            if self.random.random() < 0.5:
                process.do(process.close())
            else:
                process.kill()
        self.run(self.now + self.settings.total + 6.0)
        for process in ending:
            if not process.dead:
                self.oracle.violated(f"{process.name} does not close")
        self.run(self.now + self.settings.total + 30.0)
        for machine in self.machines:
            self.start(machine)
        self.run(self.now + 1.0)
        for process in self.processes.values():
            for client_id in dict.fromkeys(
                (*client_ids, *(each.client_transaction_id for each in self.store.all()))
            ):
                process.do(process.look(client_id))
        settings = self.settings
        self.run(self.now + max(1.5 * settings.absent_after + settings.window, settings.slow_wait))
        self._none_waits("the restart")

    def _none_waits(self, after: str, opened_before: float = math.inf) -> None:
        """Note a violation where somebody still waits, but for who opened too late for a wait to end."""
        for process in self.processes.values():
            if process.waiting and process.opened_at < opened_before and not self.oracle.violations:
                waits = sorted(process.waiting.values())
                self.oracle.violated(f"{process.name}: after {after} still waits: {', '.join(waits)}")

    def _end(self) -> Result:
        for process in self._lives:
            process.dead = True
            process.loop.abandon()
        self.store.connection.close()
        result = Result(
            seed=self.settings.seed, violations=tuple(self.oracle.violations), story=tuple(self.story),
            posts=len(self.oracle.posts),
        )  # fmt: skip
        self._lives.clear()
        self.processes.clear()
        self._events.clear()
        return result


def run(seed: int, kinds: Collection[str] = (), **changes: Any) -> Result:
    """Run the world of a seed, of these kinds, with some of its settings changed."""
    settings = attrs.evolve(Settings.of(seed, kinds), **changes)
    before, disabled = random.getstate(), logging.root.manager.disable
    random.seed(seed)
    logging.disable(logging.CRITICAL)
    collects = gc.isenabled()
    gc.disable()
    try:
        return World(settings).live()
    finally:
        if collects:
            gc.enable()
        logging.disable(disabled)
        random.setstate(before)


def stopped_everywhere(seed: int, crash: float, *, every: int = 1) -> list[Result]:
    """The worlds of a seed with one process, stopped before one such step: by a crash, by this chance, or for longer
    than any time-out.
    """
    results = []
    for step in range(1, 10_000, every):
        changes: dict[str, Any] = {"workers": 1, "incidents": 1, "first_incident": step, "orders": 2}
        result = run(seed, {"lag"}, crash=crash, **(QUIET | changes))  # of no kind that the seed would draw
        if not any(f"crashes at step {step}" in line or "goes on" in line for line in result.story):
            break  # it has no more steps than that
        results.append(result)
    return results
