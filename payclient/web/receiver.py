"""The receiver of notifications (§6) of every framework: read a little, call the tracker, answer 200.

The answer is the same whatever came, so that nothing can be probed, and it says nothing about a payment.
"""

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterable, Callable

from payclient.errors import InvalidNotificationError
from payclient.logs import Log
from payclient.models import Notification
from payclient.notifications import MAX_SIZE, Receipt, check_secret, is_notification_key, parse_notification
from payclient.tracking.tracker import Tracker
from payclient.web.pages import make_answer

__all__ = ["OnReceipt", "Receiver"]

log: Log = Log("payclient.web")

#: The one answer.
ANSWER = make_answer("text/plain; charset=utf-8", "OK")

#: Seconds for reading a notification, for the tracker and for the app's `on_receipt`: no sender waits longer.
TIMEOUT = 10.0

#: Called with each notification that was understood, and what it was to the tracker; may be async. Never a verdict.
OnReceipt = Callable[[Notification, Receipt], object]


class Receiver:
    """One receiver. With a `secret` only addresses made by `notification_url` with it are listened to."""

    def __init__(self, secret: str | bytes | None, on_receipt: OnReceipt | None) -> None:
        self._secret = None if secret is None else check_secret(secret)
        self._on_receipt = on_receipt

    async def take(
        self, tracker: Tracker, *, key: str, query: str, content_type: str, body: AsyncIterable[bytes]
    ) -> None:
        """Take what came as a hint, or ignore it, within `TIMEOUT`. Raises nothing but what cancels it."""
        identifier, receipt = "", None
        try:
            async with asyncio.timeout(TIMEOUT):
                content = await _read(body)
                notification = parse_notification(query=query, body=content, content_type=content_type)
                identifier = notification.client_transaction_id
                if self._secret is not None and not is_notification_key(key, identifier, self._secret):
                    return
                receipt = await tracker.notify(notification)
                if self._on_receipt is not None:
                    await self._call(self._on_receipt, notification, receipt)
        except InvalidNotificationError:
            return
        except Exception as error:  # the sale is queried all the same: a notification is a hint
            if receipt is None:
                what = "a notification was not taken: %s"
                log("warning", "notification_not_taken", identifier, what, type(error).__name__)
            else:
                what = "on_receipt took longer than %g s"
                log("error", "on_receipt_timed_out", identifier, what, TIMEOUT)

    async def _call(self, on_receipt: OnReceipt, notification: Notification, receipt: Receipt) -> None:
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
            identifier = notification.client_transaction_id
            place = f"{last.filename}:{last.lineno}"
            what = "on_receipt raised %s at %s"
            log("error", "on_receipt_failed", identifier, what, type(error).__name__, place)


def route_of(path: str, secret: str | bytes | None, key: str) -> str:
    """Return the path of a receiver: with a secret, one more segment, which `key` is in the framework's spelling."""
    return path if secret is None else f"{path.rstrip('/')}/{key}"


async def _read(body: AsyncIterable[bytes]) -> bytes:
    """Return the body, or the begin of one that is too long for a notification; no more than that is ever held."""
    read = b""
    async for block in body:
        read += block
        if len(read) > MAX_SIZE:
            break
    return read
