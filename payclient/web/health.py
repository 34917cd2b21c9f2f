"""The answer of `health_route` in each framework."""

from __future__ import annotations

import json

import attrs

from payclient.tracking.tracker import Tracker

__all__: list[str] = []


async def health_status(tracker: Tracker) -> tuple[int, bytes]:
    """Return the HTTP status, 200 or 503, and the JSON body: the fields of `Health`, `ok` and `problems`."""
    health = await tracker.health()
    body = {"ok": health.ok, "problems": health.problems, **attrs.asdict(health)}
    return 200 if health.ok else 503, json.dumps(body).encode()
