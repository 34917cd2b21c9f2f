"""Models <-> bytes, and answers -> results or errors: total, pure functions of status, headers and body.

Answers are judged by their body's shape, since the document shows no HTTP statuses (§4.4).
"""

from __future__ import annotations

import datetime
import email.utils
import ipaddress
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import urlsplit

import attrs
import cattrs.fns
import orjson
from cattrs.gen import make_dict_unstructure_fn, override
from cattrs.preconf.orjson import OrjsonConverter, make_converter

from payclient.checks import text_fault
from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    ErrorDetail,
    InvalidRequestError,
    NotCreatedError,
    OutcomeUnknownError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
    ValidationFailedError,
)
from payclient.models import (
    BillTo,
    FormLinks,
    LineItem,
    Order,
    PrepareRequest,
    PrepareResult,
    SaleRequest,
    SaleResult,
    StatusReport,
)
from payclient.profile import ServiceProfile
from payclient.spelling import to_service

__all__ = ["BeforeSend", "HttpRequest", "HttpResponse", "Transport"]

#: §2.5: an integer; a 64-bit one, since no service counts further.
MAX_ID = 2**63 - 1

#: Transactions under one client transaction id, beyond which an answer is none.
MAX_REPORTS = 1000

#: The fields of an answer that decide what it is.
_DECIDING = ("transactionId", "errorCode")

#: An error's texts are kept to this many characters each, and this many entries.
MAX_MESSAGE, MAX_ENTRIES = 500, 50


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


# --- Models -> bytes


class Encoder:
    """Encodes requests with the names of one profile."""

    def __init__(self, profile: ServiceProfile) -> None:
        self._profile = profile
        self._sale, self._prepare = _unstructurers(
            profile.nick_name_flag, profile.language_field, profile.response_url_field
        )
        self._checks = bool(profile.max_lengths or profile.ranges)
        known = {field.name for model in (SaleRequest, PrepareRequest) for field in attrs.fields(model)}
        for setting, names in (("max_lengths", profile.max_lengths), ("ranges", profile.ranges)):
            for name in names:
                if name not in known:
                    raise ConfigurationError(f"profile setting {setting}: no request has a field {name}")

    def sale(self, request: SaleRequest) -> bytes:
        """The body of a Sale (§2.2). `InvalidRequestError`, `ConfigurationError`: what the profile knows."""
        if request.by_nick_name:
            if self._profile.nick_name_flag is None:
                raise ConfigurationError("charging a nick name needs nick_name_flag in the profile")
            if request.phone_number is None and not self._profile.phone_optional_with_nick_name:
                _refuse(request, "phone_number", "is required")
        if self._checks:
            self._check(request)
        return orjson.dumps(self._sale(request))

    def prepare(self, request: PrepareRequest) -> bytes:
        """The body of a Button/Prepare (§2.3)."""
        if request.language is not None and self._profile.language_field is None:
            raise ConfigurationError("a form's language needs language_field in the profile")
        if self._checks:
            self._check(request)
        return orjson.dumps(self._prepare(request))

    def _check(self, request: SaleRequest | PrepareRequest) -> None:
        # Raised here, where no local variable holds a value: error trackers show them.
        if faults := self._faults(request):
            raise InvalidRequestError(errors=faults, client_transaction_id=request.client_transaction_id)

    def _faults(self, request: SaleRequest | PrepareRequest) -> list[ErrorDetail]:
        faults = []
        for name, longest in self._profile.max_lengths.items():
            value = getattr(request, name, None)
            if isinstance(value, str) and len(value) > longest:
                faults.append(_fault(name, f"is longer than {longest} characters"))
        for name, (smallest, largest) in self._profile.ranges.items():
            value = getattr(request, name, None)
            if type(value) is int and not smallest <= value <= largest:
                faults.append(_fault(name, f"is {smallest} to {largest}"))
        return faults


def _fault(name: str, description: str) -> ErrorDetail:
    return ErrorDetail("Amount" if name == "amount" else to_service(name), 0, (description,))


def _refuse(request: SaleRequest, name: str, description: str) -> NoReturn:
    raise InvalidRequestError(
        errors=[_fault(name, description)], client_transaction_id=request.client_transaction_id
    )


@lru_cache(maxsize=16)
def _unstructurers(
    nick_name_flag: str | None, language_field: str | None, response_url_field: str
) -> tuple[Callable[[SaleRequest], dict[str, Any]], Callable[[PrepareRequest], dict[str, Any]]]:
    """The functions that cattrs writes for a profile's names; the models checked every value already."""
    converter = make_converter(detailed_validation=False)
    special = {
        ("SaleRequest", "by_nick_name"): override(rename=nick_name_flag)
        if nick_name_flag
        else override(omit=True),
        ("PrepareRequest", "language"): override(rename=language_field)
        if language_field
        else override(omit=True),
        ("PrepareRequest", "response_url"): override(rename=response_url_field),
    }
    # Inner classes first: the outer functions call the inner ones directly.
    _register(converter, BillTo, special, {})
    _register(converter, LineItem, special, {})
    bill_to, item = converter.get_unstructure_hook(BillTo), converter.get_unstructure_hook(LineItem)
    _register(
        converter,
        Order,
        special,
        {"bill_to": bill_to, "line_items": lambda items: [item(one) for one in items]},
    )
    order = converter.get_unstructure_hook(Order)
    _register(converter, SaleRequest, special, {"order": order})
    _register(converter, PrepareRequest, special, {"order": order})
    return converter.get_unstructure_hook(SaleRequest), converter.get_unstructure_hook(PrepareRequest)


def _register(
    converter: OrjsonConverter,
    model: type,
    special: Mapping[tuple[str, str], Any],
    inner: Mapping[str, Callable[[Any], Any]],
) -> None:
    overrides = {}
    for field in attrs.fields(model):
        rule = special.get((model.__name__, field.name), override(rename=to_service(field.name)))
        hook = inner.get(field.name, cattrs.fns.identity)
        overrides[field.name] = attrs.evolve(rule, unstruct_hook=hook)
    hook = make_dict_unstructure_fn(model, converter, _cattrs_omit_if_default=True, **overrides)
    converter.register_unstructure_hook(model, hook)


# --- Bytes -> models


def decode_sale(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> SaleResult:
    """Read the answer to a Sale (§2.5, §7). Raises a `RefusedError`, or `OutcomeUnknownError` for all else."""
    status = response.status
    data = parse_object(response.body)
    identifier = data.get("transactionId") if data is not None else None
    if data is not None and identifier is not None and data.get("errorCode") is None:
        if 200 <= status <= 299 and is_id(identifier) and not _repeats(response.body, *_DECIDING):
            return SaleResult(transaction_id=identifier, raw=data)
    elif (
        identifier is None
        and (refusal := read_refusal(response, data, profile, client_transaction_id))
        and not (data is not None and _repeats(response.body, *_DECIDING))
    ):
        del data  # error trackers show the local variables of a frame that raises, here and below
        raise refusal
    candidate = identifier if is_id(identifier) else None
    del data, identifier
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


def is_safe_link(link: str, hosts: frozenset[str] | None) -> bool:
    """Whether a form link may be handed out: https (http for loopback), no tricks, one of the hosts where given."""
    if not link.isascii() or not link.isprintable() or " " in link or "\\" in link:
        return False
    try:
        parts = urlsplit(link)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or "@" in parts.netloc or (hosts is not None and host not in hosts):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def decode_status(response: HttpResponse, profile: ServiceProfile) -> StatusReport | None:
    """Read the answer to a status query, by the profile; None is "no such transaction".

    An array holds every transaction of a client transaction id: any accepted is accepted, else any pending is
    pending, else cancelled. Raises a `RefusedError`, or `OutcomeUnknownError` where nothing can be read.
    """
    if profile.status is None:
        raise ConfigurationError("a status query needs [status] in the profile")
    data = parse_json(response.body)
    if data is not None and _repeats(response.body, *_DECIDING, profile.status.state_field):
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
        if refusal := read_refusal(response, data, profile, None):
            del data
            raise refusal
    del data
    if response.status == 429:
        raise RateLimitedError("HTTP 429", http_status=429, retry_after=retry_after(response))
    raise OutcomeUnknownError(f"HTTP {response.status} with no usable answer", http_status=response.status)


def decode_report(response: HttpResponse, profile: ServiceProfile) -> StatusReport | None:
    """The status object of a success, which other operations answer too; None where the answer is none."""
    assert profile.status is not None  # noqa: S101 - the operations that answer one need it in their profile
    data = parse_object(response.body)
    if (
        data is None
        or not 200 <= response.status <= 299
        or data.get("errorCode") is not None
        or profile.status.state_field not in data
        or _repeats(response.body, *_DECIDING, profile.status.state_field)
    ):
        return None
    return _read_report(data, profile)


def _read_report(entry: dict[str, Any], profile: ServiceProfile) -> StatusReport:
    assert profile.status is not None  # noqa: S101 - decode_status looked
    word, identifier = entry.get(profile.status.state_field), entry.get("transactionId")
    client_id, amount, currency = (entry.get(name) for name in ("clientTransactionId", "amount", "currency"))
    return StatusReport(
        state=profile.status.states.get(word) if isinstance(word, str) else None,  # type: ignore[arg-type]  # the profile's words are checked
        transaction_id=identifier if is_id(identifier) else None,
        client_transaction_id=client_id if isinstance(client_id, str) else None,
        amount=amount if type(amount) is int else None,
        currency=currency if isinstance(currency, str) else None,
        raw=entry,
    )


def _reduce(reports: list[StatusReport]) -> StatusReport | None:
    if not reports:
        return None
    for state in ("Aceptado", "Pendiente", None):
        # A word that the profile does not map outweighs a cancelled one: it may be anything.
        found = [report for report in reports if report.state == state]
        if found:
            if state != "Aceptado":
                return found[0]
            _, *others = dict.fromkeys(report.transaction_id for report in found)
            return attrs.evolve(found[0], also_accepted=tuple(i for i in others if i is not None))
    return reports[0]


def read_refusal(
    response: HttpResponse,
    data: dict[str, Any] | None,
    profile: ServiceProfile,
    client_transaction_id: str | None,
) -> RefusedError | None:
    """The refusal that an answer without a transaction id is, or None where it proves nothing."""
    status = response.status
    code = data.get("errorCode") if data is not None else None
    if type(code) is not int:
        code = None
    message, details = _read_message(data), _read_details(data)
    busy = any(detail.error_code == 2061 for detail in details)
    kind: type[RefusedError]
    if code is not None and (200 <= status <= 299 or 400 <= status <= 499):
        proven = True
    elif code is not None and 500 <= status <= 599:
        proven = busy or code in (22, 800)
    else:
        proven = status in (401, 403) and isinstance((data or {}).get("message"), str)
    # A body that cannot be read but speaks of a transaction is no refusal, whatever its status.
    refusing = status in profile.refusing_statuses and (
        data is not None or b"transactionId" not in response.body
    )
    if not (proven or refusing):
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


def _read_message(data: dict[str, Any] | None) -> str:
    message = (data or {}).get("message")
    return _clean(message) if isinstance(message, str) else ""


def _read_details(data: dict[str, Any] | None) -> tuple[ErrorDetail, ...]:
    """`errors` as far as it can be read; descriptions are absent but for field validation (§7)."""
    entries = (data or {}).get("errors")
    if not isinstance(entries, list):
        return ()
    details = []
    for entry in entries[:MAX_ENTRIES]:
        if not isinstance(entry, dict):
            continue
        message, code, descriptions = (
            entry.get(name) for name in ("message", "errorCode", "errorDescriptions")
        )
        details.append(
            ErrorDetail(
                _clean(message) if isinstance(message, str) else "",
                code if type(code) is int else 0,
                tuple(_clean(text) for text in descriptions[:MAX_ENTRIES] if isinstance(text, str))
                if isinstance(descriptions, list)
                else (),
            )
        )
    return tuple(details)


def _clean(text: str) -> str:
    """A text of the service, bounded, and without what could forge a line or block a record."""
    text = text[:MAX_MESSAGE]
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    )


def parse_json(body: bytes) -> Any:
    """The JSON value of a body, or None where there is none (a BOM is tolerated)."""
    try:
        return orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return None


def parse_object(body: bytes) -> dict[str, Any] | None:
    """The JSON object of a body, or None."""
    data = parse_json(body)
    return data if isinstance(data, dict) else None


def is_id(value: object) -> bool:
    """Strict: an integer from 1 to 2**63 - 1; `"12"`, `12.0` and `true` are no ids."""
    return type(value) is int and 1 <= value <= MAX_ID


def _repeats(body: bytes, *names: str) -> bool:
    """Whether an object of the body names one of these fields more than once, and so says two things."""
    if b"\\" not in body and all(body.count(name.encode()) <= 1 for name in names):
        return False
    repeated = False

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        keys = [key for key, _ in pairs]
        repeated = repeated or any(keys.count(name) > 1 for name in names)
        return {}

    try:
        json.loads(body.removeprefix(b"\xef\xbb\xbf"), object_pairs_hook=keep, parse_int=float)
    except (ValueError, RecursionError):
        return True
    return repeated


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
