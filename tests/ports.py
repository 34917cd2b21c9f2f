"""A port of a test's own, before and between the lives of the server that listens there; and an app served at one."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web

__all__ = ["kept_port", "served"]


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that nobody else is given until the end of the block, where connections are refused.

    A server that sets SO_REUSEADDR, as they do, may listen there meanwhile, and again after its end. A number that was
    merely free a moment ago may be another process's by now: many servers start while the tests run.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))  # and does not listen
        yield keeper.getsockname()[1]


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """An aiohttp app at a port of this machine, by default any; its address."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
