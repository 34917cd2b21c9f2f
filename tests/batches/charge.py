"""`payclient` with time-outs as short as the campaign's sale window, and a receiver of notifications beside it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from aiohttp import web

import payclient
from payclient.cli import main
from payclient.web.aiohttp import notification_route, tracker_context

from .service import TOTAL


@asynccontextmanager
async def hasty(port: int, *args: Any, **options: Any) -> AsyncIterator[payclient.Tracker]:
    """A tracker that is notified on a port, as a shop's is."""
    timeouts = payclient.Timeouts(connect=TOTAL, total=TOTAL)
    async with payclient.open_tracker(*args, timeouts=timeouts, **options) as tracker:
        app = web.Application()
        app.cleanup_ctx.append(tracker_context(lambda: nullcontext(tracker)))
        app.add_routes([notification_route("/notified")])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port, shutdown_timeout=0.1).start()
            yield tracker
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    port, arguments = int(sys.argv[1]), sys.argv[2:]
    with patch("payclient.cli.settings.open_tracker", lambda *args, **options: hasty(port, *args, **options)):
        sys.exit(main(arguments))
