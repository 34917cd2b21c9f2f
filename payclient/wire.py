"""The seam to the network, and answers -> results or errors: total, pure functions of status, headers and body.

Answers are judged by their body's shape, since the document shows no HTTP statuses (§4.4).
"""

from __future__ import annotations

import datetime
import email.utils
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import quote

import attrs
import orjson

from payclient.errors import (
    ConfigurationError,
    CustomerBusyError,
    ErrorDetail,
    InvalidRequestError,
    NotCancellableError,
    NotCreatedError,
    NotReversibleError,
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
from payclient.profile import GAVE_UP, ServiceProfile
from payclient.validation import DOTS, is_safe_link, text_fault, to_service

__all__: list[str] = ["BeforeSend", "HttpRequest", "HttpResponse", "Transport"]

#: §2.5: an integer; a 64-bit one, since no service counts further.
MAX_ID = 2**63 - 1

#: An error's texts are kept to this many characters each, and this many entries.
MAX_MESSAGE, MAX_ENTRIES = 500, 50


#: Bytes of a refusal that are searched for a transaction id; an error object is a hundredth of it.
MAX_SEARCHED = 1 << 18


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


def repeats(body: bytes, *names: str) -> bool:
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


def seen_ids(body: bytes) -> list[object] | None:
    """Return every value but null that a body gives to a field called transactionId, in any letter case, at any depth.

    None stands for a body that may name one and cannot be searched: too long, too deep, or cut.
    """
    lowered = body.lower()
    if b"transaction" not in lowered and b"\\" not in lowered:
        return []  # of nearly every error object
    found: list[object] = []

    def keep(pairs: list[tuple[str, Any]]) -> bool:
        for key, value in pairs:
            if value is not None and key.replace("_", "").replace("-", "").lower() == "transactionid":
                found.append(value)
        return True  # not null, whatever stands in it

    if len(body) > MAX_SEARCHED:
        return None
    try:
        json.loads(
            body.removeprefix(b"\xef\xbb\xbf"),
            object_pairs_hook=keep,
            parse_int=lambda digits: int(digits) if len(digits) < 20 else digits,
        )
    except RecursionError:
        return None
    except ValueError:  # not JSON
        return None if re.search(rb"transaction[_-]?id", lowered) else []
    return found


def read_message(data: dict[str, Any] | None) -> str:
    message = (data or {}).get("message")
    return _clean(message) if isinstance(message, str) else ""


def read_details(data: dict[str, Any] | None) -> tuple[ErrorDetail, ...]:
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
    #: Closes the connection that brought the answer, in whatever use it is by then. None: there is nothing to close.
    discard: Callable[[], object] | None = attrs.field(default=None, repr=False, eq=False)


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


_T = TypeVar("_T", bound=attrs.AttrsInstance)


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
    import cattrs.fns  # with the first session: who reads a ledger or takes notifications needs none of it
    from cattrs.gen import make_dict_unstructure_fn, override

    converter = cattrs.Converter(detailed_validation=False)

    def write(
        model: type[_T], names: Mapping[str, str | None], **inner: Callable[[Any], Any]
    ) -> Callable[[_T], dict[str, Any]]:
        """`names` are the profile's (None: left out), all others the service's; `inner` functions are called."""
        rules: dict[str, Any] = {}
        for field in attrs.fields(model):
            name = names.get(field.name, to_service(field.name))
            hook = inner.get(field.name, cattrs.fns.identity)
            rules[field.name] = override(rename=name, omit=name is None, unstruct_hook=hook)
        return make_dict_unstructure_fn(model, converter, _cattrs_omit_if_default=True, **rules)

    bill_to, item = write(BillTo, {}), write(LineItem, {})
    order = write(Order, {}, bill_to=bill_to, line_items=lambda items: [item(one) for one in items])
    sale = write(SaleRequest, {"by_nick_name": nick_name_flag}, order=order)
    prepare_names = {"language": language_field, "response_url": response_url_field}
    return sale, write(PrepareRequest, prepare_names, order=order)


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
