"""Hearing of what other processes wrote: LISTEN on a connection of its own, and a poll all the same.

A listener that dies, or a pooler that cannot LISTEN, costs time and loses nobody: whoever waits is told to look again
after each reconnection and every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import asyncpg

from payclient.errors import PayError
from payclient.ledger.postgres_connecting import FAULTS, Connect, drop
from payclient.ledger.postgres_schema import CHANNEL

__all__ = ["POLL", "Listener", "Woken"]

logger = logging.getLogger("payclient.ledger")

#: Is told a client transaction id that was notified or decided; None: look again at all that you wait for.
Woken = Callable[[str | None], None]

#: Seconds from one look at everything to the next, and from one probe of the connection to the next.
POLL = 5.0


class Listener:
    """Tells its watchers, on the event loop in which it was made."""

    def __init__(self, connect: Connect, poll: float) -> None:
        self._connect = connect
        self._poll = poll
        self._watchers: dict[object, Woken] = {}
        self._lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._look()), loop.create_task(self._listen())]

    def watch(self, woken: Woken) -> Callable[[], None]:
        """Tell it from now on, until what this returns is called."""
        key = object()
        self._watchers[key] = woken
        return lambda: self._watchers.pop(key, None) and None

    def _tell(self, client_transaction_id: str | None) -> None:
        for woken in tuple(self._watchers.values()):
            try:
                woken(client_transaction_id)
            except Exception as error:  # one watcher's fault is not another's
                logger.error("a watcher of the ledger failed: %s", type(error).__name__)

    def _hear(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        self._tell(str(payload) or None)

    async def _look(self) -> None:
        """Whether or not anything is heard."""
        while True:
            await asyncio.sleep(self._poll)
            self._tell(None)

    async def _listen(self) -> None:
        connection: asyncpg.Connection | None = None
        try:
            while True:
                self._lost.clear()
                try:
                    if connection is None:
                        connection = await self._connect()
                        connection.add_termination_listener(lambda _: self._lost.set())
                        async with asyncio.timeout(self._poll):
                            await connection.add_listener(CHANNEL, self._hear)
                        # Only now: what was written before the LISTEN was heard by nobody.
                        self._tell(None)
                    else:
                        await connection.execute("SELECT 1", timeout=self._poll)
                except (PayError, *FAULTS):
                    drop(connection)
                    connection = None
                try:
                    async with asyncio.timeout(self._poll):
                        await self._lost.wait()
                    drop(connection)
                    connection = None
                except TimeoutError:
                    pass
        finally:
            drop(connection)

    async def aclose(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
