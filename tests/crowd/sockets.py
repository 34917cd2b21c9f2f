"""A crowd over real sockets: the simulator, with a window of seconds."""

from __future__ import annotations

import asyncio

import payclient
from crowd.result import Result
from payclient.simulator import Answers, Settings, Simulator

__all__ = ["run"]

WINDOW = 6.0

PROFILE = payclient.ServiceProfile(
    name="crowd",
    sale_window=WINDOW,
    not_found_codes=frozenset({20}),
    status=payclient.StatusProfile(
        by_transaction_id="/api/Sale/{transaction_id}",
        by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
        state_field="transactionStatus",
    ),
)


async def run(sales: int, seed: int, ledger: str = "memory:") -> Result:
    """All at once, each with a customer of its own."""
    settings = Settings(
        sale_window=WINDOW,
        status_by_transaction_id="/api/Sale/{transaction_id}",
        status_by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    )
    answers = Answers.parse("approve=0.75,reject=0.15,ignore=0.1", delay=(1.0, 0.6), seed=seed)
    exchanges: list[payclient.Exchange] = []
    async with (
        Simulator(token="secret", settings=settings, answers=answers) as service,
        payclient.open_tracker(
            service.url, "secret", ledger=ledger, profile=PROFILE, on_exchange=exchanges.append
        ) as tracker,
    ):
        gate = asyncio.Semaphore(100)

        async def one(number: int) -> payclient.Outcome:
            request = payclient.SaleRequest(
                phone_number=f"09{number:08}", country_code="593", amount_without_tax=500, currency="USD",
                client_transaction_id=f"order-{number}", store_id="S1",
            )  # fmt: skip
            async with gate:
                pending = await tracker.sale(request)
            return await pending.wait()

        outcomes = await asyncio.gather(*(one(number) for number in range(sales)))
        counts = service.counts
        said = sum(outcome.paid is True for outcome in outcomes)
        different = [name for name, times in service.created_per_client_id.items() if times != 1]
        different += [outcome.client_transaction_id for outcome in outcomes if outcome.paid is None]
        if (said, len(outcomes) - said) != (counts.approved, counts.rejected + counts.expired):
            different.append(f"{said} paid where {counts.approved} were approved")
    return Result(
        sales=sales,
        accepted=counts.approved,
        queries=sum(exchange.operation == "status" for exchange in exchanges),
        different=tuple(different),
    )
