"""Each campaign of real processes in short; `python -m campaigns` does the long ones."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import required
from campaigns import power, scenarios
from campaigns.harness import Report
from postgres_server import PostgresServer


def test_nobody_is_charged_twice_and_every_report_is_true() -> None:
    """Killed and stopped in a sale, or in a batch through faults; where the ledger dies too, some are charged twice."""
    campaigns: list[Callable[[], Report]] = [
        lambda: scenarios.crashes(kills=2, stops=0),
        lambda: scenarios.crashes(kills=0, stops=1),
        lambda: scenarios.batch(rows=60, kills=1, faults=0.1, seed=1),
        scenarios.forgets,
    ]
    with ThreadPoolExecutor(len(campaigns)) as pool:  # at once: they mostly wait for customers
        killed, stopped, batch, forgets = pool.map(lambda campaign: campaign(), campaigns)
    assert (killed.violations, stopped.violations, batch.violations) == ([], [], [])
    assert killed.counts["kills"] >= 2
    assert stopped.counts["stops"] >= 1
    assert any("charged twice" in each for each in forgets.violations)


def test_every_host_tells_the_truth(postgres: PostgresServer) -> None:
    """Two hosts over one PostgreSQL that is cut and restarted, one of them killed."""
    report = scenarios.hosts(postgres, kills=1, stops=0, rows=12, hosts=2, seed=3)
    assert report.violations == []


def test_no_acknowledged_permit_is_lost_when_the_power_fails() -> None:
    """With the shipped settings every acknowledged permit and answer survives; `--weaker 1` finds some that do not."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux, to note what SQLite writes and syncs")
    compiler = required.program("cc", "gcc", "clang")
    assert power.fail(images=24, compiler=compiler).violations == []
