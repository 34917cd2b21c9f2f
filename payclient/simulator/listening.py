"""The socket of the service: opened, killed with all its connections, and opened again at the same address."""

from collections.abc import Callable

from aiohttp import web

__all__ = ["Listener"]


class Listener:
    """Serves what `make` gives, anew at each `start`, at `url` from the first `start` on."""

    def __init__(self, host: str, port: int, make: Callable[[], web.Application]) -> None:
        self._host = host
        self._port = port
        self._make = make
        self._runner: web.AppRunner | None = None
        #: The base address, without a slash at its end; None before the first `start`.
        self.url: str | None = None

    async def start(self) -> None:
        """Listen, at the port of the last time if there was one."""
        if self._runner is not None:
            raise RuntimeError("the Simulator listens already")
        # Closing does not wait for a request that a client left hanging.
        runner = web.AppRunner(self._make(), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        self._port = runner.addresses[0][1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{self._port}"  # at once: the answer to a Prepare has it

    async def kill(self) -> None:
        """Break every connection, and refuse new ones until `start`."""
        if self._runner is None:
            raise RuntimeError("the Simulator does not listen")
        runner, self._runner = self._runner, None
        for site in list(runner.sites):
            await site.stop()
        for connection in runner.server.connections if runner.server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()

    async def close(self) -> None:
        """Let the requests in flight end, as far as they do so at once."""
        if self._runner is not None:
            await self._runner.cleanup()
