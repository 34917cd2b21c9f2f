"""Log records, each with a stable event name and the id of its charge, as the guide `logs` lists them."""

import logging
from contextlib import suppress
from typing import Literal

from payclient.validation import escape_text


class Log:
    """One logger, by the name of what it is about."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(
        self,
        level: Literal["info", "warning", "error", "critical"],
        event: str,
        client_transaction_id: str,
        message: str,
        *args: object,
    ) -> None:
        """Log what happened to one charge, whose id the message begins with; an empty id: to the process.

        An id that anybody may have sent makes no line of its own: what is not printable of it is escaped.
        """
        client_transaction_id = escape_text(client_transaction_id)
        if client_transaction_id:
            message, args = "%s: " + message, (client_transaction_id, *args)
        # Not made at the import: `logging.config` silences the loggers that are there before it, unless told not to.
        number, logger = logging.getLevelNamesMapping()[level.upper()], logging.getLogger(self._name)
        if not logger.isEnabledFor(number):
            return
        # `logging` lets through what a filter raises: a charge must not fail by it.
        with suppress(Exception):
            path, line, function, _ = logger.findCaller(stacklevel=2)
            record = logger.makeRecord(logger.name, number, path, line, message, args, None, function)
            # Not by `extra=`, which raises where the application's own records have these attributes by default.
            vars(record).update(event=event, client_transaction_id=client_transaction_id)
            logger.handle(record)


# Those of many modules
ledger_log: Log = Log("payclient.ledger")
tracker_log: Log = Log("payclient.tracker")
