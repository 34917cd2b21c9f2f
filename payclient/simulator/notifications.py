"""Messages to the merchant: the result notification (§6), its faults, and the external notification."""

import asyncio
import socket
from typing import Any, Final

import aiohttp
import orjson

from .books import Books, with_query
from .settings import ACCEPTED
from .status import external_notification
from .transactions import Sale, Transaction

#: The number that a forged notification adds to the true transaction id.
_FOREIGN: Final = 1_000_000_007

_TIMEOUT: Final = 5.0  # seconds, for one delivery
_AT_ONCE: Final = 100
_LONGEST: Final = 4096  # bytes of an acknowledgement that are read


class _Resolver(aiohttp.ThreadedResolver):
    """The machine's resolver, for which `shop.localhost` is this machine, as browsers have it (RFC 6761)."""

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[Any]:
        local = "localhost" if host.endswith(".localhost") else host
        return list(await super().resolve(local, port, family))


class Notifications:
    """The sender of all messages, in the background while it is open; a failure is logged, never raised."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._tasks: dict[asyncio.Task[None], Transaction] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            # On a kept connection that died aiohttp would send a GET again by itself.
            connector=aiohttp.TCPConnector(force_close=True, resolver=_Resolver()),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=_TIMEOUT),
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def delivered(self, transaction: Transaction | None = None) -> None:
        """Wait until the messages of a transaction are done, or all without an argument; at most 5 seconds."""
        if tasks := [task for task, one in self._tasks.items() if transaction in (None, one)]:
            await asyncio.wait(tasks, timeout=_TIMEOUT)

    def send_all(self, transaction: Transaction) -> None:
        """Send the notifications of a customer's answer, as the plan of faults lets them."""
        if isinstance(transaction, Sale) and transaction.response_url is not None:
            self._notify(transaction)
        url = self._books.settings.external_notification_url
        if transaction.state == ACCEPTED and url is not None:
            body = orjson.dumps(external_notification(transaction, self._books))
            self._start(transaction, "external notification", transaction.transaction_id, "POST", url, body)

    def send(self, sale: Sale, pretended_id: int | None = None) -> None:
        """Send a notification in the background; ValueError if the sale has no `responseUrl`."""
        if (url := sale.response_url) is None:
            raise ValueError(f"sale {sale.transaction_id} has no responseUrl")
        number = pretended_id or sale.transaction_id
        text = "notification" if number == sale.transaction_id else "forged notification"
        settings, values = self._books.settings, (str(number), sale.client_transaction_id)
        ids = dict(zip(settings.notification_names, values, strict=True))
        # A fragment never leaves the client.
        address = with_query(url.partition("#")[0], ids)
        self._start(sale, text, number, settings.notification_method, address)

    def _notify(self, sale: Sale) -> None:
        fault = self._books.faults.next(
            "notification", sale.client_transaction_id, sale.client_transaction_id
        )
        match fault and fault.kind:
            case "lost":
                ids = sale.client_transaction_id, sale.transaction_id
                self._books.log_entry("notification", "never sent", *ids, fault="lost")
                return
            case "late" if fault is not None:
                self._books.timetable.after(fault.seconds, self.send, sale)
                return
            case "duplicate":
                self.send(sale)
            case "forged":
                self.send(sale, sale.transaction_id + _FOREIGN)
        self.send(sale)

    def _start(self, transaction: Transaction, *message: Any) -> None:
        if self._session is not None:
            task = asyncio.create_task(self._deliver(self._session, transaction, *message))
            self._tasks[task] = transaction
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    async def _deliver(
        self,
        session: aiohttp.ClientSession,
        transaction: Transaction,
        text: str,
        number: int,
        method: str,
        url: str,
        body: bytes | None = None,
    ) -> None:
        """Send one message and log its result: the status, or the class of the error."""
        status, error, answer = None, None, b""
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with (
                self._places,
                session.request(method, url, allow_redirects=False, data=body, headers=headers) as response,
            ):
                status, answer = response.status, await response.content.read(_LONGEST)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failed:
            # ValueError: what the merchant gave as `responseUrl` is not an address at all.
            error = type(failed).__name__
        self._books.tally[f"notifications_{'failed' if error else 'sent'}"] += 1
        text += "" if body is None else _acknowledgement(answer)
        client_id = transaction.client_transaction_id
        self._books.log_entry("notification", text, client_id, number, status=status, fault=error)


def _acknowledgement(answer: bytes) -> str:
    """Return the word for the merchant's answer to an external notification; empty for another answer."""
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return ""
    match said:
        case {"Response": True, "ErrorCode": "000"}:
            return ", acknowledged"
        case {"Response": False, "ErrorCode": "333"}:
            return ", duplicate"
    return ""
