"""`payclient.sync`: the same tracker without `await`, from any thread of any process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

import payclient
from fake_service import sale
from payclient import loop_thread, sync
from payclient.clock import SystemClock
from payclient.simulator import PAYPHONE, Answers, Fault, Simulator, SimulatorThread

ROOT = Path(__file__).parent.parent
PROFILE = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)

#: What of the async classes is not here: `aclose` is `close`, and the rest is for batches and the command line.
NOT_HERE = {
    "Tracker": {"aclose", "attempts"}, "PendingSale": {"record"}, "Charges": set[str](),
}  # fmt: skip


@pytest.fixture
def service() -> Iterator[SimulatorThread]:
    """The service in a thread; its customers approve at once."""
    answers = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(0.01, 0.0))
    with SimulatorThread(
        Simulator(token="secret", settings=attrs.evolve(PAYPHONE, queries_per_minute=None), answers=answers)
    ) as thread:
        yield thread


@pytest.fixture
def silent() -> Iterator[SimulatorThread]:
    """The service in a thread; its customers do nothing."""
    with SimulatorThread(Simulator(token="secret", settings=PAYPHONE)) as thread:
        yield thread


def opening(url: str, ledger: str = "memory:", **options: Any) -> sync.Tracker:
    return sync.open_tracker(
        url, "secret", ledger=ledger, profile=PROFILE, schedule=payclient.Fixed(0.02), **options
    )


def public(thing: type) -> set[str]:
    """The public names that a class and its own bases declare."""
    return {
        name
        for each in thing.__mro__
        if each.__module__.startswith("payclient")
        for name in vars(each)
        if not name.startswith("_")
    }


def shape(function: Callable[..., object]) -> list[tuple[str, object, str]]:
    """The parameters of a function, and what it returns as the blocking one spells it."""
    signature = inspect.signature(function)
    parameters = [
        (each.name, each.default, str(each.annotation)) for each in list(signature.parameters.values())[1:]
    ]
    return [
        *parameters,
        ("return", None, str(signature.return_annotation).replace("AsyncIterator", "Iterator")),
    ]


@pytest.mark.parametrize("name", NOT_HERE)
def test_each_async_method_is_here_with_its_signature(name: str) -> None:
    """A method that the async classes gain is missing here until it is added."""
    theirs, ours = getattr(payclient.batch if name == "Charges" else payclient, name), getattr(sync, name)
    assert public(theirs) - NOT_HERE[name] - public(ours) == set()
    extra = {"Tracker": {"open", "close"}, "PendingSale": set(), "Charges": {"stopped", "pending"}}[name]
    assert public(ours) - public(theirs) == extra
    for method in public(theirs) & public(ours):
        if inspect.isfunction(getattr(theirs, method)):
            assert shape(getattr(ours, method)) == shape(getattr(theirs, method)), method
            assert not inspect.iscoroutinefunction(getattr(ours, method))
        assert inspect.getdoc(inspect.getattr_static(ours, method)), method


def test_each_function_has_the_signature_of_the_async_one() -> None:
    """Also what `open_tracker` will take one day."""
    functions = {"open_tracker", "open_tracker_from_env", "charge_all", "as_decided"}
    assert set(sync.__all__) == {*NOT_HERE, *functions}
    for name in functions:
        theirs, ours = getattr(payclient, name), getattr(sync, name)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
        assert not inspect.iscoroutinefunction(ours)


def test_a_sale_from_any_thread(service: SimulatorThread) -> None:
    """Twenty threads charge, and each sees the others' sales."""
    with opening(service.url) as tracker:

        def charge(number: int) -> bool | None:
            pending = tracker.sale(sale(f"order-{number}", phone=f"09841112{number:02}"))
            assert (pending.kind, pending.attempt, pending.remaining > 0) == ("sale", 1, True)
            return pending.wait().paid

        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(charge, range(20))) == [True] * 20
        found = tracker.find("order-3")
        assert found is not None
        assert (found.state, found.outcome.paid, found.check().paid) == ("accepted", True, True)
        assert tracker.find("nobody") is None
        assert tracker.open_sales() == []
        assert tracker.profile is PROFILE
        assert tracker.clock.time() == pytest.approx(time.time(), abs=5)
    assert sum(service.created_per_client_id.values()) == 20


def test_the_time_left_is_told_in_any_thread_by_a_clock_of_the_shops(service: SimulatorThread) -> None:
    """No event loop runs where a page is made."""
    with opening(service.url, clock=SystemClock()) as tracker:
        pending = tracker.sale(sale("order-1"))
        assert pending.remaining == pytest.approx((pending.expires_at or 0.0) - time.time(), abs=1)


def test_the_feed_ends_when_the_tracker_closes(service: SimulatorThread) -> None:
    """A thread that iterates over the outcomes ends, and goes on later from a cursor."""
    tracker = opening(service.url)
    seen: list[payclient.Outcome] = []
    has_seen_all = threading.Event()

    def iterate() -> None:
        for outcome in tracker.outcomes():
            seen.append(outcome)
            if len(seen) == 3:
                has_seen_all.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    pendings = [tracker.sale(sale(f"order-{number}", phone=f"098411122{number}")) for number in range(3)]
    assert [outcome.paid for outcome in sync.as_decided(pendings)] == [True] * 3
    first, second, _ = (outcome for _, outcome in zip(range(3), tracker.outcomes(), strict=False))
    assert first.cursor is not None
    assert next(tracker.outcomes(since=first.cursor)) == second
    assert has_seen_all.wait(60)  # a loaded machine gives the thread its turn late
    tracker.close()
    thread.join(60)
    assert not thread.is_alive()
    assert {outcome.client_transaction_id for outcome in seen} == {"order-0", "order-1", "order-2"}
    assert list(sync.as_decided([])) == []
    with pytest.raises(payclient.TrackerClosedError):
        tracker.sale(sale("later"))


def test_forms_without_await(service: SimulatorThread) -> None:
    """`make_request` runs in the caller's thread, where its database is; who came back is told what is known."""
    threads = []

    def request(identifier: str) -> payclient.PrepareRequest:
        threads.append(threading.current_thread())
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return payclient.PrepareRequest(
            amount_without_tax=1150, currency="USD", store_id="S1", client_transaction_id=identifier,
            response_url="https://shop.example/back",
        )  # fmt: skip

    with opening(service.url) as tracker:
        form = tracker.live_form("cart-9", request)
        assert tracker.live_form("cart-9", request).payment_id == form.payment_id
        with pytest.raises(payclient.ConfigurationError, match="margin"):
            tracker.live_form("cart-9", request, margin=600)
        assert threads == [threading.current_thread()]
        back = service.pay(form.payment_id).partition("?")[2]
        assert tracker.returned(back).paid is True
        with pytest.raises(payclient.AlreadyPaidError):
            tracker.live_form("cart-9", request)
        assert tracker.prepare(request("single")).client_transaction_id == "single"
        assert tracker.purchase("cart-9").paid is True
        with pytest.raises(ZeroDivisionError):
            tracker.live_form("cart-10", lambda identifier: request(str(1 // 0)))


def test_an_open_purchase_in_an_error_can_be_waited_for(silent: SimulatorThread) -> None:
    """What `PurchaseOpenError` holds is without `await` too."""
    with opening(silent.url) as tracker:
        tracker.sale(sale("order-1"), purchase="cart-1")
        with pytest.raises(payclient.PurchaseOpenError) as caught:
            tracker.sale(sale("order-2"), purchase="cart-1")
        assert isinstance(caught.value.pending, sync.PendingSale)


def test_what_is_pending(silent: SimulatorThread) -> None:
    """A wait with a timeout, a notification, and a withdrawal."""
    with opening(silent.url) as tracker:
        pending = tracker.sale(sale("order-1"))
        assert repr(pending).startswith("<PendingSale order-1 pending")
        with pytest.raises(payclient.StillPendingError):
            pending.wait(timeout=0.05)
        assert pending.transaction_id is not None
        told = payclient.Notification(transaction_id=pending.transaction_id, client_transaction_id="order-1")
        assert tracker.notify(told) is payclient.Receipt.MATCHED
        assert pending.notified_at is not None
        assert pending.expires_at is not None
        assert [each.client_transaction_id for each in tracker.open_sales()] == ["order-1"]
        assert tracker.cancel(pending).paid is False


# --- Where it may be called


def test_an_event_loop_is_not_blocked(service: SimulatorThread) -> None:
    """Neither the caller's nor our own, as from `on_exchange`."""
    told: list[BaseException] = []

    def on_exchange(exchange: payclient.Exchange) -> None:
        try:
            tracker.find("order-1")
        except payclient.UsageError as error:
            told.append(error)

    tracker = opening(service.url, on_exchange=on_exchange)

    async def view() -> None:
        with pytest.raises(payclient.UsageError, match=r"asyncio\.to_thread"):
            tracker.sale(sale("order-1"))
        assert (await asyncio.to_thread(tracker.sale, sale("order-2"))) is not None

    asyncio.run(view())
    tracker.close()
    assert told


def test_a_notebook_cell_may_block(service: SimulatorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Jupyter kernel runs a cell on its own loop, in which blocking is what the user wants; ours is never blocked."""
    kernel = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    refused: list[str] = []

    def seen(exchange: payclient.Exchange) -> None:
        with pytest.raises(payclient.UsageError):
            tracker.open_sales()
        refused.append(exchange.operation)

    async def cell() -> bool | None:
        return tracker.sale(sale("order-1")).wait().paid

    with opening(service.url, on_exchange=seen) as tracker:
        assert asyncio.run(cell()) is True
    assert refused


def test_ipython_is_not_asked_where_no_loop_runs(
    service: SimulatorThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be there by name only: a stand-in, or half imported by another thread."""
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    tracker = opening(service.url)
    assert tracker.open_sales() == []
    tracker.close()


def test_the_tracker_outlives_the_context_of_its_first_call(service: SimulatorThread) -> None:
    """A call sees the caller's context; what lives on with the tracker does not keep it."""
    request: ContextVar[str] = ContextVar("request", default="none")
    seen = []
    tracker = opening(service.url, on_exchange=lambda exchange: seen.append(request.get()))

    def view() -> None:
        request.set("the first request")
        tracker.sale(sale("order-1"))

    copy_context().run(view)
    with tracker:
        pending = tracker.find("order-1")
        assert pending is not None
        assert pending.wait().paid is True
    assert seen[0] == "the first request"


def test_the_tracker_keeps_nothing_of_its_first_call(service: SimulatorThread) -> None:
    """A web request would stay in memory with all that it holds."""
    request: ContextVar[object] = ContextVar("request")
    tracker = opening(service.url)

    def view() -> weakref.ref[Any]:
        request.set(first := type("Request", (), {})())
        tracker.open()
        return weakref.ref(first)

    kept = copy_context().run(view)
    tracker.find("order-1")
    gc.collect()
    assert kept() is None
    tracker.close()


def test_one_that_did_not_open_is_tried_again(service: SimulatorThread, tmp_path: Path) -> None:
    """A ledger that another owns says what several processes need."""
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    with opening(service.url, ledger):
        second = opening(service.url, ledger)
        with pytest.raises(payclient.LedgerInUseError, match="PostgreSQL"):
            second.open()
    assert second.find("order-1") is None
    second.close()
    second.close()


def test_closing_waits_no_longer_than_drain(silent: SimulatorThread) -> None:
    """A thread that charges meanwhile gets the sale, which is unknown."""
    silent.fail_next(Fault("stall", when="after"))  # executed, and never answered
    with ThreadPoolExecutor() as pool:
        with opening(silent.url, drain=0) as tracker:
            charging = pool.submit(tracker.sale, sale("order-1"))
            until = time.monotonic() + 60
            while not silent.sales:
                assert time.monotonic() < until
                time.sleep(0.01)  # for the service
        assert charging.result(60).outcome.paid is None
    assert silent.created_per_client_id == {"order-1": 1}


def test_no_token_is_in_what_is_shown(tmp_path: Path) -> None:
    """Neither in a repr nor in the local variables of the frames that an error tracker would send."""
    token = "token-" * 4
    tracker = sync.open_tracker("http://127.0.0.1:9", token, ledger=f"sqlite:{tmp_path}", profile=PROFILE)
    with pytest.raises(payclient.PayError) as caught:
        tracker.find("order-1")
    frames = [dict(frame.frame.f_locals) for frame in inspect.getinnerframes(caught.tb)]
    del frames[0]  # this one
    assert len(frames) > 3
    assert token not in repr([frames, vars(tracker), tracker, caught.value])


def test_an_exit_in_a_callback_ends_no_thread(service: SimulatorThread) -> None:
    """The caller gets it, and the next call works."""

    class Leaving(SystemClock):
        leaves = False

        def time(self) -> float:
            if self.leaves:
                sys.exit(3)
            return super().time()

    clock = Leaving()
    with opening(service.url, clock=clock) as tracker:
        tracker.open()
        clock.leaves = True
        with pytest.raises(SystemExit):
            tracker.health()
        clock.leaves = False
        assert tracker.sale(sale("order-1")).wait().paid is True


def test_a_sale_is_followed_whose_hook_exits(service: SimulatorThread) -> None:
    """Its caller leaves, and the process goes on."""

    def leave(exchange: payclient.session.Exchange) -> None:
        if exchange.operation == "sale":
            sys.exit(3)

    with opening(service.url, on_exchange=leave) as tracker:
        with pytest.raises(SystemExit):
            tracker.sale(sale("order-1"))
        pending = tracker.find("order-1")
        assert pending is not None
        assert pending.wait(60).paid is True
    assert service.created_per_client_id == {"order-1": 1}


# --- Batches


def rows(count: int, prefix: str = "row") -> Iterator[payclient.SaleRequest]:
    for number in range(count):
        yield sale(f"{prefix}-{number}", phone=f"09{len(prefix)}4{number:06}")


@pytest.mark.parametrize("kind", [list, iter])
def test_a_batch(service: SimulatorThread, kind: Callable[[Iterator[Any]], Any]) -> None:
    """Every request gives one result, those of one purchase too; running it again sends nothing."""
    with opening(service.url) as tracker:
        for _ in range(2):
            of_one_purchase = (payclient.ChargeRow(request=each, purchase="cart") for each in rows(3, "cart"))
            requests = kind(iter([*rows(20), *of_one_purchase]))
            with sync.charge_all(tracker, requests, max_in_flight=20) as results:
                found = {result.request_key: result for result in results}
            assert [found[f"row-{number}"].paid for number in range(20)] == [True] * 20
            errors = [type(each.error) for key, each in found.items() if "cart" in key and not each.paid]
            assert len(errors) == 2
            assert (results.stopped, results.pending) == ("the batch was left", 0)
        assert errors == [payclient.AlreadyPaidError] * 2
        assert tracker.purchase("cart").paid is True
    assert sum(service.created_per_client_id.values()) == 21


def test_the_iterating_thread_reads_the_requests(service: SimulatorThread) -> None:
    """Where its database connection is, and no further ahead than a window; leaving drains."""
    read = []

    def reading() -> Iterator[payclient.SaleRequest]:
        for request in rows(10**6):
            read.append(threading.current_thread())
            yield request

    with opening(service.url) as tracker:
        with sync.charge_all(tracker, reading(), max_pending=5) as results:
            for _, result in zip(range(30), results, strict=False):
                assert result.paid
            results.stop("enough")
            assert results.stopped == "enough"
        assert len(read) < 1200
        assert set(read) == {threading.current_thread()}
        sent = sum(service.created_per_client_id.values())
        for number in range(sent):
            assert tracker.find(f"row-{number}") is not None
        assert tracker.sale(sale("after")).wait().paid is True
        assert sum(service.created_per_client_id.values()) == sent + 1


@pytest.mark.parametrize("kind", [list, iter])
def test_results_are_read_inside_the_block(service: SimulatorThread, kind: Callable[[Any], Any]) -> None:
    """Without `with` the caller would wait for ever, as nothing is sent."""
    with opening(service.url) as tracker, pytest.raises(payclient.UsageError, match="inside its `with`"):
        next(sync.charge_all(tracker, kind(rows(2))))


def test_an_interrupt_loses_no_request(service: SimulatorThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the reading of a row and its hand-over: whoever goes on gets the result of each."""
    calls = itertools.count()

    def interrupted() -> SimpleQueue[object]:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return SimpleQueue()

    results: list[payclient.ChargeResult] = []
    with opening(service.url) as tracker, sync.charge_all(tracker, rows(3)) as charges:
        monkeypatch.setattr(loop_thread, "SimpleQueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.extend(charges)
        results.extend(charges)
    assert sorted(each.request_key for each in results) == ["row-0", "row-1", "row-2"]


def test_an_interrupt_after_any_step_of_a_batch_loses_nothing(service: SimulatorThread) -> None:
    """A signal's handler runs right after a call returned: what that has read, or its result, is not lost."""

    def interrupting(step: int) -> Callable[..., None]:
        left = iter(range(step, -1, -1))

        def called(frame: types.FrameType, event: str, _: object) -> None:
            if (frame.f_code.co_name, event) == ("__next__", "c_return") and next(left, 1) == 0:
                raise KeyboardInterrupt

        return called

    is_interrupted, step = True, 0
    with opening(service.url) as tracker:
        while is_interrupted:
            keys, results, is_interrupted = (
                [f"{step}-{n}" for n in range(2)],
                list[payclient.ChargeResult](),
                False,
            )
            with sync.charge_all(tracker, iter([sale(key) for key in keys])) as charges:
                sys.setprofile(interrupting(step))
                try:
                    results.extend(charges)
                except KeyboardInterrupt:
                    is_interrupted = True
                finally:
                    sys.setprofile(None)
                results.extend(charges)
            assert sorted(each.request_key for each in results) == keys
            step += 1
    assert step > 4


def test_requests_that_end_in_an_error(service: SimulatorThread) -> None:
    """What was read is charged, then the error is raised; a wrong option is refused as by the async one."""

    def reading() -> Iterator[payclient.SaleRequest]:
        yield from rows(3)
        raise ZeroDivisionError

    results = []
    with opening(service.url) as tracker:
        with pytest.raises(ZeroDivisionError), sync.charge_all(tracker, reading()) as charges:
            for result in charges:
                results.append(result.request_key)
        assert sorted(results) == ["row-0", "row-1", "row-2"]
        with pytest.raises(ValueError, match="max_in_flight"):
            sync.charge_all(tracker, [], max_in_flight=0)


def test_none_is_not_the_end_of_the_requests(service: SimulatorThread) -> None:
    """A generator that yields None in the place of a request is wrong, and the rest is not passed over in silence."""
    batch: list[Any] = [*rows(1), None, *rows(1, "lost")]
    with (
        opening(service.url) as tracker,
        pytest.raises(TypeError, match="NoneType"),
        sync.charge_all(tracker, iter(batch)) as charges,
    ):
        list(charges)


def test_a_batch_ends_whose_hook_exits(service: SimulatorThread) -> None:
    """Nobody waits for the row whose task is gone; the next run finds out what came of it."""
    exits = [3]

    def leave(exchange: payclient.session.Exchange) -> None:
        if exchange.operation == "sale" and exits:
            sys.exit(exits.pop())

    with opening(service.url, on_exchange=leave) as tracker:
        with pytest.raises(SystemExit), sync.charge_all(tracker, rows(3)) as charges:
            list(charges)
        with sync.charge_all(tracker, rows(3)) as charges:
            assert {result.paid for result in charges} == {True}
    assert service.created_per_client_id == {"row-0": 1, "row-1": 1, "row-2": 1}


# --- Processes: forks, signals, ends


def program(text: str) -> str:
    head = """
        import logging, os, signal, sys, threading, time, warnings
        import attrs, payclient
        from payclient import loop_thread, sync
        from fake_service import sale
        warnings.simplefilter("ignore", DeprecationWarning)  # of 3.12 on: a fork beside threads
        logging.getLogger("payclient.ledger").setLevel("ERROR")  # that a ledger is new
        url, ledger = sys.argv[1:]
        profile = attrs.evolve(payclient.PAYPHONE, queries_per_minute=None)
        def opening(ledger=ledger, **options):
            options = {"schedule": payclient.Fixed(0.02), "profile": profile} | options
            return sync.open_tracker(url, "secret", ledger=ledger, **options)
    """
    return textwrap.dedent(head) + textwrap.dedent(text)


def start(text: str, url: str, ledger: str = "memory:") -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program(text), url, ledger],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], status: int = 0) -> str:
    """What a program prints that ends in time, with nothing on stderr."""
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status, err
    assert err == ""
    return out


def test_a_fork(service: SimulatorThread) -> None:
    """A tracker of the parent's is refused; one that nobody opened, and a new one, live in each process."""
    out = ended(start("""
        module = opening()
        with opening() as tracker:
            pending = tracker.sale(sale("of-the-parent"))
            child = os.fork()
            if child == 0:
                for refused in (lambda: tracker.find("x"), pending.wait, lambda: next(tracker.outcomes())):
                    try:
                        refused()
                    except payclient.UsageError as error:
                        assert "before a fork" in str(error)
                    else:
                        sys.exit(1)
                print(module.sale(sale("of-the-child", phone="0984000001")).wait().paid, flush=True)
                tracker.close()
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            print(pending.wait().paid)
        print(module.sale(sale("after", phone="0984000002")).wait().paid, flush=True)
        import multiprocessing  # whose workers end, though they forget to close
        unopened = opening()
        def work(number):
            assert unopened.sale(sale(f"order-{number}", phone=f"098400010{number}")).wait().paid
        tasks = [multiprocessing.get_context("fork").Process(target=work, args=[number]) for number in range(2)]
        [task.start() for task in tasks]
        [task.join() for task in tasks]
        print([task.exitcode for task in tasks])
    """, service.url))  # fmt: skip
    assert out == "True\nTrue\nTrue\n[0, 0]\n"
    assert set(service.created_per_client_id) == {
        "of-the-parent", "of-the-child", "after", "order-0", "order-1",
    }  # fmt: skip
    assert set(service.created_per_client_id.values()) == {1}


def test_a_fork_as_the_first_tracker_opens(service: SimulatorThread, tmp_path: Path) -> None:
    """The child opens a ledger of its own: no thread of the parent's is amid loading what it needs."""
    out = ended(start(f"""
        from importlib.machinery import SourceFileLoader
        load = SourceFileLoader.exec_module
        def slow(self, module):
            if module.__name__ == "payclient.ledger.sqlite":
                amid.set()
                go.wait(60)
            load(self, module)
        def use(number):
            with opening(ledger=f"sqlite:{tmp_path}/{{number}}.db") as tracker:
                assert tracker.find("order-17") is None
            amid.set()
        amid, go = threading.Event(), threading.Event()
        SourceFileLoader.exec_module = slow
        thread = threading.Thread(target=use, args=[1])
        thread.start()
        amid.wait(60)
        if (child := os.fork()) == 0:
            signal.alarm(10)
            use(2)
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        go.set()
        thread.join()
    """, service.url))  # fmt: skip
    assert out == "7\n"


def test_a_forgotten_tracker_ends_with_the_program(service: SimulatorThread, tmp_path: Path) -> None:
    """A send in flight is recorded first, threads that wait are released, and nothing hangs."""
    service.fail_next(Fault("latency", seconds=0.5, when="after"))
    ledger = f"sqlite:{tmp_path / 'charges.db'}"
    text = """
        tracker = opening(schedule=payclient.Fixed(100))
        def charge():
            try:
                tracker.sale(sale("order-1")).wait()
            except payclient.TrackerClosedError:
                print("closed")
        threading.Thread(target=charge).start()
        while tracker.find("order-1") is None:
            pass  # until it is being sent
        raise SystemExit(5)
    """
    assert ended(start(text, service.url, ledger), 5).split() == ["closed"]
    with opening(service.url, ledger) as tracker:
        pending = tracker.find("order-1")
        assert pending is not None
        assert pending.transaction_id is not None
        assert pending.wait().paid is True
    assert service.created_per_client_id == {"order-1": 1}


def test_each_ledger_is_closed_at_the_end_of_a_program_that_starts_no_thread(
    service: SimulatorThread, tmp_path: Path
) -> None:
    """CPython 3.12.0 and 3.12.1 start none by then."""
    text = """
        trackers = [opening(f"{ledger}/{number}.db").open() for number in range(5)]
        threading.Thread.start = None
    """
    assert ended(start(text, service.url, f"sqlite:{tmp_path}")) == ""
    assert not list(tmp_path.glob("*-wal")), "what is closed has no log"


def test_a_thread_that_waits_ends_with_a_program_that_cannot_close(service: SimulatorThread) -> None:
    """A request that ignores its cancellation holds the tracker up; nobody is told that nothing was created."""
    text = """
        import asyncio
        loop_thread.EXIT_PATIENCE = 0.5
        logging.disable()
        async def stuck(request, before_send):
            await before_send()
            sent.set()
            while True:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    pass
        sent = threading.Event()
        tracker = opening(transport=stuck)
        def charge():
            try:
                tracker.sale(sale("order-1"))
            except payclient.PayError as error:
                print(type(error).__name__)
        threading.Thread(target=charge).start()
        sent.wait()
    """
    assert ended(start(text, service.url)).split() == ["OutcomeUnknownError"]


def test_no_thread_waits_for_a_loop_that_died(service: SimulatorThread) -> None:
    """Its descriptors were closed, as by a program that becomes a daemon without a fork."""
    text = """
        threading.excepthook = sys.unraisablehook = lambda raised: None  # it says what it died of
        def close(exchange):
            if exchange.client_transaction_id == "order-2":
                os.closerange(3, 1000)
        tracker = opening(on_exchange=close, schedule=payclient.Fixed(100))
        pending = tracker.sale(sale("order-1"))
        def call(function):
            try:
                function()
            except payclient.PayError as error:
                said.append(type(error).__name__)
        said = []
        waiting = threading.Thread(target=call, args=[pending.wait])
        waiting.start()
        call(lambda: tracker.sale(sale("order-2", phone="0984000002")))
        waiting.join()
        call(lambda: tracker.find("order-1"))
        print(*said)
    """
    said = ended(start(text, service.url)).split()
    assert said == ["OutcomeUnknownError", "OutcomeUnknownError", "TrackerClosedError"]


@pytest.mark.parametrize("is_used", [True, False])
def test_closing_again_at_the_end_of_a_program_is_no_error(service: SimulatorThread, is_used: bool) -> None:
    """By `atexit`, and by a thread that leaves its `with` after the main one."""
    text = f"""
        import atexit
        tracker = opening()
        atexit.register(tracker.close)
        def work():
            with tracker:
                opened.set()
                threading.main_thread().join()
        opened = threading.Event()
        if {is_used}:
            threading.Thread(target=work).start()
            opened.wait()
        def late():
            try:
                tracker.find("order-1")
            except payclient.TrackerClosedError:
                print("closed")
        atexit.register(late)
    """
    assert ended(start(text, service.url)) == "closed\n"


def test_the_handler_of_a_signal_may_call(service: SimulatorThread) -> None:
    """Also where it interrupts the start of the thread, or a call that is being handed to it."""
    text = """
        import asyncio
        tracker = opening()
        def interrupted(function):
            def call(*arguments):
                if not done:
                    done.append(1)
                    os.kill(os.getpid(), signal.SIGTERM)
                return function(*arguments)
            done = []
            return call
        signal.signal(signal.SIGTERM, lambda *_: print("handled", tracker.find("order-1")))
        asyncio.new_event_loop = interrupted(asyncio.new_event_loop)
        print(tracker.sale(sale("order-0")).wait().paid)
        loop_thread.SimpleQueue = interrupted(loop_thread.SimpleQueue)
        print(tracker.sale(sale("order-2", phone="0984000002")).wait().paid)
    """
    assert ended(start(text, service.url)).splitlines() == ["handled None", "True"] * 2


def test_an_interrupt_at_any_step_leaves_the_loop_running(service: SimulatorThread) -> None:
    """Ctrl-C, or a time limit of Celery's, leaves no lock behind that stops every later call."""
    text = """
        warnings.simplefilter("ignore", RuntimeWarning)  # of a coroutine that was not handed over
        sys.unraisablehook = lambda raised: None  # an interrupt of the garbage collector
        tracker = opening().open()
        def interrupting(steps):
            def trace(*_):
                nonlocal steps
                steps -= 1
                if steps < 0:
                    raise KeyboardInterrupt
                return trace
            return trace
        for steps in range(1000):
            sys.settrace(interrupting(steps))
            try:
                tracker.find("order-1")
                break
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
        print(20 < steps < 999, tracker.sale(sale("order-1")).wait().paid)
    """
    assert ended(start(text, service.url)) == "True True\n"


def test_ctrl_c_leaves_the_send_running(silent: SimulatorThread) -> None:
    """Whoever waits is interrupted at once; what was sent is recorded, and can be found."""
    silent.fail_next(Fault("latency", seconds=1.0, when="after"))
    process = start("""
        with opening() as tracker:
            try:
                print("sending", flush=True)
                began = time.monotonic()
                tracker.sale(sale("order-1"))
            except KeyboardInterrupt:
                print("interrupted", time.monotonic() - began < 0.9, flush=True)
            try:
                print(tracker.sale(sale("order-1")).transaction_id is not None)
                found = tracker.find("order-1")
                print("waiting", flush=True)
                found.wait()
            except KeyboardInterrupt:
                print("interrupted", tracker.find("order-1").state, flush=True)
    """, silent.url)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "sending\n"
    while not silent.created_per_client_id:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted True\n"
    assert process.stdout.readline() == "True\n"
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)  # it is about to wait; a coroutine that is not on its loop yet would warn
    process.send_signal(signal.SIGINT)
    assert ended(process).split() == ["interrupted", "pending"]
    assert silent.created_per_client_id == {"order-1": 1}
