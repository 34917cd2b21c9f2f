"""The simulated crowd: what each customer does with a push, and after how long; and everyday scenarios by name."""

import math
from collections.abc import Mapping
from random import Random
from typing import Any, Final, Literal

from attrs import evolve, field, frozen

from .faults import Fault
from .messages import REASONS, Reason

Answer = Literal["approved", "rejected", "ignored"]
#: (median, sigma) of a lognormal delay in seconds.
Delay = tuple[float, float]

_CHANCES = ("approve", "reject", "ignore")


@frozen(kw_only=True)
class Answers:
    """The chance of each answer (together 1) and the delay, in seconds, after which it is given.

    A client transaction id and the seed decide the answer, so the order of arrival does not matter.

    - `approve`, `reject`, `ignore`: each chance, 0 to 1.
    - `delay`: the median and the sigma of a lognormal delay, in seconds.
    - `seed`: what decides, with the client transaction id.
    - `reasons`: why a bank declines instead of a customer who rejects, each as likely; without any the customer
      rejects.
    """

    approve: float = 0.8
    reject: float = 0.1
    ignore: float = 0.1
    delay: Delay = (20.0, 0.6)
    seed: int = 0
    reasons: tuple[Reason, ...] = ()

    def __attrs_post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability from 0 to 1, not {getattr(self, name)}")
        total = self.approve + self.reject + self.ignore
        if not math.isclose(total, 1, abs_tol=1e-9):
            raise ValueError(f"approve, reject and ignore must sum to 1, not {total:g}")
        if not (self.delay[0] > 0 and self.delay[1] >= 0):
            raise ValueError("delay must be a median above 0 and a sigma of at least 0")

    @classmethod
    def parse(cls, text: str, *, delay: Delay = (20.0, 0.6)) -> "Answers":
        """Read "approve=0.8,reject=0.1,ignore=0.1"; a name left out is 0."""
        chances: dict[str, Any] = dict.fromkeys(_CHANCES, 0.0)
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            if name not in chances:
                raise ValueError(f"{name!r} is not an answer: use {', '.join(_CHANCES)}")
            try:
                chances[name] = float(number)
            except ValueError:
                raise ValueError(f"{name} must be a number, not {number!r}") from None
        return cls(**chances, delay=delay)

    def draw(self, client_transaction_id: str) -> tuple[Answer, float, Reason | None]:
        """Return the answer to this sale's push, the seconds until it is given, and the bank's reason."""
        # Random hashes a text with SHA-512: the same in every process, and no secret hangs on it.
        chance = Random(f"{self.seed}:{client_transaction_id}")  # noqa: S311 - no secret
        point = chance.random()
        bounds: dict[Answer, float] = {"approved": self.approve, "rejected": self.approve + self.reject}
        answer: Answer = next((each for each, bound in bounds.items() if point < bound), "ignored")
        median, sigma = self.delay
        delay = chance.lognormvariate(math.log(median), sigma)
        return answer, delay, chance.choice(self.reasons) if answer == "rejected" and self.reasons else None


#: The service's test mode approves everything, at once (V).
TEST_MODE: Final = Answers(approve=1.0, reject=0.0, ignore=0.0, delay=(1.0, 0.0))


@frozen
class Scenario:
    """Customers, and the chances of faults; without `answers` no customer answers by itself."""

    meaning: str
    answers: Answers | None = None
    chances: Mapping[Fault, float] = field(factory=dict)


def _all(answer: str) -> Answers:
    return Answers.parse(f"{answer}=1", delay=(3.0, 0.4))


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "everyday": Scenario("8 of 10 approve within a minute, 1 rejects, 1 never answers.", Answers()),
    "by-hand": Scenario("Nobody answers but you, on the page or by the control API."),
    "all-approve": Scenario("Everybody approves within seconds.", _all("approve")),
    "declined-cards": Scenario(
        "Every card is declined, each for one of the bank's reasons.", evolve(_all("reject"), reasons=REASONS)
    ),
    "slow-customers": Scenario(
        "Half of the answers need four minutes or more; what needs five expires.",
        Answers(approve=0.9, reject=0.1, ignore=0.0, delay=(240.0, 0.3)),
    ),
    "lost-answer": Scenario(
        "Every Sale is created and its answer is lost; everybody approves.",
        _all("approve"),
        {Fault("reset"): 1.0},
    ),
    "flaky-gateway": Scenario(
        "4 of 10 requests meet a gateway's HTML, a 503, a 429, a reset or a cut body, executed or not.",
        _all("approve"),
        {
            Fault("html", operation="any"): 0.1,
            Fault("html", operation="any", when="after", status=504): 0.05,
            Fault("error", operation="any"): 0.1,
            Fault("throttle", operation="any", retry_after=1): 0.05,
            Fault("reset", operation="any", when="before"): 0.05,
            Fault("cut", operation="any"): 0.05,
        },
    ),
    "noisy-notifications": Scenario(
        "Notifications come early, late, twice, beside a forged one, or never.",
        _all("approve"),
        {
            Fault("early"): 0.2,
            Fault("late", seconds=10.0): 0.3,
            Fault("duplicate"): 0.3,
            Fault("forged"): 0.3,
            Fault("lost"): 0.1,
        },
    ),
}  # fmt: skip


def scenario(name: str) -> Scenario:
    """Return the scenario of a name; ValueError, with all names, for another."""
    if name not in SCENARIOS:
        raise ValueError(f"{name!r} is not a scenario: use {', '.join(SCENARIOS)}")
    return SCENARIOS[name]
