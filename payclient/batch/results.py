"""What became of one request of a batch."""

from __future__ import annotations

import attrs

from payclient.errors import CustomerBusyError, RateLimitedError, RefusedError, UnauthorizedError
from payclient.events import Evidence
from payclient.tracking.outcomes import Outcome, PendingSale

__all__ = ["ChargeResult", "passes", "passing"]

#: Refusals that another run tries again by itself: they were about the moment, not about the row.
PASSING = frozenset({UnauthorizedError.__name__, RateLimitedError.__name__, CustomerBusyError.__name__})


@attrs.frozen(kw_only=True)
class ChargeResult:
    """What became of one request: an outcome, or the error that says why nothing was created.

    - `request_key`: The request's client transaction id.
    - `outcome`: What is known of the sale; None where nothing was created.
    - `error`: Why nothing was created; None where there is an outcome.
    """

    request_key: str
    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def paid(self) -> bool | None:
        """True, False, or None: nobody knows."""
        if self.outcome is not None:
            return self.outcome.paid
        # An error of another kind says nothing of what the client transaction id may stand for already.
        return False if isinstance(self.error, RefusedError) else None


def passing(sale: PendingSale) -> bool:
    """Whether a refusal was about the moment: another run tries it again."""
    return passes(*sale.refusal)


def passes(evidence: Evidence, error_type: str | None) -> bool:
    """Whether a refusal of this kind is tried again."""
    return error_type in PASSING or evidence in (Evidence.NOT_SENT, Evidence.ABSENT)
