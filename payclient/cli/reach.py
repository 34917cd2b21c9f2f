"""Whether the service can be reached, by the results of a run's requests."""

from __future__ import annotations

from typing import Literal

from payclient.session import Exchange

#: The service counts as away after this many requests without an answer, and this many seconds since the first.
AWAY_REQUESTS, AWAY_SECONDS = 2, 10.0

#: Errors of the network. Any other error without an answer is of this machine, such as the ledger's.
_OF_THE_NETWORK = frozenset({"TransportError", "NotSentError", "OutcomeUnknownError"})


class Reach:
    """Finds when the service has gone, and when it is back; each is found once."""

    def __init__(self) -> None:
        self._unanswered = 0
        #: When the first request without an answer ended, by the caller's clock.
        self.since: float = 0.0
        self._is_away = False

    def note(self, exchange: Exchange, now: float) -> Literal["unreachable", "reachable"] | None:
        """Count a request that ended, and return a change that people should know of. A 5xx is an answer, too."""
        if exchange.http_status is not None:
            was_away, self._unanswered, self._is_away = self._is_away, 0, False
            return "reachable" if was_away else None
        if exchange.error in _OF_THE_NETWORK:
            self.since = self.since if self._unanswered else now
            self._unanswered += 1
            if not self._is_away and self._unanswered >= AWAY_REQUESTS and now - self.since >= AWAY_SECONDS:
                self._is_away = True
                return "unreachable"
        return None
