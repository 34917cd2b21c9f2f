"""Everyday scenarios by name, each a few lines of one table."""

from collections.abc import Mapping
from typing import Final

from attrs import evolve, frozen

from .answers import Answers
from .faults import Fault, Faults
from .messages import REASONS


@frozen
class Scenario:
    """Customers and faults; without `answers` the customers wait for you."""

    says: str
    answers: Answers | None = None
    faults: Faults = Faults()


def _all(answer: str) -> Answers:
    return Answers.parse(f"{answer}=1", delay=(3.0, 0.4))


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "everyday": Scenario("8 of 10 approve within a minute, 1 rejects, 1 never answers.", Answers()),
    "by-hand": Scenario("Nobody answers but you, on the page or by the control API."),
    "all-approve": Scenario("Everybody approves within seconds.", _all("approve")),
    "all-reject": Scenario("Everybody rejects within seconds.", _all("reject")),
    "declined-cards": Scenario(
        "Every card is declined, each for one of the bank's reasons.", evolve(_all("reject"), reasons=REASONS)
    ),
    "nobody-answers": Scenario("Every push expires.", _all("ignore")),
    "slow-customers": Scenario(
        "Half of the answers need four minutes or more; what needs five expires.",
        Answers(approve=0.9, reject=0.1, ignore=0.0, delay=(240.0, 0.3)),
    ),
    "lost-answer": Scenario(
        "Every Sale is created and its answer is lost; everybody approves.",
        _all("approve"),
        Faults({Fault("reset"): 1.0}),
    ),
    "flaky-gateway": Scenario(
        "4 of 10 requests meet a gateway's HTML, a 503, a 429, a reset or a cut body, executed or not.",
        _all("approve"),
        Faults({
            Fault("html", operation="any"): 0.1,
            Fault("html", operation="any", when="after", status=504): 0.05,
            Fault("error", operation="any"): 0.1,
            Fault("throttle", operation="any", retry_after=1): 0.05,
            Fault("reset", operation="any", when="before"): 0.05,
            Fault("cut", operation="any"): 0.05,
        }),
    ),
    "slow-service": Scenario(
        "Every answer comes 3 seconds late, and 1 Sale in 20 is never answered.",
        _all("approve"),
        Faults({
            Fault("stall"): 0.05,
            Fault("latency", seconds=3.0): 0.95,
            Fault("latency", operation="status", seconds=3.0): 1.0,
        }),
    ),
    "lost-notifications": Scenario(
        "Everybody approves, and no notification arrives.", _all("approve"), Faults({Fault("lost"): 1.0})
    ),
    "noisy-notifications": Scenario(
        "Notifications come early, late, twice or beside a forged one.",
        _all("approve"),
        Faults({
            Fault("early"): 0.2,
            Fault("late", seconds=10.0): 0.3,
            Fault("duplicate"): 0.3,
            Fault("forged"): 0.3,
        }),
    ),
    "busy-customers": Scenario(
        "Half of the customers have another pending transaction: code 2061.",
        _all("approve"),
        Faults({Fault("refuse", error_code=2061): 0.5}),
    ),
}  # fmt: skip


def scenario(name: str) -> Scenario:
    """Return the scenario of a name; ValueError, with all names, if there is none."""
    try:
        return SCENARIOS[name]
    except KeyError:
        raise ValueError(f"{name!r} is not a scenario: use {', '.join(SCENARIOS)}") from None
