"""The front door: sends through the ledger, and follows what is open to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from payclient.asking import StatusSource, bounded_status, session_status
from payclient.auth import TokenSource, service_fingerprint
from payclient.clock import Clock, LoopClock, start
from payclient.confirming import Confirming
from payclient.errors import (
    AlreadyPaidError,
    ConfigurationError,
    CustomerBusyError,
    InvalidNotificationError,
    PurchaseOpenError,
    TrackerClosedError,
)
from payclient.following import Following
from payclient.forms import Forms, PaymentForm
from payclient.ledger import Ledger, Shared, open_ledger
from payclient.lifecycle import Record, State
from payclient.models import Notification, PrepareRequest, SaleRequest
from payclient.notifications import Receipt, parse_return
from payclient.outcomes import Outcome, feed
from payclient.pending import PendingSale
from payclient.permits import Permits, same_request
from payclient.profile import ServiceProfile
from payclient.schedule import Attentive, Schedule
from payclient.sending import Sender
from payclient.session import PaySession
from payclient.validation import is_loopback
from payclient.withdrawing import Withdrawing

__all__ = ["Tracker", "as_decided", "open_tracker"]

logger = logging.getLogger("payclient.tracker")


class Tracker:
    """Charges through a ledger and knows what happened. Opened by `async with`, for one event loop.

    `status` is another way to ask for a status; the default is the session's, if its profile names one. Without
    any, `paid` can never become True.
    """

    def __init__(
        self,
        session: PaySession,
        ledger: Ledger,
        *,
        status: StatusSource | None = None,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._session = session
        self._ledger = ledger
        self._clock = clock if clock is not None else LoopClock()
        profile = session.profile
        self._permits = Permits(
            ledger,
            self._clock,
            session.timeouts.total,
            lambda each: self._following.permitted(each),
            self._changed,
        )

        def turn(patience: float) -> Awaitable[bool]:
            return self._following.turn(patience, insists=False)

        self._sender = Sender(session, self._permits, turn, lambda record: self._following.look_later(record))
        self._forms = Forms(session, self._permits)
        self._confirming = Confirming(
            session,
            ledger,
            self._clock,
            self._changed,
            lambda patience: self._following.turn(patience),
            self._permits.credentials,
            self._permits.trouble,
        )
        if status is None:
            source = session_status(session)
        else:
            source = bounded_status(status, self._clock, session.timeouts.total)
        self._following = Following(
            ledger,
            self._clock,
            status=None if source is None else self._confirming.status(source),
            credentials=self._permits.credentials if status is None else None,
            schedule=schedule if schedule is not None else Attentive(window=profile.sale_window),
            proves_absence=status is None
            and profile.status is not None
            and profile.status.by_client_transaction_id is not None,
            asks_by_id=status is not None
            or (profile.status is not None and profile.status.by_transaction_id is not None),
            sale_window=profile.sale_window,
            form_window=profile.form_window,
            total_timeout=session.timeouts.total,
            absent_after=profile.absent_after,
            queries_per_minute=profile.queries_per_minute,
            budget=f"queries {session.base_url}",
            trouble=self._permits.trouble,
            write_late=self._permits.write_now,
        )
        self._asks = status is not None or profile.status is not None
        self._withdrawing = Withdrawing(
            session,
            self._permits,
            check=self._following.check if self._asks else None,
            changed=self._changed,
            turn=turn,
        )
        self._sending: dict[str, tuple[bytes, asyncio.Future[Record]]] = {}
        self._open = False

    @property
    def clock(self) -> Clock:
        """Where this tracker's time comes from."""
        return self._clock

    @property
    def profile(self) -> ServiceProfile:
        """The session's profile."""
        return self._session.profile

    @property
    def total_timeout(self) -> float:
        """Seconds within which a request ends, as the session was told."""
        return self._session.timeouts.total

    @property
    def renews_token(self) -> bool:
        """Whether the session asks for a fresh token after a 401."""
        return self._session.renews_token

    async def __aenter__(self) -> Self:
        if isinstance(self._clock, LoopClock):
            self._clock.settle()
        if not self._asks:
            logger.warning(
                "no status source: the profile names no status query, so that `paid` can never become True"
            )
        await self._check_environment()
        self._open = True
        await self._recover()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Let the sends in flight end (within the total time-out) and stop following. The ledger stays open."""
        self._open = False
        sends = [task for _, task in self._sending.values()]
        if sends:
            # A send ends within its total time-out; the rest is for a slow ledger.
            _, late = await asyncio.wait(sends, timeout=self._session.timeouts.total + 5)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._permits.aclose()
        await self._confirming.aclose()
        await self._following.aclose()

    def _check_open(self, client_transaction_id: str | None = None) -> None:
        if not self._open:
            raise TrackerClosedError("the tracker is not open", client_transaction_id=client_transaction_id)

    async def sale(self, request: SaleRequest) -> PendingSale:
        """Charge by a push request (§2.2). **Raising means that this call created nothing.**

        Returning means that it may exist: `wait()` goes on finding out. The same client transaction id with the
        same content again returns the same sale and sends nothing; with other content it raises
        `DifferentRequestError`. A caller who is cancelled detaches; the send goes on.

        Raises `InvalidRequestError`, `ConfigurationError`, `NotSentError`, `RefusedError`, `LedgerError`.
        """
        self._check_open(request.client_transaction_id)
        http, digest = self._sender.encode(request)
        identifier = request.client_transaction_id
        running = self._sending.get(identifier)
        task: asyncio.Future[Record]
        if running is None:
            known = self._following.get(identifier)
            # Without its digest, which is let go of in the long run, the ledger is asked.
            if known is not None and known.state is not State.SENDING and known.digest:
                return PendingSale(self._following, same_request(known, digest))
            task = start(self._sender.send(request, http, digest))
            self._sending[identifier] = (digest, task)
            task.add_done_callback(lambda task: self._sent(identifier, task))
        else:
            same, task = running
            same_request(Record(client_transaction_id=identifier, digest=same), digest)
        try:
            record = await asyncio.shield(task)
        except CustomerBusyError:
            await self._following.suspect(self._sender.lane(request))
            raise
        return PendingSale(self._following, record)

    async def _sale_of_row(self, request: SaleRequest, *, new: bool) -> PendingSale:
        """`sale` for a batch, whose own task sends: it is not cancelled meanwhile, and has looked the id up.

        `new`: the ledger had no such id a moment ago. Whether it has one now, the permit says.
        """
        identifier = request.client_transaction_id
        if not self._open or identifier in self._sending or self._following.get(identifier) is not None:
            return await self.sale(request)
        http, digest = self._sender.encode(request)
        sent: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._sending[identifier] = (digest, sent)
        sent.add_done_callback(lambda sent: self._sent(identifier, sent))
        try:
            record = await self._sender.send(request, http, digest, new=new)
        except asyncio.CancelledError:
            sent.cancel()
            raise
        except Exception as error:
            if not sent.done():
                sent.set_exception(error)
            if isinstance(error, CustomerBusyError):
                await self._following.suspect(self._sender.lane(request))
            raise
        if not sent.done():  # the tracker was closed, and did not wait any longer
            sent.set_result(record)
        return PendingSale(self._following, record)

    def _sent(self, identifier: str, task: asyncio.Future[Record]) -> None:
        # Also where the caller has gone: what may exist is followed.
        del self._sending[identifier]
        self._following.touch()
        if not task.cancelled() and task.exception() is None:
            self._following.follow(task.result())

    async def notify(self, notification: Notification) -> Receipt:
        """Take a notification (§6) as a hint: the sale is asked for at once. Returns before any query.

        It is unsigned and never a verdict: forged ones cause no wrong state, and a query a second at most. Without
        a status source it ends the wait, with `paid` None.
        """
        self._check_open()
        receipt = await self._following.notify(notification)
        if receipt in (Receipt.MATCHED, Receipt.LATE, Receipt.CONFLICT):
            record = await self._ledger.get(notification.client_transaction_id)
            if record is not None and record.kind == "form":
                self._confirming.notified(record, notification.transaction_id)
        return receipt

    async def returned(
        self, query: str | Mapping[str, str], *, client_transaction_id: str | None = None
    ) -> Outcome:
        """Take what a browser brings back from a payment form to `response_url` or `cancellation_url`.

        It is recorded, confirmed once (within the total time-out), and what is then known is the outcome; what the
        service did not answer is asked for again until its window is over, also after a crash. What a browser says is
        never a verdict: a cancelled return makes the form CANCELLED only where the service, asked, knows of no payment.
        `client_transaction_id` is your own knowledge of whose form it was, where the query may lack it.

        Raises `InvalidNotificationError` for what comes from no form of ours, `ConfigurationError`, `LedgerError`.
        """
        self._check_open()
        profile = self._session.profile
        if profile.returned is None or profile.confirm is None:
            lacking = "returned" if profile.returned is None else "confirm"
            raise ConfigurationError(f"taking a browser back needs [{lacking}] in the profile")
        back = parse_return(query, profile.returned, client_transaction_id)
        record = await self._ledger.get(back.client_transaction_id)
        if record is None or record.kind != "form":
            raise InvalidNotificationError("this ledger has no such form")
        if back.transaction_id is None:
            self._forms.forget(back.client_transaction_id)
        record, report = await self._confirming.returned(record, back)
        return Outcome.of(record, report=report)

    async def cancel(self, pending: PendingSale) -> Outcome:
        """Withdraw a push request that nobody answers, and say what is true then: the customer may have been quicker.

        Where the service's answer is lost, the outcome is what the status query says, perhaps still undecided. Raises
        `ConfigurationError`, `NotSentError`, `RefusedError` where nothing was withdrawn, `UsageError` for a form.
        """
        self._check_open(pending.client_transaction_id)
        record = await self._ledger.get(pending.client_transaction_id)
        return pending.outcome if record is None else await self._withdrawing.cancel(record)

    def _changed(self, record: Record) -> None:
        """A record took an event elsewhere than in following: whoever waits is told."""
        if record.state.decided:
            self._following.touch()
        if self._following.get(record.client_transaction_id) is not None:
            self._following.follow(record)  # somebody waits for it, whoever can be asked
        else:
            self._follow(record)

    async def prepare(self, request: PrepareRequest) -> PaymentForm:
        """Prepare a hosted payment form (§2.3) under a client transaction id of its own.

        Raises what `PaySession.prepare` raises, `LedgerError`, and `DifferentRequestError` for an id used before. A
        form alone charges nobody; whether it was paid is found by `find(client_transaction_id)`, where the profile
        names a status query by client transaction id.
        """
        self._check_open(request.client_transaction_id)
        form, record = await self._forms.prepare(request)
        self._follow(record)
        return form

    async def live_form(
        self, key: str, make_request: Callable[[str], PrepareRequest], margin: float = 60.0
    ) -> PaymentForm:
        """The form of a key that lives at least `margin` seconds more, prepared anew only where there is none.

        However many ask at once, one is prepared; one that the service calls cancelled is not handed out.
        `make_request(client_transaction_id)` builds the request of each generation, with the id that it is given.
        Every generation in the ledger counts, whichever process prepared it. Raises `AlreadyPaidError` where one is
        paid, and `PurchaseOpenError` where one came back and is not decided yet. A form that did not come back may
        still be payable for up to ten minutes after a late load. Links are not stored: each process has forms of
        its own.
        """

        def check(records: list[Record]) -> None:
            for record in records:
                if record.state is State.ACCEPTED:
                    raise AlreadyPaidError(
                        "a form of this key is paid; none was prepared",
                        outcome=Outcome.of(record),
                        client_transaction_id=record.client_transaction_id,
                    )
            for record in records:
                if not record.state.decided and (record.candidate_ids or record.transaction_id is not None):
                    raise PurchaseOpenError(
                        "a form of this key came back and is not decided; none was prepared",
                        pending=PendingSale(self._following, record),
                        until=record.expires_at,
                        client_transaction_id=record.client_transaction_id,
                    )

        def prepare(client_transaction_id: str) -> asyncio.Task[PaymentForm]:
            request = make_request(client_transaction_id)
            if request.client_transaction_id != client_transaction_id:
                raise ConfigurationError("make_request: build the request with the id that it is given")
            return start(self.prepare(request))

        return await self._forms.live(key, prepare, check, margin)

    def forget_form(self, client_transaction_id: str) -> None:
        """Let `live_form` hand this form out no more: its customer closed it by the X and comes back for another.

        Only where the profile has no `[returned]`, since `returned` does it too. It is followed on all the same.
        """
        self._forms.forget(client_transaction_id)

    def _follow(self, record: Record) -> None:
        """Follow a sale; a form only where its status can be asked for by our own id."""
        status = self._session.profile.status
        if record.kind == "sale" or (status is not None and status.by_client_transaction_id is not None):
            self._following.follow(record)

    async def find(self, client_transaction_id: str) -> PendingSale | None:
        """The sale of a client transaction id, open or decided; None if the ledger has none."""
        record = self._following.get(client_transaction_id) or await self._ledger.get(client_transaction_id)
        if record is None:
            return None
        return PendingSale(self._following, record)

    async def find_many(self, client_transaction_ids: Sequence[str]) -> dict[str, PendingSale]:
        """The sales of those ids that the ledger has."""
        records = await self._ledger.get_many(client_transaction_ids)
        return {identifier: PendingSale(self._following, record) for identifier, record in records.items()}

    def is_same(self, request: SaleRequest, pending: PendingSale) -> bool:
        """Return whether a sale was made with this request's content, by the digest that the ledger keeps."""
        return pending.digest == self._sender.encode(request)[1]

    def lane(self, request: SaleRequest) -> bytes:
        """The customer at the store, as a keyed digest: one open sale at a time, because of error 2061 (§7.3)."""
        return self._sender.lane(request)

    @property
    def shares(self) -> bool:
        """Whether other processes may have this ledger open."""
        return isinstance(self._ledger, Shared)

    async def take_lane(self, lane: bytes) -> bool:
        """Charge this customer alone from now on; False: another process does. Asked of a shared ledger only."""
        return await self._following.take_lane(lane)

    async def drop_lanes(self, lanes: Sequence[bytes]) -> None:
        """Let other processes charge these customers."""
        await self._following.drop_lanes(lanes)

    def open_sales(self) -> list[PendingSale]:
        """Every sale that is not decided."""
        return [PendingSale(self._following, record) for record in self._following.open_records()]

    async def outcomes(self, since: int = 0) -> AsyncIterator[Outcome]:
        """The durable feed: decisions, presumptions (EXPIRED) and corrections after a cursor, until the tracker closes.

        Each outcome has its `cursor`; keep it with what you did about it, and go on from there. At least once. A ledger
        that cannot be read for a while delays the feed.
        """
        told = feed(self._ledger, self._clock, since, lambda: self._following.changed, lambda: self._open)
        async with aclosing(told):
            async for outcome in told:
                yield outcome

    async def _check_environment(self) -> None:
        """Another service knows nothing of what is in the ledger: its "not found" would prove what is not so."""
        mine = service_fingerprint(self._session.base_url, self._ledger.digest_key)
        if await self._ledger.environment(mine) != mine:
            raise ConfigurationError(
                "this ledger was used with another service than base_url names; nothing was sent. Give each "
                "service, test and real, a ledger of its own; if it is the same service at a new address, say so "
                "by `payclient ledger moved`"
            )

    async def _recover(self) -> None:
        """What a crash left is followed on; where other processes live, what none of them follows, now and later."""
        if isinstance(self._ledger, Shared):
            await self._following.share(self._take_over)
        else:
            await self._take_over([record async for record in self._ledger.unfinished()])

    async def _take_over(self, records: Sequence[Record]) -> None:
        """Whoever sent these is gone: SENDING is unknown from now on; what is open is followed on."""
        window = self._session.profile.sale_window
        stale = [record for record in records if record.state is State.SENDING]
        recovered = await asyncio.gather(*(self._permits.recover(record, window) for record in stale))
        for record in [record for record in records if record.state is not State.SENDING] + recovered:
            self._follow(record)
        await self._confirming.recover([record for record in records if record.kind == "form"])
        if records:
            logger.info("recovered %d open sales, %d of them unknown", len(records), len(stale))


async def as_decided(pendings: Iterable[PendingSale]) -> AsyncIterator[Outcome]:
    """The outcomes of several sales, in the order in which they are decided."""
    waits = [asyncio.create_task(pending.wait()) for pending in pendings]
    try:
        for wait in asyncio.as_completed(waits):
            yield await wait
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


@asynccontextmanager
async def open_tracker(
    base_url: str | None,
    token: TokenSource,
    *,
    ledger: str = "memory:",
    create: bool = True,
    status: StatusSource | None = None,
    schedule: Schedule | None = None,
    clock: Clock | None = None,
    **session_options: Any,
) -> AsyncIterator[Tracker]:
    """Open a session, a ledger and a tracker over them, and close all three.

    `base_url` None is the profile's. `ledger` is `memory:`, `sqlite:PATH` or `postgresql://USER@HOST/DATABASE`,
    which many processes may share. A ledger that is not there is made, with a warning in the log; with `create` False
    `LedgerMissingError` is raised instead. `session_options` are those of `PaySession` (`profile`, `timeouts`, ...).
    """
    session = PaySession(base_url, token, **session_options)
    del token, session_options  # an error below shows this frame's local variables to error trackers
    if ledger == "memory:" and not is_loopback(urlsplit(session.base_url).hostname or ""):
        logger.warning(
            "the ledger is memory: and ends with this process: what it charged is forgotten, and the same request "
            'is charged again; use ledger="sqlite:PATH"'
        )
    async with session:
        opening = open_ledger(ledger, create=create)
        del ledger  # its address may hold a password
        book = await opening
        try:
            async with Tracker(session, book, status=status, schedule=schedule, clock=clock) as tracker:
                yield tracker
        finally:
            await book.aclose()
