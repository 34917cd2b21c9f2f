"""Servers of raw bytes for the tests of the transport: scripted answers, a byte-cutting and a CONNECT proxy.

aiohttp's own server never breaks the protocol. These do whatever a script says, and record every byte they read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

#: A throw-away pair for `localhost` and 127.0.0.1, valid until 2120. It protects nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIB1DCCAXqgAwIBAgIUdAQgQqse/rrtLJJoCYr9qo3XaeQwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTA3MTk0OVoYDzIxMjAxMDE5
MDcxOTQ5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATmlE2xs+Mc7Ax+YTo9HJAaPrcZWqPeS9crTnTMUrR/fjeLcvho4NOW
K/dRzHYKR1H3hlw/fJju20Js0H9GBOEWo4GnMIGkMB0GA1UdDgQWBBQ1nJBgowhq
fjtaMRyWxnb+1ozxszAfBgNVHSMEGDAWgBQ1nJBgowhqfjtaMRyWxnb+1ozxszAP
BgNVHRMBAf8EBTADAQH/MCwGA1UdEQQlMCOCCWxvY2FsaG9zdIcEfwAAAYcQAAAA
AAAAAAAAAAAAAAAAATAOBgNVHQ8BAf8EBAMCAoQwEwYDVR0lBAwwCgYIKwYBBQUH
AwEwCgYIKoZIzj0EAwIDSAAwRQIgf+L1eLyVWiB+nY30iKevimXsre41mBGTatkI
JOm9eQECIQDPClcW4Sk2G5gYaHegAykbtPt/lSlRSuNPJBSvS3glnA==
-----END CERTIFICATE-----
"""
PRIVATE_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgtnIc9C6A8cIiBLQD
ER6pTuRdh0/XZf+yN9QtCPS3ED6hRANCAATmlE2xs+Mc7Ax+YTo9HJAaPrcZWqPe
S9crTnTMUrR/fjeLcvho4NOWK/dRzHYKR1H3hlw/fJju20Js0H9GBOEW
-----END PRIVATE KEY-----
"""

#: Turns of the loop after which bytes on the loopback have arrived.
TURNS = 25


def server_context() -> ssl.SSLContext:
    """A TLS context that serves the pair above."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder, "certificate.pem"), Path(folder, "key.pem")
        certificate.write_text(CERTIFICATE)
        key.write_text(PRIVATE_KEY)
        context.load_cert_chain(certificate, key)
    return context


def client_context() -> ssl.SSLContext:
    """A TLS context that trusts the pair above, and nothing else."""
    return ssl.create_default_context(cadata=CERTIFICATE)


async def turns(count: int = TURNS) -> None:
    """Let the loop turn, and with it every socket of the loopback, without waiting."""
    for _ in range(count):
        await asyncio.sleep(0)


def requests_in(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The complete requests in what a server read: each one's first line and body."""
    while (end := data.find(b"\r\n\r\n")) >= 0:
        first, *lines = data[:end].decode("latin-1").split("\r\n")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        length = int(fields.get("content-length", "0"))
        body, data = data[end + 4 : end + 4 + length], data[end + 4 + length :]
        if len(body) < length:
            return
        yield first, body


def answer(body: bytes | object, status: int = 200, *extra: str, length: int | None = None) -> bytes:
    """The bytes of an answer; `length` lies about the body's."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {len(content) if length is None else length}",
        *extra,
    ]
    return "\r\n".join([*head, "", ""]).encode() + content


class Connection:
    """One accepted connection and everything that was read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.data = bytearray()
        self.ended = asyncio.Event()
        self._taken = 0

    @property
    def complete(self) -> int:
        """How many complete requests were read."""
        return sum(1 for _ in requests_in(bytes(self.data)))

    async def more(self) -> bytes:
        """Read what comes next; empty at the end."""
        try:
            block = await self.reader.read(1 << 16)
        except OSError:  # a reset; ssl.SSLError is one too
            block = b""
        self.data += block
        return block

    async def request(self) -> None:
        """Read until one more request is complete, or the client is gone."""
        self._taken += 1
        while self.complete < self._taken and await self.more():
            pass

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.writer.write(data)
            await self.writer.drain()

    def close(self, how: str) -> None:
        """`reset` sends RST; `fin` closes in order."""
        if how == "fin":
            self.writer.close()
            return
        with contextlib.suppress(OSError):
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.writer.transport.abort()


#: One thing that a server does on a connection. A script is a sequence of them.
Step = Callable[[Connection], Awaitable[None]]


async def read(connection: Connection) -> None:
    """Read one request whole."""
    await connection.request()


async def hang(connection: Connection) -> None:
    """Answer nothing more, and read on until the client goes."""
    while await connection.more():
        pass


async def reset(connection: Connection) -> None:
    """Send RST, and so throw away what the client has not read yet."""
    connection.close("reset")


async def fin(connection: Connection) -> None:
    """Close in order."""
    connection.close("fin")


async def next_turns(connection: Connection) -> None:
    """Let what was written arrive before the next step."""
    await turns()


def write(data: bytes) -> Step:
    async def step(connection: Connection) -> None:
        await connection.write(data)

    return step


def pour(blocks: Iterable[bytes], *, pause: float = 0.0) -> Step:
    """Write one block after the other until the client goes."""

    async def step(connection: Connection) -> None:
        gone = asyncio.ensure_future(hang(connection))
        try:
            for block in blocks:
                await connection.write(block)
                if (await asyncio.wait([gone], timeout=pause))[0]:
                    break
        finally:
            gone.cancel()

    return step


#: What of a block a proxy passes on, and whether it cuts the connection then.
Filter = Callable[[bytes], tuple[bytes, bool]]


def whole(block: bytes) -> tuple[bytes, bool]:
    """Everything is passed on."""
    return block, False


class Listener:
    """Accepts, runs one task for each connection, and leaves nothing behind."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: list[Connection] = []
        self._onward: list[Connection] = []
        self.accepted = asyncio.Event()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=self._context, backlog=200
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"{'http' if self._context is None else 'https'}://127.0.0.1:{self.port}"

    def abort(self) -> None:
        """Break every connection."""
        for connection in (*self.connections, *self._onward):
            connection.writer.transport.abort()

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.abort()
        await turns(5)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        self.connections.append(connection)
        self.accepted.set()
        task = asyncio.get_running_loop().create_task(self._run(connection, len(self.connections) - 1))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, connection: Connection, number: int) -> None:
        try:
            await self.serve(connection, number)
        finally:
            connection.ended.set()
            connection.writer.close()

    async def serve(self, connection: Connection, number: int) -> None:
        raise NotImplementedError

    async def pass_on(
        self, connection: Connection, port: int, there: Filter = whole, back: Filter = whole
    ) -> None:
        """Pass on to the server behind a proxy, and back, what the filters give; end with the first side that does."""
        server = Connection(*await asyncio.open_connection("127.0.0.1", port))
        self._onward.append(server)
        ways = [
            asyncio.ensure_future(self._pump(connection, server, there)),
            asyncio.ensure_future(self._pump(server, connection, back)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            server.close("fin")  # in order, so that it surely reads what was sent

    async def _pump(self, source: Connection, sink: Connection, passed: Filter) -> None:
        over = False
        while not over and (block := await source.more()):
            part, over = passed(block)
            await sink.write(part)

    async def settle(self) -> None:
        """Wait until every connection has ended, once the client has closed its own."""
        await turns()
        async with asyncio.timeout(60):
            for connection in self.connections:
                await connection.ended.wait()


class RawServer(Listener):
    """Plays one script for each connection; the last one is played for all further connections.

    After its script a connection is read on until the client goes, so `data` is all that ever came.
    """

    def __init__(self, *scripts: tuple[Step, ...], context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self.scripts = scripts

    @property
    def data(self) -> bytes:
        """All that was read, over all connections."""
        return b"".join(connection.data for connection in self.connections)

    @property
    def complete(self) -> int:
        """How many complete requests were read: the charges that this server would have made."""
        return sum(connection.complete for connection in self.connections)

    async def charged(self, count: int = 1) -> None:
        """Wait until so many complete requests were read."""
        while self.complete < count:
            await turns(1)

    def bodies(self) -> list[bytes]:
        """The bodies of the complete requests."""
        return [body for connection in self.connections for _, body in requests_in(bytes(connection.data))]

    async def serve(self, connection: Connection, number: int) -> None:
        for step in self.scripts[min(number, len(self.scripts) - 1)]:
            await step(connection)
        if not connection.writer.is_closing():
            await hang(connection)


class CuttingProxy(Listener):
    """Forwards bytes to a server, and cuts both sides after so many bytes of the request or of the answer."""

    def __init__(self, port: int, *, request: int | None = None, answer: int | None = None, how: str) -> None:
        super().__init__()
        self._target = port
        self._limits = request, answer
        self._how = how
        #: Bytes that were passed on to the server, and back.
        self.forwarded, self._answered = bytearray(), bytearray()

    async def serve(self, connection: Connection, number: int) -> None:
        there, back = map(_up_to, self._limits, (self.forwarded, self._answered))
        try:
            await self.pass_on(connection, self._target, there, back)
        finally:
            connection.close(self._how)


def _up_to(limit: int | None, passed: bytearray) -> Filter:
    def part_of(block: bytes) -> tuple[bytes, bool]:
        part = block if limit is None else block[: limit - len(passed)]
        passed.extend(part)
        return part, len(passed) == limit

    return part_of


class ConnectProxy(Listener):
    """A CONNECT proxy: refuses with the bytes it is given, or opens the tunnel. `b""` closes at once."""

    def __init__(self, refusal: bytes | None = None) -> None:
        super().__init__()
        self._refusal = refusal

    @property
    def heads(self) -> list[bytes]:
        """What each connection asked for, up to the end of its head."""
        return [bytes(connection.data).partition(b"\r\n\r\n")[0] for connection in self.connections]

    async def serve(self, connection: Connection, number: int) -> None:
        await connection.request()
        if self._refusal is not None:
            await connection.write(self._refusal)
            return
        port = int(self.heads[number].split()[1].rpartition(b":")[2])
        await connection.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.pass_on(connection, port)
