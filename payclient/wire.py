"""The seam to the network; requests -> bodies, and answers -> results or errors, both by one cattrs converter.

Every function here is pure. The `decode_*` functions are total: whatever the status, the headers and the body are, each
returns a result or raises a `RefusedError` (nothing was created or changed) or an `OutcomeUnknownError`. The document
shows no HTTP statuses (§4.4), so answers are judged by the shape of their body.
"""

from __future__ import annotations

import datetime
import email.utils
import enum
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NewType, TypeVar
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
from payclient.validation import DOTS, field_fault, is_safe_link, text_fault, to_service

__all__ = ["BeforeSend", "HttpRequest", "HttpResponse", "Transport"]

#: The largest transaction id: §2.5 says an integer, and no service counts beyond 64 bits.
MAX_ID = 2**63 - 1

#: Characters that are kept of each text of an error object, and entries of each of its lists.
MAX_MESSAGE, MAX_ENTRIES = 500, 50

#: Bytes of an answer that are searched for a transaction id. An error object is a hundredth of it.
MAX_SEARCHED = 1 << 18

#: Transactions in the answer to a status query. A longer array is not read.
MAX_REPORTS = 1000


# --- The seam to the network


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

    def header(self, name: str) -> str | None:
        """Return the first header of this name (lower case), whatever its letter case is, or None."""
        return next((value for key, value in self.headers.items() if key.lower() == name), None)


#: Awaited after the connection stands and before the first byte; raising in it aborts with 0 bytes sent.
BeforeSend = Callable[[], Awaitable[None]]

#: The seam to the network is a function. It awaits the `BeforeSend` it is given exactly once, right before the
#: first byte, and raises `NotSentError` only where it has proof of its own (the connection was seen dead).
Transport = Callable[[HttpRequest, BeforeSend | None], Awaitable[HttpResponse]]


# --- The converter

TransactionId = NewType("TransactionId", int)

#: Stands for a field that is there and is not of its type. Nothing is coerced: `"12"`, `12.0` and `True` are no ids.
UNREADABLE: Any = object()


@attrs.define(repr=False)
class _Fields:
    """What is read of an object in an answer: the error object (§7), a transaction, or both. Null is left out."""

    message: str | None = None
    error_code: int | None = None
    errors: tuple[ErrorDetail, ...] = ()
    transaction_id: TransactionId | None = None
    client_transaction_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    #: The last two have the profile's names.
    state: str | None = None
    state_code: int | None = None


class _Converter(NamedTuple):
    """The functions that cattrs writes for the names of a profile."""

    write_sale: Callable[[SaleRequest], dict[str, Any]]
    write_prepare: Callable[[PrepareRequest], dict[str, Any]]
    read_fields: Callable[[dict[str, Any], type[_Fields]], _Fields]


def is_id(value: object) -> bool:
    """Return whether a value is a transaction id: an `int` from 1 to 2**63 - 1."""
    return type(value) is int and 1 <= value <= MAX_ID


def _converter_of(profile: ServiceProfile) -> _Converter:
    status = profile.status
    return _make_converter(
        profile.nick_name_flag,
        profile.language_field,
        profile.response_url_field,
        None if status is None else status.state_field,
        None if status is None else status.code_field,
    )


@lru_cache(maxsize=16)
def _make_converter(
    nick_name_flag: str | None,
    language_field: str | None,
    response_url_field: str,
    state_field: str | None,
    code_field: str | None,
) -> _Converter:
    """Make the converter with a profile's names; a field whose name is None is neither written nor read."""
    import cattrs.gen  # with the first request: a reader of ledgers or notifications needs no converter
    from cattrs.fns import identity

    converter = cattrs.Converter(detailed_validation=False)

    def spell(model: type[Any], names: Mapping[str, str | None], hooks: Mapping[str, Any]) -> dict[str, Any]:
        spelled = {field.name: names.get(field.name, to_service(field.name)) for field in attrs.fields(model)}
        return {
            field: cattrs.gen.override(rename=name, omit=name is None, **hooks.get(field, hooks.get("*", {})))
            for field, name in spelled.items()
        }

    def write(model: type[Any], names: Mapping[str, str | None], **inner: Callable[[Any], Any]) -> Any:
        """Register how a model is written. Models have checked their values, so all but `inner` pass as they are."""
        hooks = {"*": {"unstruct_hook": identity}} | {n: {"unstruct_hook": hook} for n, hook in inner.items()}
        return cattrs.gen.make_dict_unstructure_fn(
            model, converter, _cattrs_omit_if_default=True, **spell(model, names, hooks)
        )

    bill_to, item = write(BillTo, {}), write(LineItem, {})
    order = write(Order, {}, bill_to=bill_to, line_items=lambda items: [item(each) for each in items])
    prepare_names = {"language": language_field, "response_url": response_url_field}

    converter.register_structure_hook(int, lambda value, _: value if type(value) is int else UNREADABLE)
    converter.register_structure_hook(str, lambda value, _: value if type(value) is str else UNREADABLE)
    converter.register_structure_hook(TransactionId, lambda value, _: value if is_id(value) else UNREADABLE)
    names = {"state": state_field, "state_code": code_field}
    details = {"errors": {"struct_hook": lambda value, _: _read_details(value)}}
    return _Converter(
        write(SaleRequest, {"by_nick_name": nick_name_flag}, order=order),
        write(PrepareRequest, prepare_names, order=order),
        cattrs.gen.make_dict_structure_fn(_Fields, converter, **spell(_Fields, names, details)),
    )


# --- Requests -> bodies


_R = TypeVar("_R", SaleRequest, PrepareRequest)


def encode_sale(request: SaleRequest, profile: ServiceProfile) -> HttpRequest:
    """Encode a Sale (§2.2). Raises `InvalidRequestError` or `ConfigurationError` for what only the profile knows."""
    if request.by_nick_name:
        if profile.nick_name_flag is None:
            raise ConfigurationError("charging a nick name needs nick_name_flag in the profile")
        if request.phone_number is None and not profile.phone_optional_with_nick_name:
            raise InvalidRequestError(
                errors=[field_fault("phone_number", "must be given")],
                client_transaction_id=request.client_transaction_id,
            )
    return _encode("/api/Sale", request, profile, _converter_of(profile).write_sale)


def encode_prepare(request: PrepareRequest, profile: ServiceProfile) -> HttpRequest:
    """Encode a Button/Prepare (§2.3). Raises as `encode_sale` does."""
    if request.language is not None and profile.language_field is None:
        raise ConfigurationError("a form's language needs language_field in the profile")
    return _encode("/api/button/Prepare", request, profile, _converter_of(profile).write_prepare)


def _encode(
    path: str, request: _R, profile: ServiceProfile, write: Callable[[_R], dict[str, Any]]
) -> HttpRequest:
    # Raised here, where no local variable holds a value: error trackers show local variables.
    if (profile.max_lengths or profile.ranges) and (faults := _limit_faults(request, profile)):
        raise InvalidRequestError(errors=faults, client_transaction_id=request.client_transaction_id)
    return HttpRequest("POST", path, orjson.dumps(write(request)), None, request.client_transaction_id)


def _limit_faults(request: SaleRequest | PrepareRequest, profile: ServiceProfile) -> list[ErrorDetail]:
    """Find the values beyond the profile's lengths and ranges."""
    faults = []
    for name, longest in profile.max_lengths.items():
        value = getattr(request, name, None)
        if isinstance(value, str) and len(value) > longest:
            faults.append(field_fault(name, f"must be at most {longest} characters"))
    for name, (smallest, largest) in profile.ranges.items():
        value = getattr(request, name, None)
        if type(value) is int and not smallest <= value <= largest:
            faults.append(field_fault(name, f"must be {smallest} to {largest}"))
    return faults


def status_request(
    profile: ServiceProfile, transaction_id: int | None, client_transaction_id: str | None
) -> HttpRequest:
    """Make the query of a transaction's status by one of its two ids."""
    if transaction_id is None and client_transaction_id is None:
        raise ConfigurationError(
            "a query needs a transaction id, or status.by_client_transaction_id in the profile"
        )
    name, value = _one_id("status", transaction_id, client_transaction_id)
    path = getattr(profile.status, f"by_{name}", None)
    if path is None:
        raise ConfigurationError(f"a query by {name.replace('_', ' ')} needs status.by_{name} in the profile")
    path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    return HttpRequest("GET", path, client_transaction_id=client_transaction_id)


def confirm_request(profile: ServiceProfile, transaction_id: int, client_transaction_id: str) -> HttpRequest:
    """Make the confirmation of a paid form, by both of its ids."""
    _check_id("transaction_id", transaction_id)
    _check_id("client_transaction_id", client_transaction_id)
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


def undo_request(
    profile: ServiceProfile,
    operation: Literal["cancel", "reverse"],
    transaction_id: int | None,
    client_transaction_id: str | None,
) -> HttpRequest:
    """Make a cancel or a reverse by one of the two ids."""
    name, value = _one_id(operation, transaction_id, client_transaction_id)
    undo = getattr(profile, operation)
    path = getattr(undo, f"by_{name}", None)
    if path is None:
        raise ConfigurationError(f"this {operation} needs {operation}.by_{name} in the profile")
    body = orjson.dumps({getattr(undo, f"{name}_field"): value})
    return HttpRequest("POST", path, body, client_transaction_id=client_transaction_id)


def _one_id(operation: str, transaction_id: object, client_transaction_id: object) -> tuple[str, object]:
    """Return the name and the value of the one id that was given."""
    given = {"transaction_id": transaction_id, "client_transaction_id": client_transaction_id}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise TypeError(f"{operation} takes transaction_id or client_transaction_id")
    ((name, value),) = given.items()
    _check_id(name, value)
    return name, value


def _check_id(name: str, value: object) -> None:
    if name == "transaction_id":
        fault = None if is_id(value) else "is an int from 1 to 2**63 - 1"
    else:
        good = isinstance(value, str) and value.strip() and text_fault(value) is None and value not in DOTS
        fault = None if good else "must be a client transaction id"
    if fault:
        raise InvalidRequestError(errors=[field_fault(name, fault)])


# --- What is read of an answer

#: A letter that is written as an escape.
_ESCAPED_LETTER = re.compile(rb"\\u00(4[1-9a-f]|5[0-9a]|6[1-9a-f]|7[0-9a])", re.IGNORECASE)

#: The name of a transaction id in any spelling, and a field of that name with its whole value.
_ID_NAME = re.compile(rb"transaction[_-]?id")
_ID_FIELD = re.compile(rb'"transaction[_-]?id"\s*:\s*([^\s,{}\[\]"]*)(?=[\s,{}\[\]"])')


class Answer:
    """One answer to one request, as the tables see it: what is read of it under the names of a profile."""

    def __init__(
        self, response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
    ) -> None:
        self.response = response
        self.profile = profile
        self.client_transaction_id = client_transaction_id
        self.status: int = response.status
        self.is_success: bool = 200 <= response.status <= 299
        self.data: Any = _parse_json(response.body)
        #: Whether an object of the body may give a deciding field twice.
        self.contradicts_itself: bool = _contradicts_itself(response.body, self.data, profile)
        self.object: dict[str, Any] = self.data if isinstance(self.data, dict) else {}
        self.fields: _Fields = _converter_of(profile).read_fields(self.object, _Fields)

    @property
    def error_code(self) -> int | None:
        """The general code of an error object (§7), an integer other than 0; else None."""
        code = self.fields.error_code
        return None if code is UNREADABLE or code == 0 else code

    @property
    def codes(self) -> set[int | None]:
        """The general code and the codes of the entries."""
        return {self.error_code, *(detail.error_code for detail in self.fields.errors)}

    @property
    def is_busy(self) -> bool:
        """Whether an entry has code 2061 (§7.3)."""
        return any(detail.error_code == 2061 for detail in self.fields.errors)

    @property
    def is_of_another_sale(self) -> bool:
        """Whether the object names another client transaction id than the request."""
        return self.fields.client_transaction_id not in (None, self.client_transaction_id)

    def named_ids(self) -> list[Any]:
        """Return each value but null of a field called transactionId, in any letter case, at any depth."""
        values = [value for value in _ID_FIELD.findall(self.response.body.lower()) if value != b"null"]
        return [int(value) if value.isdigit() and len(value) < 20 else value for value in values]

    @property
    def may_name_a_transaction(self) -> bool:
        """Whether a transaction id is in the body, or cannot be ruled out: the body is too long or not JSON."""
        lowered = self.response.body.lower()
        if b"transaction" not in lowered:
            return False  # nearly every error object
        if len(lowered) > MAX_SEARCHED or (self.data is None and _ID_NAME.search(lowered)):
            return True
        return bool(self.named_ids())


def _parse_json(body: bytes) -> Any:
    """Return the JSON value of a body, or None where the body is not JSON. A byte order mark is tolerated."""
    try:
        return orjson.loads(body.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return None


def _contradicts_itself(body: bytes, data: Any, profile: ServiceProfile) -> bool:
    """Return whether an object of a body may give a deciding field twice, which no encoder does.

    Counted are the names in the bytes and in the objects. No encoder escapes a letter either, which would hide a name.
    """
    if body.count(b":") <= 1:
        return False  # one field at most
    if b"\\u00" in body and _ESCAPED_LETTER.search(body):
        return True
    status = profile.status
    names = _deciding_names(status and status.state_field, status and status.code_field)
    counts = {name: len(written.findall(body)) for name, quoted, written in names if body.count(quoted) > 1}
    fields = Counter(name for name, _ in _walk(data)) if counts else {}
    return any(count > fields.get(name, 0) for name, count in counts.items())


@lru_cache(maxsize=16)
def _deciding_names(
    state_field: str | None, code_field: str | None
) -> tuple[tuple[str, bytes, re.Pattern[bytes]], ...]:
    """Return the names of the fields that decide: plain, in quotes, and as the name of a field in a body."""
    names = ("transactionId", "errorCode", state_field, code_field)
    return tuple(
        (name, (quoted := f'"{name}"'.encode()), re.compile(re.escape(quoted) + rb"\s*:"))
        for name in names
        if name is not None
    )


def _walk(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield each field of each object in a JSON value."""
    values = [data]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            yield from value.items()
            values.extend(value.values())
        elif isinstance(value, list):
            values.extend(value)


def _read_details(entries: object) -> tuple[ErrorDetail, ...]:
    """Read `errors` as far as it can be read; descriptions are absent but for field validation (§7)."""

    def text(value: object) -> str:
        return sanitize_text(value) if isinstance(value, str) else ""

    def read(entry: dict[str, Any]) -> ErrorDetail:
        code, descriptions = entry.get("errorCode"), entry.get("errorDescriptions")
        found = descriptions[:MAX_ENTRIES] if isinstance(descriptions, list) else []
        return ErrorDetail(
            text(entry.get("message")),
            code if type(code) is int else 0,
            tuple(text(each) for each in found if isinstance(each, str)),
        )

    found = entries[:MAX_ENTRIES] if isinstance(entries, list) else []
    return tuple(read(entry) for entry in found if isinstance(entry, dict))


def sanitize_text(text: str) -> str:
    """Bound a text of the service, and replace what could forge a line or block a record."""
    text = text[:MAX_MESSAGE]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def retry_after(response: HttpResponse) -> float | None:
    """Return the seconds of `Retry-After`, at most 3600; a date counts from the answer's own `Date`."""
    value = response.header("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            until = email.utils.parsedate_to_datetime(value).replace(tzinfo=datetime.UTC)
            since = email.utils.parsedate_to_datetime(response.header("date") or "")
            seconds = (until - since.replace(tzinfo=datetime.UTC)).total_seconds()
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None  # `email.utils` lets all of them through
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else None


# --- What an answer is: the tables


class Verdict(enum.Enum):
    """What an answer to a request that changes something proves."""

    #: The service created the transaction.
    CREATED = enum.auto()
    #: The service created nothing for this request.
    REFUSED = enum.auto()
    #: The transaction may exist.
    UNKNOWN = enum.auto()


#: Conditions and what each proves; the first one that holds decides.
Rows = tuple[tuple[Callable[[Answer], object], Verdict], ...]

#: What an answer proves that brings no result.
ERROR_ANSWERS: Rows = (
    # HTTP 408, 425, 499, or one of the profile's uncertain_codes
    (lambda a: a.status in GAVE_UP or a.codes & a.profile.uncertain_codes, Verdict.UNKNOWN),
    # one of the profile's refusing_statuses
    (lambda a: a.status in a.profile.refusing_statuses, Verdict.REFUSED),
    # the error object on 2xx or 4xx
    (lambda a: a.error_code is not None and a.status // 100 in (2, 4), Verdict.REFUSED),
    # the error object on 5xx, with code 22 or 800 or an entry 2061
    (lambda a: a.error_code in (22, 800) and a.status // 100 == 5, Verdict.REFUSED),
    (lambda a: a.error_code is not None and a.is_busy and a.status // 100 == 5, Verdict.REFUSED),
    # 401 or 403 with a JSON message
    (lambda a: a.status in (401, 403) and isinstance(a.fields.message, str), Verdict.REFUSED),
    # all else
    (lambda a: True, Verdict.UNKNOWN),
)

#: What an answer proves that brings no report to a request that may be repeated.
QUERY_ANSWERS: Rows = (
    (lambda a: a.status == 429, Verdict.REFUSED),
    (lambda a: a.contradicts_itself, Verdict.UNKNOWN),
    *ERROR_ANSWERS,
)

#: What an answer to a Sale proves.
SALE_ANSWERS: Rows = (
    # a field given twice, or the client transaction id of another Sale
    (lambda a: a.contradicts_itself or a.is_of_another_sale, Verdict.UNKNOWN),
    # 2xx, one strict transactionId, no errorCode
    (
        lambda a: a.is_success and is_id(a.fields.transaction_id) and a.fields.error_code is None,
        Verdict.CREATED,
    ),
    # a transaction id anywhere in the body, in any letter case, at any depth
    (lambda a: a.may_name_a_transaction, Verdict.UNKNOWN),
    *ERROR_ANSWERS,
)

#: The class of a refusal; the first condition that holds decides (§7).
REFUSAL_CLASSES: tuple[tuple[Callable[[Answer], object], type[RefusedError]], ...] = (
    (lambda a: a.is_busy and a.error_code is not None, CustomerBusyError),
    (lambda a: a.error_code == 800, ValidationFailedError),
    (lambda a: a.error_code == 22, NotCreatedError),
    (lambda a: a.status in (401, 403), UnauthorizedError),
    (lambda a: a.status == 429, RateLimitedError),
    (lambda a: True, RefusedError),
)


_T = TypeVar("_T")


def _decide(rows: tuple[tuple[Callable[[Answer], object], _T], ...], answer: Answer) -> _T:
    """Return what stands beside the first condition that holds."""
    for holds, verdict in rows:
        if holds(answer):
            return verdict
    raise AssertionError("the last condition of each table always holds")


def _find_error(answer: Answer, verdict: Verdict) -> RefusedError | OutcomeUnknownError:
    """Return the error that an answer without a result is."""
    if verdict is Verdict.UNKNOWN:
        return _unknown(answer)
    kind = _decide(REFUSAL_CLASSES, answer)
    message = answer.fields.message
    error = kind(
        (sanitize_text(message) if isinstance(message, str) else "") or f"HTTP {answer.status}",
        error_code=answer.error_code,
        errors=answer.fields.errors,
        http_status=answer.status,
        client_transaction_id=answer.client_transaction_id,
    )
    if isinstance(error, RateLimitedError):
        error.retry_after = retry_after(answer.response)
    return error


def _unknown(answer: Answer, message: str = "") -> OutcomeUnknownError:
    return OutcomeUnknownError(
        message or f"HTTP {answer.status} with no usable answer",
        http_status=answer.status,
        client_transaction_id=answer.client_transaction_id,
    )


# --- Answers -> results or errors


def decode_sale(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> SaleResult:
    """Read the answer to a Sale (§2.5, §7) by `SALE_ANSWERS`.

    Raises a `RefusedError`, or `OutcomeUnknownError` with the candidate id that was seen.
    """
    if (result := _read_plain_sale(response)) is not None:
        return result
    answer = Answer(response, profile, client_transaction_id)
    verdict = _decide(SALE_ANSWERS, answer)
    if verdict is Verdict.CREATED:
        return SaleResult(transaction_id=answer.fields.transaction_id or 0, raw=answer.object)
    error = _find_error(answer, verdict)
    if isinstance(error, OutcomeUnknownError):
        seen = (answer.fields.transaction_id, *answer.named_ids())
        error.candidate_id = next((each for each in seen if is_id(each)), None)
    raise error


def _read_plain_sale(response: HttpResponse) -> SaleResult | None:
    """Return the result of an answer with a transaction id and nothing else (§2.5), at a third of the table's cost."""
    if not 200 <= response.status <= 299 or response.body.count(b":") != 1:
        return None  # several fields, or none
    data = _parse_json(response.body)
    if not isinstance(data, dict) or not is_id(identifier := data.get("transactionId")):
        return None
    return SaleResult(transaction_id=identifier, raw=data)  # type: ignore[arg-type]  # an id is an int


def decode_prepare(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> PrepareResult:
    """Read the answer to a Button/Prepare: one with a `paymentId` is a success (§4.3).

    Raises a `RefusedError`, or `OutcomeUnknownError` for all else, an unsafe link too.
    """
    answer = Answer(response, profile, client_transaction_id)
    result = _read_form(answer)
    if result is None:
        raise _find_error(answer, _decide(ERROR_ANSWERS, answer))
    if result.links and all(is_safe_link(link, profile.link_hosts) for link in result.links.values()):
        return result
    raise _unknown(answer)


def _read_form(answer: Answer) -> PrepareResult | None:
    """Return the form of an answer with a `paymentId`, its links not checked yet, or None."""
    payment_id = answer.object.get("paymentId")
    if not isinstance(payment_id, str) or not payment_id.strip() or text_fault(payment_id):
        return None
    links = {
        name: link
        for name, link in answer.object.items()
        if name.startswith("payWith") and isinstance(link, str) and link
    }
    return PrepareResult(
        payment_id=payment_id,
        links=FormLinks(links),
        raw=answer.object,
        wallet_link_field=answer.profile.wallet_link_field,
    )


def decode_status(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None = None
) -> StatusReport | None:
    """Read the answer to a status query, by the profile; None is "no such transaction".

    An array holds every transaction of a client transaction id: any accepted is accepted, else any pending is pending,
    else cancelled. Raises a `RefusedError`, or `OutcomeUnknownError` where nothing can be read and where a cache
    answered "not found".
    """
    if profile.status is None:
        raise ConfigurationError("a status query needs [status] in the profile")
    answer = Answer(response, profile, client_transaction_id)
    report = _read_report_of(answer)
    if report is None and _is_array(answer):
        report = _reduce([_read_report(entry, profile) for entry in answer.data])
    elif report is None and not _is_not_found(answer):
        raise _find_error(answer, _decide(QUERY_ANSWERS, answer))
    if report is None and (response.header("age") or "0").strip() != "0":
        raise _unknown(answer, '"not found" came from a cache, of an earlier query')
    return report


def decode_confirm(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> StatusReport:
    """Read the answer to a confirmation: a status object. Raises a `RefusedError`, else `OutcomeUnknownError`."""
    answer = Answer(response, profile, client_transaction_id)
    report = _read_report_of(answer)
    if report is None:
        raise _find_error(answer, _decide(QUERY_ANSWERS, answer))
    return report


def decode_undone(
    response: HttpResponse,
    profile: ServiceProfile,
    client_transaction_id: str | None,
    operation: Literal["cancel", "reverse"],
) -> None:
    """Read the answer to a cancel or a reverse: a bare `true` is the success, and nothing else is.

    Raises a `RefusedError`, of its own class for the profile's codes of "too late", else `OutcomeUnknownError`.
    """
    answer = Answer(response, profile, client_transaction_id)
    if answer.is_success and answer.data is True:
        return
    error = _find_error(answer, _decide(ERROR_ANSWERS, answer))
    undo = profile.cancel if operation == "cancel" else profile.reverse
    if isinstance(error, RefusedError) and undo is not None and answer.codes & undo.too_late_codes:
        kind = NotCancellableError if operation == "cancel" else NotReversibleError
        error = kind(
            error.message,
            error_code=error.error_code,
            errors=error.errors,
            http_status=error.http_status,
            client_transaction_id=client_transaction_id,
        )
    raise error


# --- Status objects -> reports

#: The fields of a report that are read strictly.
_REPORTED = ("transaction_id", "client_transaction_id", "amount", "currency")


def _read_report_of(answer: Answer) -> StatusReport | None:
    """Return the report of an answer that is one status object, or None."""
    status = answer.profile.status
    if (
        status is None
        or not answer.is_success
        or answer.fields.error_code is not None
        or status.state_field not in answer.object
        or answer.contradicts_itself
    ):
        return None
    return _read_report(answer.object, answer.profile)


def _is_array(answer: Answer) -> bool:
    """Return whether an answer is an array of status objects."""
    data = answer.data
    return (
        answer.is_success
        and isinstance(data, list)
        and len(data) <= MAX_REPORTS
        and all(isinstance(entry, dict) for entry in data)
        and not answer.contradicts_itself
    )


def _is_not_found(answer: Answer) -> bool:
    """Return whether an answer has one of the profile's codes for "no such transaction", and no state."""
    return (
        answer.status // 100 in (2, 4)
        and answer.fields.error_code in answer.profile.not_found_codes
        and answer.fields.state is None
        and not answer.contradicts_itself
    )


def _read_report(entry: dict[str, Any], profile: ServiceProfile) -> StatusReport:
    """Read one status object. A field of another type is left out and named in `unreadable`."""
    fields = _converter_of(profile).read_fields(entry, _Fields)
    report = StatusReport(
        state=_read_state(fields, profile),
        transaction_id=fields.transaction_id,
        client_transaction_id=fields.client_transaction_id,
        amount=fields.amount,
        currency=fields.currency,
        raw=entry,
    )
    wrong = [name for name in _REPORTED if getattr(report, name) is UNREADABLE]
    left_out: dict[str, Any] = dict.fromkeys(wrong)
    return attrs.evolve(report, unreadable=tuple(map(to_service, wrong)), **left_out) if wrong else report


def _read_state(found: _Fields, profile: ServiceProfile) -> Any:
    """Return one of §3's words, or None: not mapped, or contradicted by the profile's code of the state."""
    status = profile.status
    assert status is not None  # noqa: S101 - a profile without one has no reports
    state = status.states.get(found.state)  # type: ignore[arg-type]  # None and unreadable ones are in no map
    if found.state_code is not None and status.codes.get(found.state_code) != state:
        return None
    return state


def _reduce(reports: list[StatusReport]) -> StatusReport | None:
    """Return one report of all transactions under one client transaction id, or None for no transaction."""
    if not reports:
        return None
    accepted = [report for report in reports if report.state == "Aceptado"]
    # A word that the profile does not map outweighs a cancelled one: it may be anything.
    undecided = [report for report in reports if report.state != "Cancelado"]
    chosen = accepted or undecided or reports
    if accepted:
        # An unreadable report is not a verdict, so it comes first only where there is no other.
        first = min(accepted, key=lambda report: bool(report.unreadable))
    else:
        first = min(chosen, key=lambda report: (report.state != "Pendiente", not report.unreadable))
        if len({report.transaction_id for report in chosen}) > 1:
            first = attrs.evolve(first, transaction_id=None)
    return attrs.evolve(
        first,
        also_accepted=_other_ids(accepted, first.transaction_id),
        others=_other_ids(reports, first.transaction_id),
    )


def _other_ids(reports: list[StatusReport], own: int | None) -> tuple[int, ...]:
    ids = dict.fromkeys(report.transaction_id for report in reports)
    return tuple(each for each in ids if each is not None and each != own)
