"""The external notification: one POST of JSON for each approved payment, to one address of the merchant's.

The document has none; where a service has, it is told of at `Settings.external_notification_url`.
"""

from collections import Counter

import aiohttp
import orjson

from .notify import Notifier
from .settings import Settings
from .status import external_notification
from .transactions import Transaction

__all__ = ["ExternalNotices"]

_LONGEST = 4096  # bytes of an acknowledgement that are read


class ExternalNotices:
    """Sends each once, by the notifier; what came of it is written into the transaction, and nothing raised."""

    def __init__(self, settings: Settings, notifier: Notifier, tally: Counter[str]) -> None:
        self._settings = settings
        self._notifier = notifier
        self._tally = tally

    def start(self, transaction: Transaction) -> None:
        """Tell of an approved payment in the background, if there is an address for it."""
        url, number = self._settings.external_notification_url, transaction.transaction_id
        if url is not None and number is not None:
            self._notifier.run(number, lambda session: self._deliver(session, transaction, url))

    async def _deliver(self, session: aiohttp.ClientSession, transaction: Transaction, url: str) -> None:
        body = orjson.dumps(external_notification(transaction, self._settings))
        headers = {"Content-Type": "application/json"}
        try:
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                answer = await response.content.read(_LONGEST)
                transaction.external_notification = _acknowledgement(answer) or f"HTTP {response.status}"
                self._tally["external_notifications_sent"] += 1
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            transaction.external_notification = type(error).__name__
            self._tally["external_notifications_failed"] += 1


def _acknowledgement(answer: bytes) -> str | None:
    """What the merchant's answer says in the service's words; None if it says nothing of the kind."""
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    match said:
        case {"Response": True, "ErrorCode": "000"}:
            return "acknowledged"
        case {"ErrorCode": "333"}:
            return "duplicate"
    return None
