"""From the requests to rows: each with what the ledger knows of it, which is asked for many at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Any

from payclient.batch.lanes import Lane, LaneRow, Lanes
from payclient.models import SaleRequest
from payclient.tracking.bulk import Bulk

__all__ = ["begin_lanes", "next_row", "rows_of"]

#: Requests that the ledger is asked for at once.
CHUNK = 200


async def begin_lanes(bulk: Bulk, source: Lanes) -> AsyncGenerator[tuple[Lane, LaneRow], None]:
    """Every lane with its first row, the longest first."""
    lanes = source.lanes()
    while chunk := [Lane(key, size) for key, size in itertools.islice(lanes, CHUNK)]:
        rows = await _look_up(bulk, [_next_of(source, lane.key) for lane in chunk])
        for lane, row in zip(chunk, rows, strict=True):
            yield lane, row


async def next_row(bulk: Bulk, source: Lanes, lane: Any) -> LaneRow:
    """The next row of a lane that has one."""
    (row,) = await _look_up(bulk, [_next_of(source, lane)])
    return row


async def rows_of(
    bulk: Bulk, requests: Iterable[SaleRequest] | AsyncIterable[SaleRequest]
) -> AsyncGenerator[LaneRow, None]:
    """Every row, in the order of the requests; what comes by waiting is looked up at once."""
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            for row in await _look_up(bulk, [request]):
                yield row
        return
    iterator = iter(requests)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        for row in await _look_up(bulk, chunk):
            yield row
        await asyncio.sleep(0)


def _next_of(source: Lanes, lane: Any) -> SaleRequest:
    request = source.next_of(lane)
    assert request is not None  # noqa: S101 - counted
    return request


async def _look_up(bulk: Bulk, requests: list[SaleRequest]) -> list[LaneRow]:
    known = await bulk.find([request.client_transaction_id for request in requests])
    return [LaneRow(request, known.get(request.client_transaction_id)) for request in requests]
