"""The simulated crowd: what each customer does with a push, and after how long."""

import math
from collections.abc import Callable
from random import Random
from typing import Literal

from attrs import frozen

from .messages import Reason

Answer = Literal["approved", "rejected", "ignored"]
#: (median, sigma) of a lognormal delay in seconds, or a function that draws one.
Delay = tuple[float, float] | Callable[[Random], float]

_CHANCES = ("approve", "reject", "ignore")


@frozen(kw_only=True)
class Answers:
    """The chance of each answer (together 1) and the delay, in seconds, after which it is given.

    A client transaction id and the seed decide the answer, so the order of arrival does not matter.
    """

    approve: float = 0.8
    reject: float = 0.1
    ignore: float = 0.1
    delay: Delay = (20.0, 0.6)
    seed: int = 0
    #: Why a bank declines instead of a customer who rejects, each as likely; without any the customer rejects.
    reasons: tuple[Reason, ...] = ()

    def __attrs_post_init__(self) -> None:
        for name in _CHANCES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability from 0 to 1, not {getattr(self, name)}")
        total = self.approve + self.reject + self.ignore
        if not math.isclose(total, 1, abs_tol=1e-9):
            raise ValueError(f"approve, reject and ignore must sum to 1, not {total:g}")
        if not callable(self.delay) and not (self.delay[0] > 0 and self.delay[1] >= 0):
            raise ValueError("delay must be a median above 0 and a sigma of at least 0")

    @classmethod
    def parse(cls, text: str, *, delay: Delay = (20.0, 0.6), seed: int = 0) -> "Answers":
        """Read "approve=0.8,reject=0.1,ignore=0.1"; a name left out is 0."""
        chances: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            if name not in _CHANCES:
                raise ValueError(f"{name!r} is not an answer: use {', '.join(_CHANCES)}")
            if name in chances:
                raise ValueError(f"{name} is given twice")
            try:
                chances[name] = float(number)
            except ValueError:
                raise ValueError(f"{name} must be a number, not {number!r}") from None
        return cls(delay=delay, seed=seed, **{name: chances.get(name, 0.0) for name in _CHANCES})  # type: ignore[arg-type]

    def reason(self, client_transaction_id: str) -> Reason | None:
        """Return the reason of a decline."""
        chance = Random(f"{self.seed}:{client_transaction_id}:reason")  # noqa: S311 - no secret
        return chance.choice(self.reasons) if self.reasons else None

    def draw(self, client_transaction_id: str) -> tuple[Answer, float]:
        """Return the answer to this sale's push and the seconds until it is given."""
        # Random hashes a text with SHA-512: the same in every process, and no secret hangs on it.
        chance = Random(f"{self.seed}:{client_transaction_id}")  # noqa: S311 - no secret
        point = chance.random()
        if point < self.approve:
            answer: Answer = "approved"
        elif point < self.approve + self.reject:
            answer = "rejected"
        else:
            answer = "ignored"
        if callable(self.delay):
            return answer, max(0.0, self.delay(chance))
        median, sigma = self.delay
        return answer, chance.lognormvariate(math.log(median), sigma)
