"""The simulated service in a process of its own, behind a proxy that breaks one exchange in twenty.

Prints the addresses of the proxy and of the simulator, runs until its input ends, and then prints its faults.
The simulator itself loses, delays, repeats and forges notifications; while the command is killed, all are lost.
"""

import asyncio
import json
import random
import sys
from collections import Counter

import aiohttp
from aiohttp import web

from payclient.simulator import Answers, Fault, Faults, Settings, Simulator

#: Seconds: a sale's life, the client's total time-out, and how long a stalled exchange stands still.
WINDOW, TOTAL, STALL = 1.5, 0.8, 1.1

#: Customers whom the service refuses.
REFUSED = frozenset(f"0988{number:06}" for number in range(0, 1_000_000, 97))

#: What goes wrong with a Sale: nothing arrives, or the answer is lost, broken, late or none of the service's.
SALE_FAULTS = (
    "request lost",
    "answer lost",
    "answer cut",
    "500 instead",
    "503 after it",
    "stalled before",
    "stalled after",
    "429",
    "429",
)
#: A 429 keeps every query waiting for a second, so that it comes less often.
QUERY_FAULTS = ("answer lost", "500 instead", "stalled after", "answer cut") * 10 + ("429",)

#: What goes wrong with a notification.
NOTIFICATION_FAULTS = (
    Fault("lost"), Fault("late", seconds=0.5), Fault("late", seconds=2 * WINDOW), Fault("duplicate"), Fault("forged"),
)  # fmt: skip

BUSY = b'{"message":"Demasiadas solicitudes","errorCode":29}'


class Proxy:
    """Carries exchanges to the service, some of them in vain."""

    def __init__(self, url: str, faults: float, seed: int) -> None:
        self._url = url
        self._faults = faults
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self.counts: Counter[str] = Counter()
        self._behind: set[asyncio.Task[object]] = set()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One exchange of a client's. It reaches the service whether or not the client waits."""
        body = await request.read()
        fault = None
        if self._chance.random() < self._faults:
            fault = self._chance.choice(SALE_FAULTS if request.method == "POST" else QUERY_FAULTS)
            self.counts[f"{request.method} {fault}"] += 1
        if fault == "request lost":
            return self._cut(request)
        if fault == "500 instead":
            return web.Response(status=500, text="<h1>Internal Server Error</h1>", content_type="text/html")
        if fault == "429":
            headers = {"Retry-After": "0" if request.method == "POST" else "1"}
            return web.Response(status=429, body=BUSY, content_type="application/json", headers=headers)
        work = asyncio.create_task(self._forward(request, body, STALL if fault == "stalled before" else 0.0))
        self._behind.add(work)
        work.add_done_callback(self._behind.discard)
        status, answer = await asyncio.shield(work)
        if fault == "stalled after":
            await asyncio.sleep(STALL)
        if fault == "answer lost":
            return self._cut(request)
        if fault == "503 after it":
            return web.Response(status=503)
        if fault == "answer cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(answer))})
            await response.prepare(request)
            await response.write(answer[: len(answer) // 2])
            return self._cut(request, response)
        return web.Response(status=status, body=answer, content_type="application/json")

    @staticmethod
    def _cut(request: web.BaseRequest, response: web.StreamResponse | None = None) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return response if response is not None else web.Response()

    async def _forward(self, request: web.BaseRequest, body: bytes, delay: float) -> tuple[int, bytes]:
        await asyncio.sleep(delay)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name in ("Authorization", "Content-Type", "Accept")
        }
        async with self._session.request(
            request.method, self._url + request.path_qs, data=body or None, headers=headers
        ) as answer:
            return answer.status, await answer.read()

    async def run(self) -> None:
        """Listen, say where, and go on until the input ends."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            runner = web.ServerRunner(web.Server(self.serve), access_log=None)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1)
            await site.start()
            host, port = runner.addresses[0][:2]
            print(f"http://{host}:{port} {self._url}", flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await runner.cleanup()


async def main() -> None:
    """Serve until the input ends."""
    settings = Settings(
        sale_window=WINDOW,
        refuse_with=dict.fromkeys(REFUSED, 22),
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    seed = int(sys.argv[1])
    answers = Answers(approve=0.7, reject=0.15, ignore=0.15, delay=(0.4, 0.6), seed=seed)
    chance = float(sys.argv[2])
    faults = Faults(dict.fromkeys(NOTIFICATION_FAULTS, min(chance, 0.2)) if chance else {}, seed=seed)
    async with Simulator(settings=settings, answers=answers, faults=faults) as simulator:
        proxy = Proxy(simulator.url, chance, seed)
        await proxy.run()
        notified = {f"notification {kind}": times for kind, times in simulator.faults.done.items()}
        print(json.dumps(proxy.counts | Counter(notified)))


if __name__ == "__main__":
    asyncio.run(main())
