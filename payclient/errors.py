"""Every error of payclient. The dividing line is "may I send again?".

PayError                        each carries client_transaction_id where there is one
├── ConfigurationError          a setting is wrong, or the profile lacks a name that this call needs
│   └── LedgerMissingError      the ledger does not exist, and the call may not make one
├── InvalidRequestError         refused here, nothing was sent
├── TransportError
│   ├── NotSentError            proven not sent: safe to send again
│   └── OutcomeUnknownError     it may exist: never send again by itself
├── RefusedError                the service's error object (§7): this attempt created nothing
│   ├── ValidationFailedError   general code 800
│   ├── NotCreatedError         general code 22
│   │   └── CustomerBusyError   an entry with 2061, whatever the general code
│   ├── UnauthorizedError       401, 403
│   ├── RateLimitedError        429
│   ├── NotCancellableError     a cancel that came too late: it is not pending any more
│   └── NotReversibleError      a reverse that came too late
├── UsageError                  also a RuntimeError: closed, forked, another event loop
├── TransitionError             the lifecycle does not allow it
├── InvalidNotificationError
├── StillPendingError           also a TimeoutError: wait(timeout=...) ran out, tracking goes on
├── TrackerClosedError
├── AlreadyPaidError            the purchase is paid
├── PurchaseOpenError           another ask of the purchase may be paid
└── LedgerError
    ├── LedgerInUseError        another process owns the ledger
    ├── LedgerUnavailableError  it could not be read or written
    └── DifferentRequestError   the same client transaction id for something else

None holds a token, personal data of yours or an object of aiohttp, and each survives pickling. The service's own
messages are kept, bounded.
"""

from collections.abc import Iterable
from typing import Any

import attrs


@attrs.frozen
class ErrorDetail:
    """One entry of `errors` (§7): `message` is a text, or the name of the field at fault."""

    message: str
    error_code: int = 0
    error_descriptions: tuple[str, ...] = ()

    def user_message(self) -> str:
        """Return the text for a person: the message, with its descriptions where the entry is about a field."""
        return ": ".join(filter(None, (self.message, "; ".join(self.error_descriptions))))


class PayError(Exception):
    """The base of every error that payclient raises on purpose."""

    # Attributes with defaults, set after `args`: that is all that pickling needs. A value that few raise sites give is
    # an attribute of the class, set on the error that has it.
    def __init__(self, message: str = "", *, client_transaction_id: str | None = None) -> None:
        super().__init__(message)
        self.client_transaction_id = client_transaction_id


def named_error(error: PayError, client_transaction_id: str) -> PayError:
    """Return an error that names the charge: a copy where it names none, since others may be given it, too."""
    if error.client_transaction_id is not None:
        return error
    # Not by `copy`, which calls the class: an error that a token's callable raises may want other arguments.
    copied = error.__class__.__new__(error.__class__)
    copied.args = error.args
    copied.__dict__ |= error.__dict__ | {"client_transaction_id": client_transaction_id}
    return copied.with_traceback(error.__traceback__)


class ConfigurationError(PayError):
    """A setting is wrong, or the profile lacks a name that this call needs. Nothing was sent."""


class LedgerMissingError(ConfigurationError):
    """The ledger does not exist, and the call may not make one. Nothing was sent."""


class InvalidRequestError(PayError):
    """The request was refused here, before any I/O; `errors` has the shape of the service's code 800 (§7.5)."""

    def __init__(
        self,
        message: str | None = None,
        *,
        errors: Iterable[ErrorDetail] = (),
        client_transaction_id: str | None = None,
    ) -> None:
        self.errors: tuple[ErrorDetail, ...] = tuple(errors)
        super().__init__(
            "; ".join(self.user_messages) if message is None else message,
            client_transaction_id=client_transaction_id,
        )

    @property
    def user_messages(self) -> tuple[str, ...]:
        """The texts for a person, one for each fault."""
        return tuple(detail.user_message() for detail in self.errors)


class TransportError(PayError):
    """No usable answer came. The two subclasses tell apart whether anything can have happened."""


class NotSentError(TransportError):
    """Proven not to have reached the service: safe to send again."""


class OutcomeUnknownError(TransportError):
    """The request was sent, and no usable answer came: the charge may exist. Never send it again by yourself.

    `http_status` is the answer's, if one came; `candidate_id` is a transaction id seen in an answer that is
    otherwise not usable.
    """

    candidate_id: int | None = None

    def __init__(
        self, message: str = "", *, http_status: int | None = None, client_transaction_id: str | None = None
    ) -> None:
        super().__init__(message, client_transaction_id=client_transaction_id)
        self.http_status = http_status


class RefusedError(PayError):
    """The service refused: this attempt created nothing (§7).

    `error_code` and `message` are the general ones, `errors` the specific ones. Show `user_messages`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        error_code: int | None = None,
        errors: Iterable[ErrorDetail] = (),
        http_status: int | None = None,
        client_transaction_id: str | None = None,
    ) -> None:
        super().__init__(message, client_transaction_id=client_transaction_id)
        self.message = message
        self.error_code = error_code
        self.errors: tuple[ErrorDetail, ...] = tuple(errors)
        self.http_status = http_status

    @property
    def user_messages(self) -> tuple[str, ...]:
        """The texts for a person: those of `errors`, or the general one where `errors` is empty (§7.1)."""
        return tuple(text for detail in self.errors if (text := detail.user_message())) or (self.message,)

    def __str__(self) -> str:
        code = "" if self.error_code is None else f"[{self.error_code}] "
        return code + "; ".join(self.user_messages)


class ValidationFailedError(RefusedError):
    """General code 800: one or more fields break a rule (§7.4, §7.5)."""

    @property
    def fields(self) -> dict[str, list[str]]:
        """The descriptions by the name of the field at fault."""
        fields: dict[str, list[str]] = {}
        for detail in self.errors:
            fields.setdefault(detail.message, []).extend(detail.error_descriptions)
        return fields


class NotCreatedError(RefusedError):
    """General code 22: the transaction could not be created (§7.2)."""


class CustomerBusyError(NotCreatedError):
    """An entry 2061: the customer has a pending transaction with the merchant's store (§7.3)."""


class UnauthorizedError(RefusedError):
    """HTTP 401 or 403: the token does not allow this request."""


class RateLimitedError(RefusedError):
    """HTTP 429: too many requests. `retry_after` is in seconds; None: the answer names none."""

    retry_after: float | None = None


class NotCancellableError(RefusedError):
    """The profile's code for "not pending any more": nothing was withdrawn; query the status."""


class NotReversibleError(RefusedError):
    """The profile's code for "not any more": nothing was reversed."""


class UsageError(PayError, RuntimeError):
    """An object was used after it was closed, after a fork, from another event loop, or for what it cannot do."""


class TransitionError(PayError):
    """The lifecycle does not allow this event in this state; nothing was changed."""


class InvalidNotificationError(PayError):
    """The request that arrived at `responseUrl` is not a valid notification (§6)."""


class StillPendingError(PayError, TimeoutError):
    """`wait(timeout=...)` ran out. The sale is still followed; wait again."""


class TrackerClosedError(PayError):
    """The tracker is not open, or was closed during the call. What was sent is in the ledger."""


class AlreadyPaidError(PayError):
    """This purchase is paid: nothing was sent. `outcome` is what was paid."""

    outcome: Any = None


class PurchaseOpenError(PayError):
    """This purchase has an open ask, which may be paid: nothing was sent.

    `pending` is that ask (None after pickling), `until` when it may end, in UTC seconds since the epoch. In the past:
    the service has not said yet how it ended, and is queried once more.
    """

    pending: Any = None
    until: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: value for name, value in vars(self).items() if name != "pending"}
        return type(self), self.args, kept


class LedgerError(PayError):
    """The ledger, the durable record of attempts, cannot do what was called for."""


class LedgerInUseError(LedgerError):
    """Another process owns this ledger file."""


class LedgerUnavailableError(LedgerError):
    """The ledger could not be read or written; without a permit nothing is sent."""


class DifferentRequestError(LedgerError):
    """The ledger has this client transaction id with other content, or for another purchase; nothing was sent."""
