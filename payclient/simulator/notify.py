"""What the service tells the merchant by itself: the result notification (§6), and the external one of some."""

import asyncio
from collections import Counter
from collections.abc import Coroutine

import aiohttp
import orjson

from .addresses import with_query
from .service import Sale
from .settings import Settings
from .status import external_notification
from .transactions import Transaction

__all__ = ["Notifier", "notification_url"]

_TIMEOUT = 5.0  # seconds, for one delivery
_AT_ONCE = 100
_LONGEST = 4096  # bytes of an acknowledgement that are read


def notification_url(
    response_url: str,
    transaction_id: int,
    client_transaction_id: str,
    names: tuple[str, str] = ("id", "clientTransactionID"),
) -> str:
    """The address with `id` and `clientTransactionID` added to whatever query it has."""
    address, _, _ = response_url.partition("#")  # a fragment never leaves the client
    return with_query(address, dict(zip(names, (transaction_id, client_transaction_id), strict=True)))


class Notifier:
    """Delivers notifications in the background, once each; a failure is recorded, never raised."""

    def __init__(self, settings: Settings, tally: Counter[str]) -> None:
        self._settings = settings
        self._tally = tally
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            # On a kept connection that died aiohttp would send a GET again by itself.
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
        )

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def start(self, sale: Sale) -> None:
        """Send the sale's notification in the background, if the merchant gave an address and we are open."""
        if self._session is not None and sale.response_url is not None:
            self._run(sale.transaction_id, self._deliver(self._session, sale, sale.response_url))

    def start_external(self, transaction: Transaction) -> None:
        """Tell of an approved payment in the background, if there is an address for it and we are open."""
        url, number = self._settings.external_notification_url, transaction.transaction_id
        if self._session is not None and url is not None and number is not None:
            self._run(number, self._deliver_external(self._session, transaction, url))

    async def delivered(self, *transaction_ids: int) -> None:
        """Wait until these notifications, or all without an argument, are done; at most 5 seconds."""
        tasks = [task for task, one in self._tasks.items() if not transaction_ids or one in transaction_ids]
        if tasks:
            await asyncio.wait(tasks, timeout=_TIMEOUT)

    def _run(self, transaction_id: int, delivery: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(delivery)
        self._tasks[task] = transaction_id
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _deliver(self, session: aiohttp.ClientSession, sale: Sale, response_url: str) -> None:
        settings = self._settings
        names = (settings.notification_id_field, settings.notification_client_id_field)
        url = notification_url(response_url, sale.transaction_id, sale.client_transaction_id, names)
        try:
            async with (
                self._places,
                session.request(settings.notification_method, url, allow_redirects=False) as response,
            ):
                sale.notification = f"HTTP {response.status}"
                self._tally["notifications_sent"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: what the merchant gave as `responseUrl` is no address at all.
            sale.notification = type(error).__name__
            self._tally["notifications_failed"] += 1

    async def _deliver_external(
        self, session: aiohttp.ClientSession, transaction: Transaction, url: str
    ) -> None:
        body = orjson.dumps(external_notification(transaction, self._settings))
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                self._places,
                session.post(url, data=body, headers=headers, allow_redirects=False) as response,
            ):
                answer = await response.content.read(_LONGEST)
                transaction.external_notification = _acknowledgement(answer) or f"HTTP {response.status}"
                self._tally["external_notifications_sent"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            transaction.external_notification = type(error).__name__
            self._tally["external_notifications_failed"] += 1


def _acknowledgement(answer: bytes) -> str | None:
    """What the merchant's answer says in the service's words; None if it says nothing of the kind."""
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    match said:
        case {"Response": True, "ErrorCode": "000"}:
            return "acknowledged"
        case {"ErrorCode": "333"}:
            return "duplicate"
    return None
