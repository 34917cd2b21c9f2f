"""Real crashes, a dozen of them; `python -m crashes` does hundreds."""

import json
import signal
from pathlib import Path

import pytest

from crashes.harness import Campaign, Hit, Report, crash, running_service


def test_nobody_is_charged_twice_whatever_is_killed_or_stopped() -> None:
    """SIGKILL at named and random points, SIGSTOP past the total time-out, and the same command again each time.

    Every outcome is the service's, every charge reached it once, and a stopped process that held a permit sent
    nothing when it woke.
    """
    report = crash(kills=12, stops=3, workers=6)
    assert report.violations == []
    assert report.kills >= 12
    assert report.stops >= 3
    assert report.places["SIGSTOP permit known"] >= 1
    assert report.said["NotSentError"] >= 1
    assert sum(name.startswith("SIGKILL ") for name in report.places) >= 8


def test_a_stopped_sender_sends_nothing_when_it_wakes(tmp_path: Path) -> None:
    """Stopped between its permit and the first byte, past the total time-out: nothing leaves, and it says so.

    The next run takes a new attempt, and its customer is charged once.
    """
    report = Report()
    with running_service(seed=2) as service:
        campaign = Campaign(service, tmp_path, "late", 1, report)
        assert campaign.run(Hit(signal.SIGSTOP, "permit known")) == 1
        assert json.loads(campaign.claims.read_text()) == {"id": "late-0", "error": "NotSentError"}
        assert service.sales("late") == []
        campaign.carry_out([], "single")
        assert len(service.sales("late")) == 1
    assert report.stops == 1
    assert report.violations == []


@pytest.mark.parametrize("mode", ["batch", "single"])
def test_a_ledger_that_forgets_is_caught(tmp_path: Path, mode: str) -> None:
    """The same harness over a ledger that dies with its process finds people who are charged twice."""
    report = Report()
    with running_service(seed=1) as service:
        campaign = Campaign(service, tmp_path, "broken", 6, report, forgets=True)
        campaign.carry_out([Hit(signal.SIGKILL, "answer read", 3)], mode)
    assert report.kills == 1
    assert any("charged twice" in violation for violation in report.violations)
