"""A worker: one process with its event loop, its tracker and the application around it. It may stop at any step."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import payclient
from fake_service import form, hint, sale
from payclient.clock import Timer
from payclient.events import Decision
from payclient.lifecycle import Record
from payclient.schedule import Fixed
from virtual_loop import VirtualLoop
from worlds.service import Line
from worlds.store import SharingLedger, WorldLedger

if TYPE_CHECKING:
    from worlds.world import World

__all__ = ["Machine", "Process"]

_EPOCH = 1_700_000_000.0
#: Of a request for no purchase but its own.
_PLAIN: Mapping[str, Any] = MappingProxyType({})
#: What decides before what, where there are several.
_WORDS: Mapping[Any, int] = MappingProxyType({"Aceptado": 0, "Pendiente": 1, "Cancelado": 2})
#: Steps without time passing that no honest program makes.
_SPINNING = 20_000


class Machine:
    """Where processes run, one after another. Its wall clock is off, and may jump."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = 0
        self.offset = 0.0


class Process:
    """One life of a worker, from its start to its end; also the `Clock` of its tracker."""

    def __init__(self, world: World, machine: Machine) -> None:
        machine.starts += 1
        self.world = world
        self.machine = machine
        self.name = f"m{machine.number}.{machine.starts}"
        self.dead = False
        #: Standing still until somebody wakes it.
        self.paused = False
        self.steps = 0
        self.open = False
        self.opened_at = self.cancelled_at = 0.0
        #: When it stood still last, and went on.
        self.stood = (0.0, -math.inf)
        #: Calls and waits that the application has not heard the end of.
        self.waiting: dict[int, str] = {}
        self._lag = 0.0
        #: Seconds that it has stood still, and since when it does.
        self._stood = self._stands_since = 0.0
        #: When its last queries left.
        self.queries: deque[float] = deque()
        self._postponed: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._instant = (-1.0, 0)
        self._next_incident = world.draw_incident(self)
        self.loop = VirtualLoop(self.monotonic, self._failed, eager=world.settings.eager)  # type: ignore[abstract]  # no I/O in it
        self.ledger = (SharingLedger if world.settings.leases else WorldLedger)(self, world.store)
        settings = world.settings
        self._session = payclient.PaySession(
            "https://pay.example",
            self._token if settings.accounts == "rotated" and settings.seed % 2 else world.token(),
            profile=world.profile,
            timeouts=payclient.Timeouts(total=settings.total, connect=settings.total),
            transport=Line(world, self),
        )
        self.tracker = payclient.Tracker(
            self._session, self.ledger, status=self._status if settings.source else None,
            schedule=Fixed(settings.gap), clock=self,
        )  # fmt: skip
        self.loop.create_task(self._start())

    # --- Clocks

    def time(self) -> float:
        return _EPOCH + self.world.now + self.machine.offset

    def monotonic(self) -> float:
        return self.world.now - self._lag

    def call_at(self, when: float, callback: Callable[..., object], *args: object) -> Timer:
        return self.loop.call_at(when, callback, *args)

    def awake(self) -> float:
        """Seconds of the world's time without those in which it stood still."""
        return self.world.now - self._stood - (self.world.now - self._stands_since if self.paused else 0.0)

    # --- Stepping, stopping, ending

    @property
    def away(self) -> bool:
        """Dead or standing still."""
        return self.dead or self.paused

    def next_timer(self) -> float | None:
        """In the world's time; a trifle later after a suspension, so that no rounding makes it early."""
        when = self.loop.next_timer()
        return None if when is None else when + self._lag + (1e-6 if self._lag else 0.0)

    def run_ready(self) -> None:
        """Step until nothing is ready, or the process stops."""
        ready = self.loop.ready
        since = self.steps
        while ready and not self.dead and not self.paused:
            self.steps += 1
            if self.steps == self._next_incident:
                self.incident()
                return
            self.loop.step()
        now, steps = self._instant
        steps = steps if now == self.world.now else 0
        self._instant = (self.world.now, steps + self.steps - since)
        if self._instant[1] > _SPINNING:
            self.world.oracle.violated(f"{self.name} spins")

    def later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Something of this process: it waits while the process stands still, and is gone with it."""
        self.world.after(delay, self._own, callback, args)

    def _own(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.paused:
            self._postponed.append((callback, args))
        elif not self.dead:
            callback(*args)

    def is_hot(self) -> bool:
        """Whether an incident comes around this very commit."""
        return self.world.may_happen() and self.world.happens(self.world.settings.hot)

    def incident(self) -> None:
        """Crash, or stand still for a while."""
        world = self.world
        self._next_incident = 0
        if not world.may_happen():
            return
        world.incidents += 1
        settings, chance = world.settings, world.random.random() if world.settings.closes else 1.0
        if chance < settings.closes:
            world.note(f"{self.name} closes")
            self.do(self._close_and_start())
            return
        if chance < settings.closes + settings.cancels:
            self.cancel_all()
            return
        if world.random.random() < settings.crash:
            self.kill()
            world.after(world.random.choice((0.5, 20.0, 100.0, 900.0)), world.start, self.machine)
            return
        seconds = world.random.choice((5.0, 29.0, 31.0, 70.0, 400.0, 1300.0))
        suspended = world.settings.suspend and world.random.random() < 0.5
        world.note(f"{self.name} {'is suspended' if suspended else 'stops'} for {seconds:g} s")
        self.paused = True
        self._stands_since = world.now
        world.after(seconds, self.resume, seconds if suspended else 0.0)

    def cancel_all(self) -> None:
        """A process that ends cancels all tasks, also those that have not begun, and goes on for a while."""
        if self.cancelled_at or self.dead:
            return
        self.world.note(f"{self.name} cancels all tasks")
        self.cancelled_at = self.awake()
        for task in self.loop.tasks:
            task.cancel()
        self.later(self.world.random.choice((5.0, 200.0)), self.kill)
        self.world.after(self.world.random.choice((220.0, 900.0)), self.world.start, self.machine)

    def resume(self, lag: float = 0.0) -> None:
        """Go on, the monotonic clock having stood still for so long."""
        if not self.paused:
            return
        self._lag += lag
        self._stood += self.world.now - self._stands_since
        self.stood = self._stands_since, self.world.now
        self.paused = False
        self.world.note(f"{self.name} goes on")
        postponed, self._postponed = self._postponed, []
        for callback, args in postponed:
            self._own(callback, args)
        self._next_incident = self.world.draw_incident(self)

    def kill(self) -> None:
        """All that is not on disk or on its way is gone."""
        if not self.dead:
            self.world.note(f"{self.name} crashes at step {self.steps}")
            self.dead = True
            self.paused = False
            self.waiting.clear()

    def _failed(self, what: str) -> None:
        if not self.dead:
            self.world.oracle.violated(f"{self.name}: {what}")

    # --- The application

    def do(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Start something the application does."""
        self.loop.create_task(coroutine)

    async def _start(self) -> None:
        try:
            await self.tracker.__aenter__()
        except payclient.LedgerError:
            self.kill()
            self.world.after(5.0, self.world.start, self.machine)
            return
        self.open, self.opened_at = True, self.world.now
        self.world.note(f"{self.name} is open")

    async def _token(self) -> str:
        await asyncio.sleep(0.1)
        return self.world.token()

    async def _status(self, reference: payclient.TransactionRef) -> payclient.StatusReport | None:
        """The user's own way to ask: it fails as it likes, and may never answer."""
        world, settings = self.world, self.world.settings
        await asyncio.sleep(0.02)
        if world.happens(settings.hang, endless=True):
            world.note(f"{self.name} the status source hangs")
            await asyncio.get_running_loop().create_future()
        if world.happens(settings.query_fault, endless=True):
            raise world.random.choice((KeyError, payclient.PayError, TimeoutError, ValueError))("source")
        number, client_id = reference.transaction_id, reference.client_transaction_id
        by_number = {"client_id": client_id} if number is None else {"number": str(number)}
        found = world.service.find("A", **by_number)
        if not found:
            return None
        best = min(found, key=lambda each: _WORDS.get(each["state"], 3))
        return payclient.StatusReport(
            state=best["state"] if best["state"] in _WORDS else None,
            transaction_id=best["transactionId"],
            client_transaction_id=best.get("clientTransactionId", client_id if number is None else None),
            amount=best.get("amount"),
            currency=best.get("currency"),
        )

    async def close(self) -> None:
        """End in good order: every wait ends by an error of its own."""
        self.open = False
        await self.ending("closing", self.tracker.aclose())
        for _ in range(5):
            await asyncio.sleep(0)
        if self.waiting:
            await asyncio.sleep(60.0)  # for a read that is late, or the turn to look for a form's links
        if self.waiting:
            self.world.oracle.violated(f"{self.name} closed, and {list(self.waiting.values())} never ended")
        self.dead = True

    async def _close_and_start(self) -> None:
        await self.close()
        self.world.after(20.0, self.world.start, self.machine)

    async def buy(self, client_id: str, phone: str, tax: int, asked: Mapping[str, Any] = _PLAIN) -> None:
        """Bring a request, perhaps for a purchase, and wait for its outcome."""
        call = self.tracker.sale(sale(client_id, phone, tax=tax), **asked)
        pending = await self._ask(f"sale {client_id}", call, "ask" if asked else "sale", client_id)
        if pending is not None:
            self.world.oracle.said(pending.outcome)
            await self.wait(pending)

    async def get_form(self, key: str) -> None:
        """Ask for the purchase's form, and give its links to the customer."""
        margin = self.world.profile.form_window / 5
        call = self.tracker.live_form(key, form, margin)
        found = await self._ask(f"form {key}", call, "ask", key)
        if found is not None:
            self.world.customers.got_links(found.payment_id, margin)

    async def _ask(self, what: str, call: Awaitable[Any], verb: str, key: str) -> Any:
        """What an ask gives; None where it is refused, of which nothing may exist then."""
        oracle = self.world.oracle
        since = len(oracle.posts)
        try:
            return await self.ending(what, call)
        except payclient.TrackerClosedError:
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():
                oracle.violated(f"{key}: {what} was cancelled by nobody")
            raise
        except Exception as error:
            self._note_error(f"{verb} {key}", error)
            oracle.raised(self.name, key, since, error)
            if isinstance(error, payclient.AlreadyPaidError) and error.outcome is not None:
                oracle.said(error.outcome)
            return None

    async def come_back(self, query: str) -> None:
        """A browser came back from a form."""
        await self._told(f"return {query}", self.tracker.returned(query))

    async def give_back(self, client_id: str) -> None:
        """Give a payment back."""
        what = f"reverse {client_id}"
        if (pending := await self._answer(what, self.tracker.find(client_id))) is not None:
            await self._told(what, self.tracker.reverse(pending))

    async def _told(self, what: str, call: Awaitable[payclient.Outcome]) -> None:
        if (outcome := await self._answer(what, call)) is not None:
            self.world.note(f"{self.name} {what}: {outcome.state} {outcome.paid}")
            self.world.oracle.said(outcome)

    async def _answer(self, what: str, call: Awaitable[Any]) -> Any:
        """What a call gives; None where it raises, as it may."""
        try:
            return await self.ending(what, call)
        except payclient.PayError as error:
            self._note_error(what, error)
            return None

    def _note_error(self, what: str, error: Exception) -> None:
        self.world.note(f"{self.name} {what} raised {type(error).__name__}")

    async def wait(self, pending: payclient.PendingSale) -> None:
        """Wait, perhaps in a hurry first."""
        world, name = self.world, pending.client_transaction_id
        try:
            if world.random.random() < 0.3:
                try:
                    await self.ending(f"short wait {name}", pending.wait(world.random.uniform(0.0, 60.0)))
                except payclient.StillPendingError:
                    world.oracle.said(pending.outcome)
                await self.ending(f"check {name}", pending.check())
            outcome = await self.ending(f"wait {name}", pending.wait())
        except (payclient.TrackerClosedError, asyncio.CancelledError):
            return
        world.note(f"{self.name} heard of {name}: {outcome.state} {outcome.paid}")
        world.oracle.said(outcome)

    async def look(self, client_id: str) -> None:
        """Find a sale by its id, and wait for it."""
        try:
            pending = await self.ending(f"find {client_id}", self.tracker.find(client_id))
        except payclient.LedgerError:
            return
        if pending is not None:
            world = self.world
            world.oracle.said(pending.outcome)
            await self.wait(pending)
            await self._look_again(pending)

    async def _look_again(self, pending: payclient.PendingSale) -> None:
        """Check what is decided again: what was given back must show. Of queries that fail for ever enough are made."""
        world = self.world
        if not world.settings.purchases or not world.calm:
            return
        for _ in range(20 if world.settings.endless else 2):
            await asyncio.sleep(3.0)
            try:
                outcome = await self.ending(f"check {pending.client_transaction_id}", pending.check())
            except payclient.PayError:
                return
            world.oracle.said(outcome)

    async def hear(self, transaction_id: int, client_id: str) -> None:
        """A notification came in."""
        world = self.world
        # One that was made up before there was such a transaction told nobody of it, however late the answer to it is.
        transaction = world.service.transactions.get(transaction_id)
        notified = self.tracker.notify(hint(transaction_id, client_id))
        if (receipt := await self._answer(f"notify {client_id}", notified)) is None:
            return
        world.note(f"{self.name} notified of {client_id} {transaction_id}: {receipt}")
        if transaction is not None and transaction.client_id == client_id and world.settings.workers == 1:
            record = world.store.newest(client_id)
            if record is not None and record.state in (payclient.State.SENDING, payclient.State.UNKNOWN):
                world.service.name(transaction)

    async def decide(self, record: Record, event: Decision) -> None:
        """An operator decides."""
        await self._answer(f"operator {record.client_transaction_id}", self.ledger.apply(record, event))

    async def ending(self, what: str, call: Awaitable[Any]) -> Any:
        """Await what must end."""
        number, began = self.loop.next_number(), self.awake()
        self.waiting[number] = what
        try:
            return await call
        finally:
            self.waiting.pop(number, None)
            if self.awake() - began > self.world.settings.longest_wait and not self.dead:
                self.world.oracle.violated(f"{self.name}: {what} took {self.awake() - began:.0f} s")
