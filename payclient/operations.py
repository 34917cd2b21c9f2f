"""What a profile may add to Sale and Prepare: status, confirm, cancel, reverse; their requests, and their answers read.

Pure and total, as `wire` is. The document shows none of them (§4.2): each raises `ConfigurationError` naming the
setting that its profile lacks.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import quote

import orjson

from payclient.bodies import is_id, parse_json, parse_object
from payclient.checks import DOTS, text_fault
from payclient.errors import (
    ConfigurationError,
    ErrorDetail,
    InvalidRequestError,
    NotCancellableError,
    NotReversibleError,
    OutcomeUnknownError,
    RateLimitedError,
    RefusedError,
)
from payclient.profile import ServiceProfile
from payclient.results import StatusReport
from payclient.wire import HttpRequest, HttpResponse, decode_report, read_refusal, retry_after

__all__: list[str] = []


def status_request(
    profile: ServiceProfile, transaction_id: int | None, client_transaction_id: str | None
) -> HttpRequest:
    """The query of a status by one of its two ids."""
    if transaction_id is None and client_transaction_id is None:
        raise ConfigurationError(
            "a query needs a transaction id, or status.by_client_transaction_id in the profile"
        )
    _check_ids("status", transaction_id, client_transaction_id)
    status = profile.status
    if transaction_id is not None:
        path = status.by_transaction_id if status else None
        if path is None:
            raise ConfigurationError(
                "a query by transaction id needs status.by_transaction_id in the profile"
            )
        return HttpRequest("GET", path.replace("{transaction_id}", str(transaction_id)))
    path = status.by_client_transaction_id if status else None
    if path is None:
        raise ConfigurationError(
            "a query by client transaction id needs status.by_client_transaction_id in the profile"
        )
    assert client_transaction_id is not None  # noqa: S101 - one of the two is given
    return HttpRequest(
        "GET",
        path.replace("{client_transaction_id}", quote(client_transaction_id, safe="")),
        client_transaction_id=client_transaction_id,
    )


def confirm_request(profile: ServiceProfile, transaction_id: int, client_transaction_id: str) -> HttpRequest:
    """The confirmation of a paid form, by both of its ids."""
    for name, good in (
        ("transactionId", is_id(transaction_id)),
        ("clientTransactionId", is_client_id(client_transaction_id)),
    ):
        if not good:
            raise InvalidRequestError(errors=[_no_id(name)])
    confirm = profile.confirm
    if confirm is None:
        raise ConfigurationError("confirming a payment needs [confirm] in the profile")
    body = orjson.dumps(
        {
            confirm.transaction_id_field: transaction_id,
            confirm.client_transaction_id_field: client_transaction_id,
        }
    )
    return HttpRequest("POST", confirm.path, body, client_transaction_id=client_transaction_id)


def decode_confirm(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> StatusReport:
    """Read the answer to a confirmation: a status object. Raises a `RefusedError`, else `OutcomeUnknownError`."""
    report = decode_report(response, profile)
    if report is not None:
        return report
    error = _refusal(response, profile, client_transaction_id)
    if response.status == 429 and not isinstance(error, RefusedError):
        # Said plainly, since it may be repeated whatever became of it.
        raise RateLimitedError(
            "HTTP 429",
            http_status=429,
            retry_after=retry_after(response),
            client_transaction_id=client_transaction_id,
        )
    raise error


def undo_request(
    profile: ServiceProfile,
    operation: Literal["cancel", "reverse"],
    transaction_id: int | None,
    client_transaction_id: str | None,
) -> HttpRequest:
    """A cancel or a reverse by one of the two ids."""
    if transaction_id is None and client_transaction_id is None:
        raise TypeError(f"{operation} takes transaction_id or client_transaction_id")
    _check_ids(operation, transaction_id, client_transaction_id)
    undo = profile.cancel if operation == "cancel" else profile.reverse
    value: int | str | None
    if transaction_id is not None:
        setting, value = "by_transaction_id", transaction_id
        path = undo.by_transaction_id if undo else None
        field = undo.transaction_id_field if undo else None
    else:
        setting, value = "by_client_transaction_id", client_transaction_id
        path = undo.by_client_transaction_id if undo else None
        field = undo.client_transaction_id_field if undo else None
    if path is None:
        raise ConfigurationError(f"this {operation} needs {operation}.{setting} in the profile")
    return HttpRequest(
        "POST", path, orjson.dumps({field: value}), client_transaction_id=client_transaction_id
    )


def decode_undone(
    response: HttpResponse,
    profile: ServiceProfile,
    client_transaction_id: str | None,
    operation: Literal["cancel", "reverse"],
) -> None:
    """Read the answer to a cancel or a reverse: a bare `true` is the success, and nothing else is.

    Raises a `RefusedError`, of its own class for the profile's codes of "too late", else `OutcomeUnknownError`.
    """
    if 200 <= response.status <= 299 and parse_json(response.body) is True:
        return
    error = _refusal(response, profile, client_transaction_id)
    undo = profile.cancel if operation == "cancel" else profile.reverse
    if isinstance(error, RefusedError) and undo is not None:
        codes = {error.error_code, *(detail.error_code for detail in error.errors)}
        if codes & undo.too_late_codes:
            kind = NotCancellableError if operation == "cancel" else NotReversibleError
            error = kind(
                error.message,
                error_code=error.error_code,
                errors=error.errors,
                http_status=error.http_status,
                client_transaction_id=client_transaction_id,
            )
    raise error


def _refusal(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> RefusedError | OutcomeUnknownError:
    refusal = read_refusal(response, parse_object(response.body), profile, client_transaction_id)
    if refusal is not None:
        return refusal
    return OutcomeUnknownError(
        f"HTTP {response.status} with no usable answer",
        http_status=response.status,
        client_transaction_id=client_transaction_id,
    )


def _check_ids(operation: str, transaction_id: int | None, client_transaction_id: str | None) -> None:
    """One of the two, and an id."""
    if transaction_id is not None and client_transaction_id is not None:
        raise TypeError(f"{operation} takes transaction_id or client_transaction_id")
    if transaction_id is not None and not is_id(transaction_id):
        raise InvalidRequestError(errors=[_no_id("transactionId")])
    if client_transaction_id is not None and not is_client_id(client_transaction_id):
        raise InvalidRequestError(errors=[_no_id("clientTransactionId")])


def _no_id(name: str) -> ErrorDetail:
    what = "is an int from 1 to 2**63 - 1" if name == "transactionId" else "is no client transaction id"
    return ErrorDetail(name, 0, (what,))


def is_client_id(value: object) -> bool:
    """Whether a value can be a client transaction id at all."""
    return isinstance(value, str) and bool(value.strip()) and text_fault(value) is None and value not in DOTS
