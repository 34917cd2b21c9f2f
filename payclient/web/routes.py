"""The routes that an app mounts, in any framework: the receiver of notifications (§6), and those of the pages.

The receiver's answer is the same whatever came, so that nothing can be probed, and it says nothing about a payment.
"""

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from payclient.errors import InvalidNotificationError, LedgerUnavailableError
from payclient.logs import Log
from payclient.models import Notification
from payclient.notifications import MAX_SIZE, Receipt, check_secret, is_notification_key, parse_notification
from payclient.secret import Secret
from payclient.tracking.forms import FormLink
from payclient.tracking.tracker import Tracker
from payclient.validation import check_setting
from payclient.web.pages import ASSETS, Language, Page, make_answer, make_json, redirect_page, sale_status

__all__ = ["MaySee", "OnReceipt", "Routes"]

log: Log = Log("payclient.web")

#: The one answer to whatever is received.
ANSWER = make_answer("text/plain; charset=utf-8", "OK")

#: Seconds for reading a notification, for the tracker and for the app's `on_receipt`: no sender waits longer.
TIMEOUT = 10.0

#: Called with each notification that was understood, and what it was to the tracker; may be async. Never a verdict.
OnReceipt = Callable[[Notification, Receipt], object]

#: Returns whether a request's customer may see the sale of this client transaction id; may be async.
MaySee = Callable[[Any, str], object]

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")
_Route = TypeVar("_Route")


@attrs.frozen
class Routes(Generic[_Request, _Response, _Route]):
    """The routes of one framework, by the parts in which it differs from the others."""

    tracker_of: Callable[[_Request], Tracker]
    page_response: Callable[[Page], _Response]
    #: Makes a route for any method. The variables of its path are passed to the function: `key`, or `id`, which may
    #: hold slashes.
    make: Callable[[str, Callable[[_Request, Mapping[str, str]], Awaitable[Page]]], _Route]
    #: Returns the query, the content type and the body of a request.
    read: Callable[[_Request], tuple[str, str, AsyncIterable[bytes]]]

    def notification_route(
        self, path: str, *, secret: str | bytes | None = None, on_receipt: OnReceipt | None = None
    ) -> _Route:
        """Make the receiver of notifications (§6) to mount at `responseUrl`: any method, always the same 200.

        With a `secret`, `path` is the path of the `base` that is given to `notification_url(base, ..., secret)`.
        """
        check_setting("on_receipt", on_receipt, Callable, "a function")
        # Error trackers show the variables of an inner function, too.
        own = None if secret is None else Secret(check_secret(secret))

        async def receive(request: _Request, found: Mapping[str, str]) -> Page:
            key = found.get("key", "")
            await _take(self.tracker_of(request), own, on_receipt, key, *self.read(request))
            return ANSWER

        return self.make(path if secret is None else f"{path.rstrip('/')}/{{key}}", receive)

    def order_routes(self, prefix: str = "/orders", *, may_see: MaySee | None = None) -> list[_Route]:
        """Make the routes `{prefix}/{id}/status`, which `waiting_page` queries, and its files at `{prefix}/assets`.

        `may_see(request, client_transaction_id)` returns whether this customer may see the sale, and may be async.
        Without `may_see`, anybody who knows an id sees its state. While the ledger is away the answer is 503.
        """

        check_setting("may_see", may_see, Callable, "a function")

        async def status(request: _Request, found: Mapping[str, str]) -> Page:
            allowed = may_see is None or may_see(request, found["id"])
            if inspect.isawaitable(allowed):
                allowed = await allowed
            try:
                sale = await self.tracker_of(request).find(found["id"]) if allowed else None
            except LedgerUnavailableError:  # no traceback for each query of each waiting page
                return make_json({}, 503)
            return make_json({}, 404) if sale is None else make_json(sale_status(sale))

        async def asset(page: Page, *_: object) -> Page:
            return page

        folder = prefix.rstrip("/")
        assets = [self.make(f"{folder}/assets/{name}", partial(asset, page)) for name, page in ASSETS.items()]
        return [self.make(f"{folder}/{{id}}/status", status), *assets]

    def health_route(self, path: str = "/health") -> _Route:
        """Make the route of `tracker.health()` for a load balancer: JSON, with status 200, or 503 and its `problems`.

        The body holds counts and times, no id and no amount. Anybody who reaches the route sees them.
        """

        async def health(request: _Request, _: object) -> Page:
            found = await self.tracker_of(request).health()
            body = {"ok": found.ok, "problems": found.problems, **attrs.asdict(found)}
            return make_json(body, 200 if found.ok else 503)

        return self.make(path, health)

    def redirect_response(
        self,
        request: _Request,
        link: FormLink,
        language: Language = "es",
        *,
        again: str | None = None,
        assets: str | None = None,
    ) -> _Response:
        """Send the customer to a form by `redirect_page`, with the tracker's clock and the profile's `link_hosts`."""
        tracker = self.tracker_of(request)
        hosts, now = tracker.profile.link_hosts, tracker.clock.time()
        page = redirect_page(link, language, again=again, hosts=hosts, now=now, assets=assets)
        return self.page_response(page)


async def _take(
    tracker: Tracker,
    secret: Secret[bytes] | None,
    on_receipt: OnReceipt | None,
    key: str,
    query: str,
    content_type: str,
    body: AsyncIterable[bytes],
) -> None:
    """Take what came as a hint, or ignore it, within `TIMEOUT`. Raises nothing but what cancels it."""
    identifier, receipt = "", None
    try:
        async with asyncio.timeout(TIMEOUT):
            notification = await _parse(query, content_type, body)
            identifier = notification.client_transaction_id
            if secret is not None and not is_notification_key(key, identifier, secret.reveal()):
                return
            receipt = await tracker.notify(notification)
            if on_receipt is not None:
                await _call(on_receipt, notification, receipt)
    except InvalidNotificationError:
        return
    except Exception as error:  # the sale is queried all the same: a notification is a hint
        if receipt is None:
            what = "a notification was not taken: %s"
            log("warning", "notification_not_taken", identifier, what, type(error).__name__)
        else:  # `_call` lets nothing else through
            log("error", "on_receipt_timed_out", identifier, "on_receipt took longer than %g s", TIMEOUT)


async def _call(on_receipt: OnReceipt, notification: Notification, receipt: Receipt) -> None:
    """Call the app's function; its failure is logged by its place, since its text may hold anything."""
    try:
        result = on_receipt(notification, receipt)
        if inspect.isawaitable(result):
            await result
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place, what = f"{last.filename}:{last.lineno}", "on_receipt raised %s at %s"
        identifier = notification.client_transaction_id
        log("error", "on_receipt_failed", identifier, what, type(error).__name__, place)


async def _parse(query: str, content_type: str, body: AsyncIterable[bytes]) -> Notification:
    """Parse a notification. Its body, which may be slow or of a sender who has hung up, is read only where needed."""
    with suppress(InvalidNotificationError):
        return parse_notification(query=query)
    return parse_notification(query=query, body=await _read(body), content_type=content_type)


async def _read(body: AsyncIterable[bytes]) -> bytes:
    """Return the body, or the begin of one that is too long for a notification; no more than that is ever held."""
    read = b""
    async for block in body:
        read += block
        if len(read) > MAX_SIZE:
            break
    return read
