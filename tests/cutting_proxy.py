"""What may stand between a client and PostgreSQL: a wire that breaks, a deaf pooler, a server without room."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class CuttingProxy:
    """Passes bytes on until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        #: Break the connection instead of passing on the next request.
        self.cut_before = False
        #: Pass on the next request, and break the connection instead of its answer.
        self.cut_after = False
        #: Pass on requests and never an answer.
        self.silent = False
        #: Pass on the next request, and on its wire no answer any more.
        self.mutes = False
        #: Pass on no notification, as a pooler that gives the server to another client after each transaction.
        self.deaf = False
        #: Refuse so many connections, as a server does that has no room (53300) or is starting (57P03).
        self.refuses = 0
        self.code = "53300"
        #: How many connections came.
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        if self.refuses:
            self.refuses -= 1
            await reader.read(8192)
            body = f"SFATAL\0VFATAL\0C{self.code}\0Mno room\0\0".encode()
            writer.write(b"E" + struct.pack("!I", len(body) + 4) + body)
            writer.close()
            return
        try:
            upstream, out = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        pair = {writer, out}
        self._writers |= pair
        try:
            await asyncio.gather(self._requests(reader, out, pair), self._answers(upstream, writer, pair))
        except OSError:
            pass
        finally:
            self._writers -= pair
            for each in pair:
                each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, out: asyncio.StreamWriter, pair: set[asyncio.StreamWriter]
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.cut_before:
                self.cut_before = False
                break
            out.write(data)
            await out.drain()
        self._break(pair)

    async def _answers(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: set[asyncio.StreamWriter]
    ) -> None:
        mute = False
        while data := await upstream.read(1 << 16):
            if self.cut_after:
                self.cut_after = False
                break
            if self.mutes:
                self.mutes, mute = False, True
            if mute or self.silent or (self.deaf and data[:1] == b"A"):
                continue
            writer.write(data)
            await writer.drain()
        self._break(pair)

    def abort(self) -> None:
        """Break every connection."""
        self._break(set(self._writers))

    @staticmethod
    def _break(pair: set[asyncio.StreamWriter]) -> None:
        for each in pair:
            with suppress(OSError):
                each.transport.abort()


@asynccontextmanager
async def cutting_proxy(port: int) -> AsyncIterator[CuttingProxy]:
    """One in front of a port of this machine."""
    proxy = CuttingProxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.abort()
        await asyncio.sleep(0.01)
