"""What became of one request of a batch."""

from __future__ import annotations

import attrs

from payclient.errors import (
    AlreadyPaidError,
    CustomerBusyError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
)
from payclient.events import Evidence
from payclient.tracking.outcomes import Outcome

__all__ = ["ChargeResult"]

#: Names of the errors of such refusals.
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
        """True, False, or None: nobody knows. False of a row whose purchase is paid by another charge."""
        if self.outcome is not None:
            return self.outcome.paid
        # After an error of another kind an earlier attempt of the id may exist.
        return False if isinstance(self.error, RefusedError | AlreadyPaidError) else None


def passes(evidence: Evidence, error_type: str | None) -> bool:
    """Return whether a refusal was about the moment and not about the row, so that another run tries the row again."""
    return error_type in PASSING or evidence in (Evidence.NOT_SENT, Evidence.ABSENT)
