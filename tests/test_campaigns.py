"""Each campaign of real processes in short; `python -m campaigns` does the long ones."""

import sys

import pytest

import required
from campaigns import power, scenarios
from postgres_server import PostgresServer


def test_nobody_is_charged_twice_whatever_is_killed_or_stopped() -> None:
    """SIGKILL and SIGSTOP in the life of a sale, and the same command again each time: every outcome is true."""
    report = scenarios.crashes(kills=2, stops=1)
    assert report.violations == []
    assert (report.counts["kills"], report.counts["stops"]) >= (2, 1)


def test_every_row_of_a_killed_batch_ends_as_the_service_did_it() -> None:
    """Lost answers, 5xx, stalls, 429 and notifications of every kind: each report is true."""
    report = scenarios.batch(rows=60, kills=1, faults=0.1, seed=1)
    assert report.violations == []


def test_every_host_tells_the_truth(postgres: PostgresServer) -> None:
    """Two hosts over one PostgreSQL that is cut and restarted, one of them killed."""
    report = scenarios.hosts(postgres, kills=1, stops=0, rows=12, hosts=2, seed=3)
    assert report.violations == []


def test_a_ledger_that_forgets_is_caught() -> None:
    """The same harness finds customers who are charged twice where the ledger dies with its process."""
    assert any("charged twice" in each for each in scenarios.forgets().violations)


def test_no_acknowledged_permit_is_lost_when_the_power_fails() -> None:
    """With the shipped settings every acknowledged permit and answer survives; `--weaker 1` finds some that do not."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux, to note what SQLite writes and syncs")
    compiler = required.program("cc", "gcc", "clang")
    assert power.fail(images=24, compiler=compiler).violations == []
