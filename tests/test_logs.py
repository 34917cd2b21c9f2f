"""Log records have a stable event name and the id of the charge beside their message."""

import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

import payclient
from payclient.simulator import PAYPHONE, TEST_MODE, Simulator


async def test_a_formatter_may_name_the_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of a charge have its id, those of the process an empty one; both have the event."""
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.setFormatter(logging.Formatter("%(event)s %(client_transaction_id)s."))
    monkeypatch.setattr(logging.getLogger("payclient"), "handlers", [handler])

    def failing(exchange: payclient.Exchange) -> None:
        raise ValueError("0984111222")

    async with (
        Simulator(settings=PAYPHONE, answers=TEST_MODE) as service,
        payclient.open_tracker(
            service.url,
            "any",
            ledger=f"sqlite:{tmp_path}/charges.db",
            profile="payphone",
            clock=service.clock,
            on_exchange=failing,
        ) as tracker,
    ):
        await tracker.sale(
            payclient.SaleRequest(
                phone_number="0984111222", country_code="593", amount_without_tax=100, currency="USD",
                client_transaction_id="order-17", store_id="S1",
            )
        )  # fmt: skip
    assert shown.getvalue().splitlines()[:2] == ["ledger_created .", "on_exchange_failed order-17."]
    assert "0984111222" not in shown.getvalue()


async def test_a_level_and_a_broken_filter_of_the_application_cost_no_charge(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A record below the level is not made; one whose filter raises is lost."""
    logger = logging.getLogger("payclient.tracker")

    def broken(record: logging.LogRecord) -> bool:
        raise ValueError(record)

    async with Simulator() as service:
        with monkeypatch.context() as changed:
            changed.setattr(logger, "filters", [broken])
            async with payclient.open_tracker(service.url, "any"):
                pass
        logger.setLevel(logging.ERROR)
        try:
            async with payclient.open_tracker(service.url, "any"):
                pass
        finally:
            logger.setLevel(logging.NOTSET)
    assert caplog.records == []


async def test_records_come_where_a_factory_of_the_application_has_the_attributes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a program sets them that names them in the format of all its records."""
    make = logging.getLogRecordFactory()

    def with_defaults(*args: object, **options: object) -> logging.LogRecord:
        record = make(*args, **options)
        vars(record).update(event="", client_transaction_id="")
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", with_defaults)
    async with Simulator() as service, payclient.open_tracker(service.url, "any"):
        pass
    (record,) = caplog.records
    assert (vars(record)["event"], record.filename) == ("status_query_missing", "tracker.py")


#: Configures `logging` as Django does by a site's own LOGGING: after the imports, and without the key that spares what
#: is there.
CONFIGURED = """
import asyncio, logging.config
import payclient.web.routes, payclient.batch, payclient.telemetry
logging.config.dictConfig({"version": 1})
async def main():
    async with payclient.open_tracker("http://127.0.0.1:1", "any"):
        pass
asyncio.run(main())
"""


def test_a_configuration_after_the_imports_silences_nothing() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CONFIGURED], capture_output=True, text=True, check=True, timeout=60
    )
    assert "the profile names no status query" in ended.stderr
