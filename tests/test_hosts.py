"""One batch on four hosts, real processes over a real PostgreSQL, a few of them hit; `python -m hosts` hits many."""

from pathlib import Path

from hosts.harness import HOSTS, Batch, Report, batches
from postgres_server import PostgresServer


async def test_every_host_tells_the_truth_whatever_is_killed_or_stopped(postgres: PostgresServer) -> None:
    """SIGKILL, SIGSTOP past lease and time-out, listeners and writers cut, the server restarted in the middle.

    Each row is charged once, every host's report says of all rows what the service says, and nobody is left asleep.
    """
    report = await batches(postgres, kills=2, stops=1, seed=3, rows=20)
    assert report.violations == []
    assert (report.kills, report.stops) == (2, 1)
    assert report.restarts == report.batches
    assert report.rows == report.posted


async def test_hosts_without_a_common_ledger_are_caught(postgres: PostgresServer, tmp_path: Path) -> None:
    """The same harness over ledgers of their own finds people who are charged by every host."""
    report = Report()
    batch = Batch(postgres, "postgres", tmp_path, 0, report, seed=0, ledger="memory:", rows=4, rounds=0)
    await batch.carry_out(0, 0, cuts=False, restarts=False)
    assert report.posted > batch.rows
    assert any("charged twice" in violation for violation in report.violations)
    assert report.runs == HOSTS
