"""The simulated service in a process of its own, behind a proxy that is slow and breaks some exchanges.

Prints its address, answers each line of its input by what it did so far, and runs until its input ends. What a killed
client has written is still under way in the proxy, and reaches the service late.
"""

import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import suppress

import aiohttp
from aiohttp import web

from payclient.simulator import Answers, Fault, Faults, Settings, Simulator

#: Seconds: a sale's life, the client's total time-out, and how long a stalled exchange stands still.
WINDOW, TOTAL, STALL = 1.5, 1.0, 1.3
#: Seconds that an exchange is under way, each way.
DELAY = (0.002, 0.06)

#: Customers whom the service refuses.
REFUSED = frozenset(f"0988{number:06}" for number in range(0, 1_000_000, 97))

#: What goes wrong with a Sale: nothing arrives, or the answer is lost, broken, late or none of the service's.
SALE_FAULTS = (
    "request lost", "answer lost", "answer cut", "500 instead", "503 after it", "stalled before", "stalled after",
    "429", "busy",
)  # fmt: skip
#: A 429 keeps every query waiting for a second, so that it comes less often.
QUERY_FAULTS = ("answer lost", "500 instead", "stalled after", "answer cut") * 10 + ("429",)
NOTIFICATION_FAULTS = (
    Fault("lost"), Fault("late", seconds=0.5), Fault("late", seconds=2 * WINDOW), Fault("duplicate"), Fault("forged"),
)  # fmt: skip

#: Answers of something in front of the service, which then sees nothing.
INSTEAD = {
    "500 instead": (500, "<h1>Internal Server Error</h1>"),
    "429": (429, '{"message":"Demasiadas solicitudes","errorCode":29}'),
    "busy": (400, '{"message":"m","errorCode":22,"errors":[{"message":"busy","errorCode":2061}]}'),
}


class Proxy:
    """Carries exchanges to the service, some of them in vain."""

    def __init__(self, url: str, rate: float, seed: int) -> None:
        self._url = url
        self._rate = rate
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self.faults: Counter[str] = Counter()
        self._behind: set[asyncio.Task[object]] = set()

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """One exchange of a client's. It reaches the service whether or not the client waits."""
        body = await request.read()
        fault = ""
        if self._chance.random() < self._rate:
            fault = self._chance.choice(SALE_FAULTS if request.method == "POST" else QUERY_FAULTS)
            self.faults[f"{request.method} {fault}"] += 1
        if fault == "request lost":
            return self._cut(request)
        if fault in INSTEAD:
            status, text = INSTEAD[fault]
            headers = {"Retry-After": "0" if request.method == "POST" else "1"} if status == 429 else {}
            return web.Response(status=status, text=text, content_type="application/json", headers=headers)
        delay = self._chance.uniform(*DELAY) + (STALL if fault == "stalled before" else 0.0)
        work = asyncio.create_task(self._forward(request, body, delay))
        self._behind.add(work)
        work.add_done_callback(self._behind.discard)
        status, answer = await asyncio.shield(work)
        await asyncio.sleep(self._chance.uniform(*DELAY) + (STALL if fault == "stalled after" else 0.0))
        if fault == "answer lost":
            return self._cut(request)
        if fault == "503 after it":
            return web.Response(status=503)
        if fault == "answer cut":
            response = web.StreamResponse(headers={"Content-Length": str(len(answer))})
            with suppress(ConnectionError):  # the client is gone
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

    async def run(self, simulator: Simulator) -> None:
        """Listen, say where, tell what was done as often as asked, and go on until the input ends."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._session:
            runner = web.ServerRunner(web.Server(self.serve), access_log=None)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=0.1).start()
            host, port = runner.addresses[0][:2]
            print(f"http://{host}:{port}", flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                sales = [
                    (sale.client_transaction_id, sale.transaction_id, sale.how)
                    for sale in simulator.sales.values()
                ]
                notified = Counter(f"notification {kind}" for kind in simulator.faults.done.elements())
                print(json.dumps({"sales": sales, "faults": self.faults + notified}), flush=True)
            await runner.cleanup()


async def main(seed: int, rate: float) -> None:
    """Serve until the input ends."""
    settings = Settings(
        sale_window=WINDOW,
        refuse_with=dict.fromkeys(REFUSED, 22),
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    answers = Answers(approve=0.65, reject=0.15, ignore=0.2, delay=(0.3, 0.6), seed=seed)
    faults = Faults(dict.fromkeys(NOTIFICATION_FAULTS, min(rate, 0.2)) if rate else {}, seed=seed)
    async with Simulator(settings=settings, answers=answers, faults=faults) as simulator:
        await Proxy(simulator.url, rate, seed).run(simulator)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
