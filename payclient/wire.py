"""The seam to the network, and answers -> results or errors: total, pure functions of status, headers and body.

Answers are judged by their body's shape, since the document shows no HTTP statuses (§4.4).
"""

from __future__ import annotations

import datetime
import email.utils
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from payclient.bodies import is_id, parse_json, parse_object, read_details, read_message, repeats, seen_ids
from payclient.checks import text_fault
from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    NotCreatedError,
    OutcomeUnknownError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
    ValidationFailedError,
)
from payclient.links import is_safe_link
from payclient.profile import GAVE_UP, ServiceProfile
from payclient.results import FormLinks, PrepareResult, SaleResult, StatusReport

__all__ = ["BeforeSend", "HttpRequest", "HttpResponse", "Transport"]

#: Transactions under one client transaction id, beyond which an answer is none.
MAX_REPORTS = 1000

#: The fields of an answer that decide what it is.
_DECIDING = ("transactionId", "errorCode")


# These two are made for every call, so they are not frozen: that would cost as much as encoding a small Sale.
@attrs.define
class HttpRequest:
    """One request, ready to be sent. Its body holds personal data and its headers the token."""

    method: str
    #: Below the base address, beginning with `/`.
    path: str
    body: bytes = attrs.field(default=b"", repr=False)
    #: None until the session signs it with its token.
    headers: Mapping[str, str] | None = attrs.field(default=None, repr=False)
    client_transaction_id: str | None = None


@attrs.define
class HttpResponse:
    """One answer, read whole."""

    status: int
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes = attrs.field(default=b"", repr=False)


#: Awaited after the connection stands and before the first byte; raising in it aborts with 0 bytes sent.
BeforeSend = Callable[[], Awaitable[None]]

#: The seam to the network is a function. It awaits the `BeforeSend` it is given exactly once, right before the
#: first byte, and raises `NotSentError` only where it has proof of its own (the connection was seen dead).
Transport = Callable[[HttpRequest, BeforeSend | None], Awaitable[HttpResponse]]


def decode_sale(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> SaleResult:
    """Read the answer to a Sale (§2.5, §7). Raises a `RefusedError`, or `OutcomeUnknownError` for all else."""
    status = response.status
    data = parse_object(response.body)
    identifier = data.get("transactionId") if data is not None else None
    usable = data is None or (
        not repeats(response.body, *_DECIDING)
        and data.get("clientTransactionId") in (None, client_transaction_id)  # else another Sale is answered
    )
    if (
        200 <= status <= 299
        and data is not None
        and usable
        and data.get("errorCode") is None
        and is_id(identifier)
    ):
        return SaleResult(transaction_id=identifier, raw=data)  # type: ignore[arg-type]  # an id is an int
    seen = seen_ids(response.body)
    if seen == [] and usable:
        refusal = read_refusal(response, data, profile, client_transaction_id)
        if refusal is not None:
            del data  # error trackers show the local variables of a frame that raises, here and below
            raise refusal
    candidate = next((each for each in (identifier, *(seen or ())) if is_id(each)), None)
    del data, identifier, seen
    raise OutcomeUnknownError(
        f"HTTP {status} with no usable answer",
        http_status=status,
        candidate_id=candidate,
        client_transaction_id=client_transaction_id,
    )


def decode_prepare(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> PrepareResult:
    """Read the answer to a Button/Prepare: one with a `paymentId` is a success (§4.3).

    Raises a `RefusedError`, or `OutcomeUnknownError` for all else, an unsafe link too.
    """
    data = parse_object(response.body)
    payment_id = data.get("paymentId") if data is not None else None
    if data is not None and isinstance(payment_id, str) and payment_id.strip() and not text_fault(payment_id):
        links = {
            name: link
            for name, link in data.items()
            if name.startswith("payWith") and isinstance(link, str) and link
        }
        if links and all(is_safe_link(link, profile.link_hosts) for link in links.values()):
            return PrepareResult(
                payment_id=payment_id,
                links=FormLinks(links),
                raw=data,
                wallet_link_field=profile.wallet_link_field,
            )
        del links
    elif refusal := read_refusal(response, data, profile, client_transaction_id):
        del data, payment_id
        raise refusal
    del data, payment_id
    raise OutcomeUnknownError(
        f"HTTP {response.status} with no usable answer",
        http_status=response.status,
        client_transaction_id=client_transaction_id,
    )


def decode_status(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None = None
) -> StatusReport | None:
    """Read the answer to a status query, by the profile; None is "no such transaction".

    An array holds every transaction of a client transaction id: any accepted is accepted, else any pending is
    pending, else cancelled. Raises a `RefusedError`, or `OutcomeUnknownError` where nothing can be read and where a
    cache says "not found".
    """
    report = _decode_status(response, profile, client_transaction_id)
    if report is None and any(
        name.lower() == "age" and value.strip() != "0" for name, value in response.headers.items()
    ):
        raise OutcomeUnknownError(
            '"not found" came from a cache, of an earlier query',
            http_status=response.status,
            client_transaction_id=client_transaction_id,
        )
    return report


def _decode_status(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> StatusReport | None:
    if profile.status is None:
        raise ConfigurationError("a status query needs [status] in the profile")
    data = parse_json(response.body)
    if data is not None and _contradicts_itself(response, profile):
        data = None
    if 200 <= response.status <= 299:
        if (
            isinstance(data, list)
            and len(data) <= MAX_REPORTS
            and all(isinstance(entry, dict) for entry in data)
        ):
            return _reduce([_read_report(entry, profile) for entry in data])
        if isinstance(data, dict) and data.get("errorCode") is None and profile.status.state_field in data:
            return _read_report(data, profile)
    if isinstance(data, dict):
        code = data.get("errorCode")
        if (
            type(code) is int
            and code in profile.not_found_codes
            and (200 <= response.status <= 299 or 400 <= response.status <= 499)
            and data.get(profile.status.state_field) is None
        ):
            return None
        del code
        if refusal := read_refusal(response, data, profile, client_transaction_id):
            del data
            raise refusal
    del data
    if response.status == 429:
        raise RateLimitedError(
            "HTTP 429",
            http_status=429,
            retry_after=retry_after(response),
            client_transaction_id=client_transaction_id,
        )
    raise OutcomeUnknownError(
        f"HTTP {response.status} with no usable answer",
        http_status=response.status,
        client_transaction_id=client_transaction_id,
    )


def decode_report(response: HttpResponse, profile: ServiceProfile) -> StatusReport | None:
    """The status object of a success, which other operations answer too; None where the answer is none."""
    assert profile.status is not None  # noqa: S101 - the operations that answer one need it in their profile
    data = parse_object(response.body)
    if (
        data is None
        or not 200 <= response.status <= 299
        or data.get("errorCode") is not None
        or profile.status.state_field not in data
        or _contradicts_itself(response, profile)
    ):
        return None
    return _read_report(data, profile)


def _contradicts_itself(response: HttpResponse, profile: ServiceProfile) -> bool:
    """Return whether an object of the body gives two values to a field that decides."""
    status = profile.status
    assert status is not None  # noqa: S101 - both callers looked
    more = () if status.code_field is None else (status.code_field,)
    return repeats(response.body, *_DECIDING, status.state_field, *more)


def _read_report(entry: dict[str, Any], profile: ServiceProfile) -> StatusReport:
    unreadable = []

    def read(name: str, good: Callable[[object], bool]) -> Any:
        value = entry.get(name)
        if value is None or good(value):
            return value
        unreadable.append(name)
        return None

    return StatusReport(
        state=_read_state(entry, profile),
        transaction_id=read("transactionId", is_id),
        client_transaction_id=read("clientTransactionId", lambda value: type(value) is str),
        amount=read("amount", lambda value: type(value) is int),
        currency=read("currency", lambda value: type(value) is str),
        unreadable=tuple(unreadable),
        raw=entry,
    )


def _read_state(entry: dict[str, Any], profile: ServiceProfile) -> Any:
    """Return one of §3's words, or None: not mapped, or contradicted by the profile's code of the state."""
    status = profile.status
    assert status is not None  # noqa: S101 - decode_status looked
    word = entry.get(status.state_field)
    state = status.states.get(word) if isinstance(word, str) else None
    code = None if status.code_field is None else entry.get(status.code_field)
    if code is not None and (type(code) is not int or status.codes.get(code) != state):
        return None
    return state


def _reduce(reports: list[StatusReport]) -> StatusReport | None:
    """Return one report of all transactions under one client transaction id: §2's rule of arrays."""
    if not reports:
        return None
    ids = tuple(
        dict.fromkeys(report.transaction_id for report in reports if report.transaction_id is not None)
    )
    accepted = [report for report in reports if report.state == "Aceptado"]
    if accepted:
        # One that cannot be read is no verdict, so that it comes first only where no other is there.
        first = min(accepted, key=lambda report: bool(report.unreadable))
        paid = dict.fromkeys(report.transaction_id for report in accepted)
        also = tuple(i for i in paid if i not in (None, first.transaction_id))
        return attrs.evolve(first, also_accepted=also, others=_without(ids, first.transaction_id))
    # A word that the profile does not map outweighs a cancelled one: it may be anything.
    undecided = [report for report in reports if report.state != "Cancelado"]
    chosen = undecided or reports
    first = min(chosen, key=lambda report: (report.state != "Pendiente", not report.unreadable))
    if len({report.transaction_id for report in chosen}) > 1:
        return attrs.evolve(first, transaction_id=None, others=ids)
    return attrs.evolve(first, others=_without(ids, first.transaction_id))


def _without(ids: tuple[int, ...], own: int | None) -> tuple[int, ...]:
    return tuple(each for each in ids if each != own)


def read_refusal(
    response: HttpResponse,
    data: dict[str, Any] | None,
    profile: ServiceProfile,
    client_transaction_id: str | None,
) -> RefusedError | None:
    """The refusal that an answer without a transaction id is, or None where it proves nothing."""
    status = response.status
    code = data.get("errorCode") if data is not None else None
    if type(code) is not int or code == 0:
        code = None
    message, details = read_message(data), read_details(data)
    codes = {code, *(detail.error_code for detail in details)}
    if status in GAVE_UP or codes & profile.uncertain_codes:
        return None
    busy = any(detail.error_code == 2061 for detail in details)
    kind: type[RefusedError]
    if code is not None and (200 <= status <= 299 or 400 <= status <= 499):
        proven = True
    elif code is not None and 500 <= status <= 599:
        proven = busy or code in (22, 800)
    else:
        proven = status in (401, 403) and isinstance((data or {}).get("message"), str)
    if not (proven or status in profile.refusing_statuses):
        return None
    if busy and code is not None:
        kind = CustomerBusyError
    elif code == 800:
        kind = ValidationFailedError
    elif code == 22:
        kind = NotCreatedError
    elif status in (401, 403):
        kind = UnauthorizedError
    elif status == 429:
        return RateLimitedError(
            message or "HTTP 429",
            retry_after=retry_after(response),
            error_code=code,
            errors=details,
            http_status=status,
            client_transaction_id=client_transaction_id,
        )
    else:
        kind = RefusedError
    return kind(
        message or f"HTTP {status}",
        error_code=code,
        errors=details,
        http_status=status,
        client_transaction_id=client_transaction_id,
    )


def retry_after(response: HttpResponse) -> float | None:
    """Seconds from `Retry-After`; a date counts from the answer's own `Date`."""
    value = next((text for name, text in response.headers.items() if name.lower() == "retry-after"), None)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        date = next((text for name, text in response.headers.items() if name.lower() == "date"), None)
        try:
            until = email.utils.parsedate_to_datetime(value).replace(tzinfo=datetime.UTC)
            since = email.utils.parsedate_to_datetime(date or "").replace(tzinfo=datetime.UTC)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # `email.utils` lets all of them through
        seconds = (until - since).total_seconds()
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else None
