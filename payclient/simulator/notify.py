"""The result notification (§6): two parameters, sent to the merchant's `responseUrl`."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp

from .addresses import with_query
from .service import Sale
from .settings import Settings

__all__ = ["Notifier", "notification_url"]

_Delivery = Callable[[aiohttp.ClientSession], Awaitable[None]]

_TIMEOUT = 5.0  # seconds, for one delivery
_AT_ONCE = 100


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
    """Delivers notifications in the background; a failure is recorded, never raised.

    `on_done` is told of each: the sale, the transaction id that was sent, and what came of it.
    """

    def __init__(
        self,
        settings: Settings,
        tally: Counter[str],
        on_done: Callable[[Sale, int, str], object] = lambda *_: None,
    ) -> None:
        self._method = settings.notification_method
        self._names = (settings.notification_id_field, settings.notification_client_id_field)
        self._tally = tally
        self._on_done = on_done
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

    def start(self, sale: Sale, *, pretended_id: int | None = None) -> None:
        """Send the sale's notification in the background, if the merchant gave an address and we are open.

        One with a `pretended_id` is forged: the sale does not remember it.
        """
        if (response_url := sale.response_url) is not None:
            self.run(
                sale.transaction_id, lambda session: self._deliver(session, sale, response_url, pretended_id)
            )

    def query(self, sale: Sale) -> str:
        """What the sale's notification says, as the query of an address."""
        return notification_url("", sale.transaction_id, sale.client_transaction_id, self._names)[1:]

    def run(self, transaction_id: int, delivery: _Delivery) -> None:
        """Deliver something about this transaction in the background, if we are open; it must not raise."""
        if self._session is not None:
            task = asyncio.create_task(self._in_its_place(delivery, self._session))
            self._tasks[task] = transaction_id
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def delivered(self, *transaction_ids: int) -> None:
        """Wait until these notifications, or all without an argument, are done; at most 5 seconds."""
        tasks = [task for task, one in self._tasks.items() if not transaction_ids or one in transaction_ids]
        if tasks:
            await asyncio.wait(tasks, timeout=_TIMEOUT)

    async def _in_its_place(self, delivery: _Delivery, session: aiohttp.ClientSession) -> None:
        async with self._places:
            await delivery(session)

    async def _deliver(
        self, session: aiohttp.ClientSession, sale: Sale, response_url: str, pretended_id: int | None
    ) -> None:
        number = sale.transaction_id if pretended_id is None else pretended_id
        url = notification_url(response_url, number, sale.client_transaction_id, self._names)
        try:
            async with session.request(self._method, url, allow_redirects=False) as response:
                result = f"HTTP {response.status}"
                self._tally["notifications_sent"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: what the merchant gave as `responseUrl` is no address at all.
            result = type(error).__name__
            self._tally["notifications_failed"] += 1
        if pretended_id is None:
            sale.notification = result
        self._on_done(sale, number, result)
