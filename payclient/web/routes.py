"""What the routes answer in each framework: the state of a sale, the pages' style and scripts, and health."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import attrs

from payclient.tracking.tracker import Tracker
from payclient.web import pages
from payclient.web.pages import Page, make_answer
from payclient.web.sale_page import sale_status

__all__ = ["MaySee"]

#: Returns whether a request's customer may see the sale of this client transaction id; may be async.
MaySee = Callable[[Any, str], object]

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}

#: Each file below `{prefix}/assets`.
ASSETS = {
    name: make_answer(_KINDS[name.rpartition(".")[2]], text, cache="max-age=3600")
    for name, text in pages.ASSETS.items()
}


async def order_status(
    tracker: Tracker, request: object, client_transaction_id: str, may_see: MaySee | None
) -> Page:
    """Answer the state of a sale: 404 for an unknown one, and for one that this request may not see."""
    allowed = may_see is None or may_see(request, client_transaction_id)
    if not (await allowed if inspect.isawaitable(allowed) else allowed):
        return _json_page({}, 404)
    sale = await tracker.find(client_transaction_id)
    return _json_page({}, 404) if sale is None else _json_page(sale_status(sale))


async def health_status(tracker: Tracker) -> Page:
    """Answer the fields of `Health`, `ok` and `problems`; 200 or 503."""
    health = await tracker.health()
    body = {"ok": health.ok, "problems": health.problems, **attrs.asdict(health)}
    return _json_page(body, 200 if health.ok else 503)


def _json_page(body: object, status: int = 200) -> Page:
    return make_answer("application/json", json.dumps(body), status)
