"""Charges without `await`: for Flask, Django under WSGI, Celery tasks, scripts and notebooks.

All trackers of a process live on one event loop, which a daemon thread runs (`loop_thread`).
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import Context
from importlib import import_module
from itertools import chain, islice, repeat
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import payclient
from payclient import ChargeResult, ChargeRow, Outcome, PaymentForm, PrepareRequest, SaleRequest
from payclient.clock import Clock
from payclient.errors import PurchaseOpenError, TrackerClosedError, UsageError
from payclient.loop_thread import thread_of_process
from payclient.secret import Secret
from payclient.validation import check_type

__all__ = [
    "Charges",
    "PendingSale",
    "Tracker",
    "as_decided",
    "charge_all",
    "open_tracker",
    "open_tracker_from_env",
]

# Loaded now, and not as a first tracker opens: a child that is forked amid an import would wait for its end for ever.
for _name in ("memory", "sqlite", "postgres"):
    with suppress(ImportError):  # asyncpg is missing
        import_module(f"payclient.ledger.{_name}")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")


def _converted(
    convert: Callable[[Tracker, _R], _S],
    method: Callable[Concatenate[payclient.Tracker, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Tracker, _P], _S]:
    """Return a blocking method that calls a method of the async tracker and converts its result."""

    @functools.wraps(method)
    def call(self: Tracker, /, *args: _P.args, **options: _P.kwargs) -> _S:
        return convert(self, self._call(method, *args, **options))

    return call


def _blocking(
    method: Callable[Concatenate[payclient.Tracker, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Tracker, _P], _R]:
    return _converted(lambda _, result: result, method)


class _Same(Generic[_R]):
    """An attribute that reads the async sale's attribute of the same name."""

    def __init__(self, read: Callable[[payclient.PendingSale], _R]) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self.__doc__ = getattr(payclient.PendingSale, name).__doc__

    def __get__(self, one: Any, owner: type) -> _R:
        return self._read(one._source)


class Tracker:
    """`payclient.Tracker` without `await`, for any thread. Made by `open_tracker`.

    The tracker opens at its first call, or by `with`. Close it by `close`, at the end of the `with`, or at the end of
    the program. Each method does what the async method of its name does. `UsageError` is raised in two more cases: an
    event loop runs in the calling thread (a Jupyter cell may block all the same), or a fork calls a tracker that its
    parent opened. A caller who is interrupted (Ctrl-C) leaves what it waited for running. A thread that still waits
    60 s after the end of the main one gets `OutcomeUnknownError`, also from `sale`, whose charge may exist then.
    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[payclient.Tracker]]) -> None:
        self._make = make
        self._process: int | None = None
        self._opened: asyncio.Future[payclient.Tracker] | None = None
        self._lifetime: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> Self:
        """Open the tracker now. Raises what opening raises, `LedgerInUseError` for example; try again then."""
        self._run(self._aopen)
        return self

    def close(self) -> None:
        """Close the tracker as `payclient.Tracker.aclose` does, and its ledger. A fork leaves its parent's open."""
        if self._process in (None, os.getpid()):
            with suppress(TrackerClosedError):  # the end of the program closes it
                self._run(self._aclose)

    sale: Final = _converted(lambda self, sale: PendingSale(self, sale), payclient.Tracker.sale)
    find: Final = _converted(
        lambda self, sale: None if sale is None else PendingSale(self, sale), payclient.Tracker.find
    )
    notify: Final = _blocking(payclient.Tracker.notify)
    returned: Final = _blocking(payclient.Tracker.returned)
    prepare: Final = _blocking(payclient.Tracker.prepare)
    unresolved: Final = _blocking(payclient.Tracker.unresolved)
    history: Final = _blocking(payclient.Tracker.history)
    resolve: Final = _blocking(payclient.Tracker.resolve)
    health: Final = _blocking(payclient.Tracker.health)
    purchase: Final = _blocking(payclient.Tracker.purchase)

    @property
    def clock(self) -> Clock:
        """Where this tracker's time comes from."""
        return self._run(self._aopen).clock

    @property
    def profile(self) -> payclient.ServiceProfile:
        """The session's profile."""
        return self._run(self._aopen).profile

    def cancel(self, pending: PendingSale) -> Outcome:
        """Withdraw a push request that nobody answers, as `payclient.Tracker.cancel` does."""
        check_type("pending", pending, PendingSale)
        return self._call(payclient.Tracker.cancel, pending._source)

    def reverse(self, pending: PendingSale) -> Outcome:
        """Give a payment back, whole, as `payclient.Tracker.reverse` does."""
        check_type("pending", pending, PendingSale)
        return self._call(payclient.Tracker.reverse, pending._source)

    def live_form(
        self, key: str, make_request: Callable[[str], PrepareRequest], margin: float = 60.0
    ) -> PaymentForm:
        """Return a key's form as `payclient.Tracker.live_form` does. `make_request` is called in this thread."""
        check_type("make_request", make_request, Callable)
        made: dict[str, PrepareRequest] = {}

        def request_of(client_transaction_id: str) -> PrepareRequest:
            if client_transaction_id not in made:
                raise _WantedError(client_transaction_id)
            return made[client_transaction_id]

        while True:
            try:
                return self._call(payclient.Tracker.live_form, key, request_of, margin)
            except _WantedError as wanted:
                identifier: str = wanted.args[0]
            # The loop's thread wanted it: make it in this one, and call again.
            made[identifier] = make_request(identifier)

    def open_sales(self) -> list[PendingSale]:
        """Return every sale that is not decided and that this process knows."""
        sales = self._run(_do, self._run(self._aopen).open_sales)
        return [PendingSale(self, sale) for sale in sales]

    def outcomes(self, since: int = 0) -> Iterator[Outcome]:
        """Iterate over the durable feed as `payclient.Tracker.outcomes` does; it ends when the tracker closes."""
        return _iterate(self, self._run(self._aopen).outcomes(since))

    async def _aopen(self) -> payclient.Tracker:
        if self._closing.is_set():
            raise TrackerClosedError("the tracker is closed")
        if self._opened is None:
            self._process, loop = os.getpid(), asyncio.get_running_loop()
            self._opened = loop.create_future()
            # In a context of its own: the tracker outlives the web request that came first.
            self._lifetime = loop.create_task(self._live(self._opened), context=Context())
        return await asyncio.shield(self._opened)

    async def _live(self, opened: asyncio.Future[payclient.Tracker]) -> None:
        """Open the tracker, hand it over by `opened`, and keep it open until it is to close."""
        closers = thread_of_process().closers
        closers.add(self._aclose)
        try:
            async with self._make() as tracker:
                opened.set_result(tracker)
                await self._closing.wait()
        except BaseException as error:
            if opened.done():
                raise
            self._process = self._opened = self._lifetime = None
            opened.set_exception(error)
        finally:
            closers.discard(self._aclose)

    async def _aclose(self) -> None:
        self._closing.set()
        if self._lifetime is not None:
            await asyncio.shield(self._lifetime)

    def _run(self, work: Callable[_P, Coroutine[Any, Any, _R]], *args: _P.args, **options: _P.kwargs) -> _R:
        """Run a coroutine on the loop, in the process that opened the tracker, or any if none has."""
        if self._process not in (None, os.getpid()):
            raise UsageError(
                "this tracker was opened before a fork and belongs to the parent process: make one in each process, "
                "or make the first call of this one after the fork"
            )
        try:
            return thread_of_process().run(work, *args, **options)
        except PurchaseOpenError as error:
            if isinstance(error.pending, payclient.PendingSale):
                error.pending = PendingSale(self, error.pending)
            raise

    def _call(
        self,
        method: Callable[Concatenate[payclient.Tracker, _P], Coroutine[Any, Any, _R]],
        *args: _P.args,
        **options: _P.kwargs,
    ) -> _R:
        async def call() -> _R:
            return await method(await self._aopen(), *args, **options)

        return self._run(call)


async def _do(function: Callable[_P, _R], *args: _P.args, **options: _P.kwargs) -> _R:
    """Call a function of the async classes on the loop."""
    return function(*args, **options)


class _WantedError(Exception):
    """`live_form` wants the request of this id, which its caller's thread is to make."""


class PendingSale:
    """`payclient.PendingSale` without `await`: a sale that may exist. Made by the tracker."""

    __slots__ = ("_source", "_tracker")

    def __init__(self, tracker: Tracker, source: payclient.PendingSale) -> None:
        self._tracker = tracker
        self._source = source

    def __repr__(self) -> str:
        return repr(self._source)

    client_transaction_id: Final = _Same(lambda sale: sale.client_transaction_id)
    attempt: Final = _Same(lambda sale: sale.attempt)
    kind: Final = _Same(lambda sale: sale.kind)
    transaction_id: Final = _Same(lambda sale: sale.transaction_id)
    state: Final = _Same(lambda sale: sale.state)
    expires_at: Final = _Same(lambda sale: sale.expires_at)
    remaining: Final = _Same(lambda sale: sale.remaining)
    notified_at: Final = _Same(lambda sale: sale.notified_at)
    outcome: Final = _Same(lambda sale: sale.outcome)

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait for the outcome as `payclient.PendingSale.wait` does, at most `timeout` seconds if it is given."""
        return self._tracker._run(self._source.wait, timeout)

    def check(self) -> Outcome:
        """Query the service now, at most once a second for a sale, and return what is known.

        What was refused or given back is not queried.
        """
        return self._tracker._run(self._source.check)


def _iterate(tracker: Tracker, items: AsyncIterator[_R]) -> Iterator[_R]:
    async def following() -> _R:
        return await anext(items)

    with suppress(StopAsyncIteration):
        while True:
            yield tracker._run(following)


def as_decided(pendings: Iterable[PendingSale]) -> Iterator[Outcome]:
    """Iterate over the outcomes of several sales, in the order in which they are decided."""
    sales = list(pendings)
    for sale in sales:
        check_type("pending", sale, PendingSale)
    if sales:
        yield from _iterate(sales[0]._tracker, payclient.as_decided([sale._source for sale in sales]))


#: The next request of a batch, or the error in its place: `StopIteration` at its end.
_Read = SaleRequest | ChargeRow | Exception


class Charges(Iterator[ChargeResult]):
    """`payclient.batch.Charges` without `await`: the results of one batch, for `with` and `for`. Made by `charge_all`.

    The thread that iterates reads the requests while it waits for results. A list or tuple costs less than a generator.
    A caller who is interrupted loses no result.
    """

    def __init__(
        self,
        tracker: Tracker,
        requests: Iterable[SaleRequest | ChargeRow],
        charge: Callable[[payclient.Tracker, Any], payclient.batch.Charges],
    ) -> None:
        check_type("tracker", tracker, Tracker)
        check_type("requests", requests, Iterable)
        is_list = isinstance(requests, list | tuple)  # which the batch reads by itself
        self._requests: Iterator[_Read] = chain(() if is_list else requests, repeat(StopIteration()))
        self._read: asyncio.Queue[_Read] = asyncio.Queue()
        #: Requests that were read and are to be handed over, also where the reader was interrupted in between.
        self._unfed: list[_Read] = []
        source = requests if is_list else self._rows()
        self._tracker = tracker
        self._charges = charge(tracker._run(tracker._aopen), source)
        self._next: asyncio.Future[ChargeResult] | None = None

    def __enter__(self) -> Self:
        self._tracker._run(self._charges.__aenter__)
        return self

    def __exit__(self, *_: object) -> None:
        """Send nothing more and let what is in flight be recorded; the tracker follows what is open."""
        self._tracker._run(self._leave)

    def __next__(self) -> ChargeResult:
        while self._tracker._run(self._feed):
            try:
                # Read and kept by one call: an interrupt comes between two.
                self._unfed.extend(islice(self._requests, 1))
            except Exception as error:
                self._unfed.append(error)
        assert self._next is not None  # noqa: S101 - it was awaited
        try:
            result = self._next.result()
        except StopAsyncIteration:
            raise StopIteration from None
        except asyncio.CancelledError:
            raise TrackerClosedError("the tracker was closed while this was waiting") from None
        self._next = None
        return result

    def stop(self, why: str) -> None:
        """Send nothing more: what is pending is followed to its end, the rest comes out as not sent yet."""
        self._tracker._run(_do, self._charges.stop, why)

    @property
    def stopped(self) -> str | None:
        """Why nothing more is sent; None while the batch sends."""
        return self._charges.stopped

    @property
    def pending(self) -> int:
        """Sales of this batch that wait for a customer."""
        return self._charges.pending

    async def _feed(self) -> bool:
        """Hand over what was read, and wait. Return True where the batch wants a request before its next result."""
        read, self._unfed = self._unfed, []
        for each in read:
            self._read.put_nowait(each)
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._charges))
        all_taken = asyncio.ensure_future(self._read.join())  # the batch wants more then (`_rows`)
        either: list[asyncio.Future[Any]] = [self._next, all_taken]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        all_taken.cancel()
        return all_taken.done() and not (read and self._next.done())  # a result waits for one request at most

    async def _leave(self) -> None:
        if self._next is not None:
            self._next.cancel()
        await self._charges.__aexit__(None, None, None)

    async def _rows(self) -> AsyncIterator[SaleRequest | ChargeRow]:
        while not isinstance(request := await self._read.get(), StopIteration):
            if isinstance(request, Exception):
                raise request
            yield request
            self._read.task_done()  # the batch wants the next one


def _opener(function: Callable[_P, AbstractAsyncContextManager[payclient.Tracker]]) -> Callable[_P, Tracker]:
    """Return a function that makes a blocking tracker, not opened yet, from one that opens an async tracker."""

    @functools.wraps(function)
    def open_tracker(*args: _P.args, **options: _P.kwargs) -> Tracker:
        make = Secret(functools.partial(function, *args, **options))
        return Tracker(lambda: make.reveal()())

    return open_tracker


def _charger(
    function: Callable[Concatenate[payclient.Tracker, Any, _P], payclient.batch.Charges],
) -> Callable[Concatenate[Tracker, Iterable[SaleRequest | ChargeRow], _P], Charges]:
    """Return a function that charges through a blocking tracker, from one that charges through an async tracker."""

    @functools.wraps(function)
    def charge_all(
        tracker: Tracker, requests: Iterable[SaleRequest | ChargeRow], /, *args: _P.args, **options: _P.kwargs
    ) -> Charges:
        return Charges(tracker, requests, lambda opened, rows: function(opened, rows, *args, **options))

    return charge_all


#: Like `payclient.open_tracker`. The tracker that it returns opens at its first call, or by `with`.
open_tracker: Final = _opener(payclient.open_tracker)

#: Like `payclient.open_tracker_from_env`, whose `ConfigurationError` the first call or `with` raises.
open_tracker_from_env: Final = _opener(payclient.open_tracker_from_env)

#: Like `payclient.charge_all`, for `with` and `for`.
charge_all: Final = _charger(payclient.charge_all)
