"""`charge_all`: many charges through one tracker, one open sale per customer, memory bounded.

Two limits: requests in flight, and prompts pending on people's phones. A pending prompt holds no connection, so one
limit around both would be slow. `charges` runs a batch, `lanes` says whose turn it is, `retries` what is sent again.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable

from payclient.batch.charges import Charges
from payclient.batch.lanes import ChargeResult, ChargeRow
from payclient.models import SaleRequest
from payclient.tracking.tracker import Tracker

__all__ = ["ChargeResult", "ChargeRow", "Charges", "charge_all"]


def charge_all(
    tracker: Tracker,
    requests: Iterable[SaleRequest | ChargeRow] | AsyncIterable[SaleRequest | ChargeRow],
    *,
    max_in_flight: int = 50,
    max_pending: int = 1000,
    rate: float | None = None,
    wait: float | None = None,
    retry: Collection[str] = (),
) -> Charges:
    """Charge many, one open sale per customer: `async with charge_all(...) as results`, then `async for`.

    Every request gives one `ChargeResult`, in the order in which they are decided; one that fails never ends the
    others. `max_in_flight` counts requests, `max_pending` prompts on people's phones that are waited for. `rate` is
    sends a second, and fewer where the profile's `queries_per_minute` could not follow them. `wait` is how many seconds
    each sale is waited for (None: to its end, 0: until it is recorded). Of the customers who wait, the one with most
    charges comes next: of all in a list or a tuple, once it is read, else of a window by which the requests are read
    ahead.

    A row is a `SaleRequest`, or a `ChargeRow` with the purchase that it is for. Where another charge of that purchase
    is paid or open, nothing is sent for the row; its error is an `AlreadyPaidError` or a `PurchaseOpenError`.

    Running it again with the same requests goes on where it stopped: it sends nothing that may exist. Refusals
    about the moment (401, 403, 429, 2061, not sent, proven absent) are tried again, others with `retry={"refused"}`.
    A 403, a 401 that a fresh token does not cure, five unknown outcomes in a row, or five charges in a row that did not
    reach the service, stop the sending: `results.stopped` says why. Leaving the block sends nothing more and lets what
    is in flight be recorded.
    """
    return Charges(tracker, requests, max_in_flight, max_pending, rate, wait, retry)
