"""Answers: each is read as far as it can be, then judged by tables.

The document shows no HTTP statuses (§4.4), so an answer is judged by the shape of its body. Everything here is total:
whatever the status, the headers and the body are.
"""

import enum
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NewType, TypeVar

import attrs
import cattrs.gen
import orjson

from payclient.errors import (
    CustomerBusyError,
    ErrorDetail,
    NotCreatedError,
    OutcomeUnknownError,
    RateLimitedError,
    RefusedError,
    UnauthorizedError,
    ValidationFailedError,
)
from payclient.profile import GAVE_UP, ServiceProfile
from payclient.validation import sanitize_text, service_names

__all__ = ["HttpResponse"]

#: The largest transaction id. §2.5 shows an integer; a service's ids fit into 64 bits.
MAX_ID = 2**63 - 1

#: Entries that are kept of each list of an error object.
MAX_ENTRIES = 50

#: Bytes of an answer that are searched for a transaction id. An error object is a hundredth of it.
MAX_SEARCHED = 1 << 18

#: A byte order mark, which some encoders write.
BOM = b"\xef\xbb\xbf"


# --- The tables


class Verdict(enum.Enum):
    """The proof that is in an answer to a request that changes something."""

    #: The service created the transaction.
    CREATED = enum.auto()
    #: The service created nothing for this request.
    REFUSED = enum.auto()
    #: The transaction may exist.
    UNKNOWN = enum.auto()


_T = TypeVar("_T")

#: Conditions and what each proves. The first condition that holds decides.
Rows = tuple[tuple[Callable[["Answer"], object], _T], ...]

#: The verdict on an answer without a result.
ERROR_ANSWERS: Rows[Verdict] = (
    # HTTP 408, 425, 499, or one of the profile's uncertain_codes
    (lambda a: a.status in GAVE_UP or a.codes & a.profile.uncertain_codes, Verdict.UNKNOWN),
    # one of the profile's refusing_statuses
    (lambda a: a.status in a.profile.refusing_statuses, Verdict.REFUSED),
    # the error object on 2xx or 4xx
    (lambda a: a.error_code and a.status // 100 in (2, 4), Verdict.REFUSED),
    # the error object on 5xx, with code 22 or 800 or an entry 2061
    (
        lambda a: a.error_code and a.status // 100 == 5 and (a.error_code in (22, 800) or a.is_busy),
        Verdict.REFUSED,
    ),
    # 401 or 403 with a JSON message
    (lambda a: a.status in (401, 403) and isinstance(a.fields.message, str), Verdict.REFUSED),
    # all else
    (lambda a: True, Verdict.UNKNOWN),
)

#: The verdict on an answer without a report to a query or a confirmation, which may be repeated.
QUERY_ANSWERS: Rows[Verdict] = (
    # whatever the body: gateways answer both without one
    (lambda a: a.status in (401, 429), Verdict.REFUSED),
    (lambda a: a.contradicts_itself, Verdict.UNKNOWN),
    *ERROR_ANSWERS,
)

#: The verdict on an answer to a Sale.
SALE_ANSWERS: Rows[Verdict] = (
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

#: The class of a refusal (§7). The first condition that holds decides.
REFUSAL_CLASSES: Rows[type[RefusedError]] = (
    (lambda a: a.error_code and a.is_busy, CustomerBusyError),
    (lambda a: a.error_code == 800, ValidationFailedError),
    (lambda a: a.error_code == 22, NotCreatedError),
    (lambda a: a.status in (401, 403), UnauthorizedError),
    (lambda a: a.status == 429, RateLimitedError),
    (lambda a: True, RefusedError),
)


# --- Reading an answer


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


def is_id(value: object) -> bool:
    """Return whether a value is a transaction id: an `int` from 1 to 2**63 - 1."""
    return type(value) is int and 1 <= value <= MAX_ID


TransactionId = NewType("TransactionId", int)

#: Stands for a field that is there and is not of its type. Nothing is coerced: `"12"`, `12.0` and `True` are not ids.
UNREADABLE: Any = object()


@attrs.define(repr=False)
class Fields:
    """The fields of an object in an answer: the error object (§7), a transaction, or both. Null is left out."""

    message: str | None = None
    error_code: int | None = None
    errors: tuple[ErrorDetail, ...] = ()
    transaction_id: TransactionId | None = None
    client_transaction_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    #: `state` and `state_code` have the profile's names.
    state: str | None = None
    state_code: int | None = None


def read_fields(entry: dict[str, Any], profile: ServiceProfile) -> Fields:
    """Read an object of an answer under the names of a profile."""
    status = profile.status
    return _make_reader(status and status.state_field, status and status.code_field)(entry, Fields)


@lru_cache(maxsize=16)
def _make_reader(
    state_field: str | None, code_field: str | None
) -> Callable[[dict[str, Any], type[Fields]], Fields]:
    """Let cattrs write the function that reads `Fields`; a field whose name is None is not read."""
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(int, lambda value, _: value if type(value) is int else UNREADABLE)
    converter.register_structure_hook(str, lambda value, _: value if type(value) is str else UNREADABLE)
    converter.register_structure_hook(TransactionId, lambda value, _: value if is_id(value) else UNREADABLE)
    names = service_names(Fields, {"state": state_field, "state_code": code_field})
    overrides: dict[str, Any] = {
        field: cattrs.override(rename=name, omit=name is None) for field, name in names.items()
    }
    overrides["errors"] = cattrs.override(struct_hook=lambda value, _: _read_details(value))
    return cattrs.gen.make_dict_structure_fn(Fields, converter, **overrides)


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
        self.response: HttpResponse = response
        self.profile: ServiceProfile = profile
        self.client_transaction_id: str | None = client_transaction_id
        self.status: int = response.status
        self.is_success: bool = 200 <= response.status <= 299
        self.data: Any = parse_json(response.body)
        #: Whether an object of the body may give a deciding field twice.
        self.contradicts_itself: bool = _contradicts_itself(response.body, profile)
        self.object: dict[str, Any] = self.data if isinstance(self.data, dict) else {}
        self.fields: Fields = read_fields(self.object, profile)

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
        """Whether the object names another client transaction id than the request, in any letter case (§6 has one)."""
        return any(
            name.lower() == "clienttransactionid" and value not in (None, self.client_transaction_id)
            for name, value in self.object.items()
        )

    def named_ids(self) -> list[Any]:
        """Return each value but null of a field called transactionId, in any letter case, at any depth."""
        values = [value for value in _ID_FIELD.findall(self.response.body.lower()) if value != b"null"]
        return [int(value) if value.isdigit() and len(value) < 20 else value for value in values]

    @property
    def may_name_a_transaction(self) -> bool:
        """Whether a transaction id is in the body, or cannot be ruled out: the body is veiled, too long or not JSON."""
        body, coding = self.response.body, self.response.header("content-encoding") or "identity"
        is_compressed = bool(body) and coding.strip().lower() != "identity"
        # A body with two bytes a letter, or with letters as escapes, does not show its names either.
        if is_compressed or b"\0" in body or _ESCAPED_LETTER.search(body):
            return True
        lowered = body.lower()
        if b"transaction" not in lowered:
            return False  # nearly every error object
        if len(lowered) > MAX_SEARCHED or (self.data is None and _ID_NAME.search(lowered)):
            return True
        return bool(self.named_ids())


def parse_json(body: bytes) -> Any:
    """Return the JSON value of a body, or None where the body is not JSON. A byte order mark is tolerated."""
    try:
        return orjson.loads(body.removeprefix(BOM))
    except orjson.JSONDecodeError:
        return None


def _contradicts_itself(body: bytes, profile: ServiceProfile) -> bool:
    """Return whether an object gives a deciding field twice. No encoder does that; the parser keeps the last."""
    status = profile.status
    names = {"transactionId", "errorCode", *((status.state_field, status.code_field) if status else ())}
    if not (_ESCAPED_LETTER.search(body) or any(body.count(f'"{name}"'.encode()) > 1 for name in names)):
        return False  # most answers
    found = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        deciding = [name for name, _ in pairs if name in names]
        found.append(len(set(deciding)) < len(deciding))

    try:
        json.loads(body.removeprefix(BOM), object_pairs_hook=look)
    except (ValueError, RecursionError):
        return True
    return any(found)


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


def retry_after(response: HttpResponse) -> float | None:
    """Return the seconds of `Retry-After`, at most 3600; None where it is not a number."""
    try:
        seconds = float(response.header("retry-after") or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else None


# --- Errors


def decide(rows: Rows[_T], answer: Answer) -> _T:
    """Return what the table has beside the first condition that holds."""
    for holds, verdict in rows:
        if holds(answer):
            return verdict
    raise AssertionError("the last condition of each table always holds")


def make_error(
    answer: Answer, verdict: Verdict, refused_as: type[RefusedError] | None = None
) -> RefusedError | OutcomeUnknownError:
    """Make the error of an answer without a result; a refusal is a `refused_as`, else by `REFUSAL_CLASSES`."""
    if verdict is Verdict.UNKNOWN:
        return unknown_error(answer)
    kind = refused_as or decide(REFUSAL_CLASSES, answer)
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


def unknown_error(answer: Answer, message: str = "") -> OutcomeUnknownError:
    """Make the error of an answer after which the transaction may exist."""
    return OutcomeUnknownError(
        message or f"HTTP {answer.status} with no usable answer",
        http_status=answer.status,
        client_transaction_id=answer.client_transaction_id,
    )
