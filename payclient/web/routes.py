"""What the routes answer in each framework: the state of a sale, the pages' style and scripts, and health."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import attrs

from payclient.tracking.tracker import Tracker
from payclient.web import pages
from payclient.web.sale_page import sale_status

__all__ = ["MaySee"]

#: Returns whether a request's customer may see the sale of this client transaction id; may be async.
MaySee = Callable[[Any, str], object]

JSON_HEADERS = {"Content-Type": "application/json", "Cache-Control": "no-store"}

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}

#: Headers and content of each file below `{prefix}/assets`.
ASSETS = {
    name: ({"Content-Type": _KINDS[name.rpartition(".")[2]], "Cache-Control": "max-age=3600"}, text.encode())
    for name, text in pages.ASSETS.items()
}


async def order_status(
    tracker: Tracker, request: object, client_transaction_id: str, may_see: MaySee | None
) -> tuple[int, bytes]:
    """Return the HTTP status and the JSON body: 404 for an unknown sale, and for one that this request may not see."""
    if may_see is not None:
        allowed = may_see(request, client_transaction_id)
        if not (await allowed if inspect.isawaitable(allowed) else allowed):
            return 404, b"{}"
    sale = await tracker.find(client_transaction_id)
    return (404, b"{}") if sale is None else (200, json.dumps(sale_status(sale)).encode())


async def health_status(tracker: Tracker) -> tuple[int, bytes]:
    """Return the HTTP status, 200 or 503, and the JSON body: the fields of `Health`, `ok` and `problems`."""
    health = await tracker.health()
    body = {"ok": health.ok, "problems": health.problems, **attrs.asdict(health)}
    return 200 if health.ok else 503, json.dumps(body).encode()
