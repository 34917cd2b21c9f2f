"""What may stand between a client and PostgreSQL: a wire that breaks, a deaf pooler, a server without room."""

from __future__ import annotations

import contextlib
import struct

from raw_server import Connection, Filter, Listener


class PostgresProxy(Listener):
    """Passes bytes on until it is told otherwise."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._target = port
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

    @property
    def asked(self) -> int:
        """How many connections came."""
        return len(self.connections)

    async def serve(self, connection: Connection, number: int) -> None:
        if self.refuses:
            self.refuses -= 1
            await connection.more()
            body = f"SFATAL\0VFATAL\0C{self.code}\0Mno room\0\0".encode()
            await connection.write(b"E" + struct.pack("!I", len(body) + 4) + body)
            return
        with contextlib.suppress(OSError):
            await self.pass_on(connection, self._target, self._request, self._answers())

    def _request(self, block: bytes) -> tuple[bytes, bool]:
        cut, self.cut_before = self.cut_before, False
        return (b"", True) if cut else (block, False)

    def _answers(self) -> Filter:
        mute = False

        def answer(block: bytes) -> tuple[bytes, bool]:
            nonlocal mute
            if self.cut_after:
                self.cut_after = False
                return b"", True
            if self.mutes:
                self.mutes, mute = False, True
            is_lost = mute or self.silent or (self.deaf and block[:1] == b"A")
            return b"" if is_lost else block, False

        return answer
