"""The result notification (§6): two parameters, sent to the merchant's `responseUrl`."""

import asyncio
from collections import Counter

import aiohttp

from .addresses import with_query
from .service import Sale

__all__ = ["Notifier", "notification_url"]

_TIMEOUT = 5.0  # seconds, for one delivery
_AT_ONCE = 100


def notification_url(response_url: str, transaction_id: int, client_transaction_id: str) -> str:
    """The address with `id` and `clientTransactionID` added to whatever query it has."""
    address, _, _ = response_url.partition("#")  # a fragment never leaves the client
    return with_query(address, {"id": transaction_id, "clientTransactionID": client_transaction_id})


class Notifier:
    """Delivers notifications in the background, once each; a failure is recorded, never raised."""

    def __init__(self, method: str, tally: Counter[str]) -> None:
        self._method = method
        self._tally = tally
        self._tasks: dict[int, asyncio.Task[None]] = {}
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
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def start(self, sale: Sale) -> None:
        """Send the sale's notification in the background, if the merchant gave an address and we are open."""
        if self._session is not None and sale.response_url is not None:
            task = asyncio.create_task(self._deliver(self._session, sale, sale.response_url))
            self._tasks[sale.transaction_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(sale.transaction_id, None))

    async def delivered(self, *transaction_ids: int) -> None:
        """Wait until these notifications, or all without an argument, are done; at most 5 seconds."""
        wanted = transaction_ids or tuple(self._tasks)
        tasks = [self._tasks[one] for one in wanted if one in self._tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=_TIMEOUT)

    async def _deliver(self, session: aiohttp.ClientSession, sale: Sale, response_url: str) -> None:
        url = notification_url(response_url, sale.transaction_id, sale.client_transaction_id)
        try:
            async with (
                self._places,
                session.request(self._method, url, allow_redirects=False) as response,
            ):
                sale.notification = f"HTTP {response.status}"
                self._tally["notifications_sent"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: what the merchant gave as `responseUrl` is no address at all.
            sale.notification = type(error).__name__
            self._tally["notifications_failed"] += 1
