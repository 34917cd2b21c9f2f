"""The tracker's log: each record has the name of its event and the id of its charge, as the guide `logs` lists them."""

from __future__ import annotations

import logging
from typing import Literal

from payclient.logs import details

__all__: list[str] = []

logger: logging.Logger = logging.getLogger("payclient.tracker")


def log(
    level: Literal["info", "warning", "error", "critical"],
    event: str,
    client_transaction_id: str,
    message: str,
    *args: object,
) -> None:
    """Log what happened to one charge, whose id the message begins with; an empty id: to the process."""
    if client_transaction_id:
        message, args = "%s: " + message, (client_transaction_id, *args)
    number = logging.getLevelNamesMapping()[level.upper()]
    logger.log(number, message, *args, extra=details(event, client_transaction_id), stacklevel=2)
