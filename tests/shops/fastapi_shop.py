"""The same shop under FastAPI."""

from __future__ import annotations

from fastapi import FastAPI

from payclient.web.starlette import tracker_lifespan
from shops import shop
from shops.starlette_shop import routes

__all__ = ["app"]

app = FastAPI(routes=[*routes], lifespan=tracker_lifespan(shop.opening))
