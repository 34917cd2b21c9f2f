"""The simulated service in a process of its own, behind a relay that is slow and loses things.

What a killed process has written is still under way in the relay, and reaches the service late. Prints the addresses
of the relay and of the simulator, and runs until its input ends.
"""

import asyncio
import random
import sys

from payclient.simulator import Answers, Settings, Simulator

from .child import WINDOW

#: Seconds that a piece of data is on its way.
DELAY = (0.002, 0.06)
#: Chances of one POST.
LOST_REQUEST, LOST_ANSWER = 0.02, 0.04


class Relay:
    """Carries bytes between a client and the service, some of them in vain."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client's."""
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        #: Its next answer does not arrive.
        losing = asyncio.Event()
        answers = asyncio.create_task(self._answers(there, writer, losing))
        self._tasks.add(answers)
        answers.add_done_callback(self._tasks.discard)
        try:
            while data := await reader.read(65536):
                await self._wait()
                if data.startswith(b"POST "):
                    point = self._chance.random()
                    if point < LOST_REQUEST:
                        break
                    if point < LOST_REQUEST + LOST_ANSWER:
                        losing.set()
                back.write(data)
                await back.drain()
        except ConnectionError:
            pass
        # The client has gone; what it wrote is executed all the same.
        back.close()

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, losing: asyncio.Event
    ) -> None:
        try:
            while data := await there.read(65536):
                await self._wait()
                if losing.is_set():
                    break
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    async def _wait(self) -> None:
        await asyncio.sleep(self._chance.uniform(*DELAY))


async def main() -> None:
    """Serve until the input ends."""
    settings = Settings(
        sale_window=WINDOW,
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    answers = Answers(approve=0.6, reject=0.2, ignore=0.2, delay=(0.3, 0.6))
    async with Simulator(settings=settings, answers=answers) as simulator:
        relay = Relay(int(simulator.url.rpartition(":")[2]), int(sys.argv[1]))
        server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        print(f"http://127.0.0.1:{port} {simulator.url}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
