"""The seam to the network; requests -> bodies, and answers -> results or errors.

Every function here is pure. The `decode_*` functions are total: whatever the status, the headers and the body are, each
returns a result or raises a `RefusedError` (nothing was created or changed) or an `OutcomeUnknownError`. The tables by
which they judge are in `answers`.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import attrs
import cattrs.gen
import orjson
from cattrs.fns import identity

from payclient.answers import (
    ERROR_ANSWERS,
    QUERY_ANSWERS,
    SALE_ANSWERS,
    UNREADABLE,
    Answer,
    HttpResponse,
    Verdict,
    decide,
    is_id,
    make_error,
    parse_json,
    read_fields,
    unknown_error,
)
from payclient.errors import (
    ConfigurationError,
    ErrorDetail,
    InvalidRequestError,
    NotCancellableError,
    NotReversibleError,
    OutcomeUnknownError,
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
from payclient.validation import (
    DOTS,
    field_fault,
    is_safe_link,
    sanitize_text,
    service_names,
    text_fault,
    to_service,
)

__all__ = ["BeforeSend", "HttpRequest", "HttpResponse", "Transport"]

#: Characters that are kept of a field of a status answer.
MAX_KEPT = 200

#: The fields of a status answer that say why it was declined.
REASON = ("message", "messageCode")

#: Transactions in the answer to a status query. A longer array is not read.
MAX_REPORTS = 1000

#: An id that has a part between slashes which drops out of a path: a proxy that decodes the path queries another id.
_SHORTENED = re.compile(r"(^|/)\.{0,2}(/|$)")


# --- The seam to the network


# Made for every call, so not frozen: that would cost as much as encoding a small Sale. `HttpResponse` likewise.
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
    #: The transaction id by which the request is made; None where another id, or none, makes it.
    transaction_id: int | None = None


#: Awaited after the connection stands and before the first byte; raising in it aborts with 0 bytes sent.
BeforeSend = Callable[[], Awaitable[None]]

#: The seam to the network is a function. The function awaits the `BeforeSend` that it is given exactly once, right
#: before the first byte. The function raises `NotSentError` only with proof of its own (the connection was seen dead).
Transport = Callable[[HttpRequest, BeforeSend | None], Awaitable[HttpResponse]]


# --- Requests -> bodies

#: Returns a model as JSON has it.
Write = Callable[[Any], Any]


def _writers_of(profile: ServiceProfile) -> tuple[Write, Write]:
    return _make_writers(profile.nick_name_flag, profile.language_field, profile.response_url_field)


@lru_cache(maxsize=16)
def _make_writers(
    nick_name_flag: str | None, language_field: str | None, response_url_field: str
) -> tuple[Write, Write]:
    """Make the writers of a Sale and of a Prepare, by cattrs. A field whose name is None is left out."""
    converter = cattrs.Converter()

    def writer(model: type[Any], names: Mapping[str, str | None], **inner: Write) -> Any:
        """Make the writer of a model, whose values are checked already: all but `inner` pass as they are."""
        overrides: dict[str, Any] = {
            field: cattrs.override(rename=name, omit=name is None, unstruct_hook=inner.get(field, identity))
            for field, name in service_names(model, names).items()
        }
        return cattrs.gen.make_dict_unstructure_fn(
            model, converter, _cattrs_omit_if_default=True, **overrides
        )

    bill_to, item = writer(BillTo, {}), writer(LineItem, {})
    order = writer(Order, {}, bill_to=bill_to, line_items=lambda items: [item(each) for each in items])
    prepare_names = {"language": language_field, "response_url": response_url_field}
    return (
        writer(SaleRequest, {"by_nick_name": nick_name_flag}, order=order),
        writer(PrepareRequest, prepare_names, order=order),
    )


_R = TypeVar("_R", SaleRequest, PrepareRequest)


def encode_sale(request: SaleRequest, profile: ServiceProfile) -> HttpRequest:
    """Encode a Sale (§2.2). Raises `InvalidRequestError` or `ConfigurationError` for what only the profile knows."""
    if request.by_nick_name and profile.nick_name_flag is None:
        raise ConfigurationError("charging a nick name needs nick_name_flag in the profile")
    return _encode("/api/Sale", request, profile, _writers_of(profile)[0])


def encode_prepare(request: PrepareRequest, profile: ServiceProfile) -> HttpRequest:
    """Encode a Button/Prepare (§2.3). Raises as `encode_sale` does."""
    if request.language is not None and profile.language_field is None:
        raise ConfigurationError("a form's language needs language_field in the profile")
    return _encode("/api/button/Prepare", request, profile, _writers_of(profile)[1])


def _encode(
    path: str, request: _R, profile: ServiceProfile, write: Callable[[_R], dict[str, Any]]
) -> HttpRequest:
    # Raised here, where no local variable holds a value: error trackers show local variables.
    has_rules = profile.max_lengths or profile.ranges or getattr(request, "by_nick_name", False)
    if has_rules and (faults := _profile_faults(request, profile)):
        raise InvalidRequestError(errors=faults, client_transaction_id=request.client_transaction_id)
    return HttpRequest("POST", path, orjson.dumps(write(request)), None, request.client_transaction_id)


def _profile_faults(request: SaleRequest | PrepareRequest, profile: ServiceProfile) -> list[ErrorDetail]:
    """Find a phone that the profile wants, and the values beyond its lengths and ranges."""
    faults = []
    wants_phone = getattr(request, "by_nick_name", False) and not profile.phone_optional_with_nick_name
    if wants_phone and not (request.phone_number or "").strip():
        faults.append(field_fault("phone_number", "must be given"))
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
    name, value, path = _by_one_id(profile, "status", transaction_id, client_transaction_id)
    # A text of another class is sent by its value, so it is queried by its value, and not as it formats.
    path = path.replace(f"{{{name}}}", quote(value if isinstance(value, str) else str(value), safe=""))
    return HttpRequest("GET", path, b"", None, client_transaction_id, transaction_id)


def confirm_request(profile: ServiceProfile, transaction_id: int, client_transaction_id: str) -> HttpRequest:
    """Make the confirmation of a paid form, by both of its ids."""
    _check_id("transaction_id", transaction_id)
    _check_id("client_transaction_id", client_transaction_id)
    confirm = profile.confirm
    if confirm is None:
        raise ConfigurationError("confirming a payment needs [confirm] in the profile")
    ids = {
        confirm.transaction_id_field: transaction_id,
        confirm.client_transaction_id_field: client_transaction_id,
    }
    return HttpRequest("POST", confirm.path, orjson.dumps(ids), None, client_transaction_id, transaction_id)


def undo_request(
    profile: ServiceProfile,
    operation: Literal["cancel", "reverse"],
    transaction_id: int | None,
    client_transaction_id: str | None,
) -> HttpRequest:
    """Make a cancel or a reverse by one of the two ids."""
    name, value, path = _by_one_id(profile, operation, transaction_id, client_transaction_id)
    body = orjson.dumps({getattr(getattr(profile, operation), f"{name}_field"): value})
    return HttpRequest("POST", path, body, None, client_transaction_id, transaction_id)


def _by_one_id(
    profile: ServiceProfile, operation: str, transaction_id: object, client_transaction_id: object
) -> tuple[str, object, str]:
    """Return the name and the value of the one id that was given, and the operation's path by that id."""
    given = {"transaction_id": transaction_id, "client_transaction_id": client_transaction_id}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) != 1:
        raise TypeError(f"{operation} takes transaction_id or client_transaction_id")
    ((name, value),) = given.items()
    _check_id(name, value)
    path = getattr(getattr(profile, operation), f"by_{name}", None)
    if path is None:
        raise ConfigurationError(f"this needs {operation}.by_{name} in the profile")
    return name, value, path


def _check_id(name: str, value: object) -> None:
    if name == "transaction_id":
        fault = None if is_id(value) else "must be an int from 1 to 2**63 - 1"
    else:
        good = isinstance(value, str) and value.strip() and text_fault(value) is None and value not in DOTS
        fault = None if good else "must be a client transaction id"
    if fault:
        raise InvalidRequestError(errors=[field_fault(name, fault)])


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
    verdict = decide(SALE_ANSWERS, answer)
    if verdict is Verdict.CREATED:
        return SaleResult(transaction_id=answer.fields.transaction_id or 0, raw=answer.object)
    error = make_error(answer, verdict)
    if isinstance(error, OutcomeUnknownError):
        seen = (answer.fields.transaction_id, *answer.named_ids())
        error.candidate_id = next((each for each in seen if is_id(each)), None)
    raise error


def _read_plain_sale(response: HttpResponse) -> SaleResult | None:
    """Return the result of an answer with a transaction id and nothing else (§2.5), at a third of the table's cost."""
    if not 200 <= response.status <= 299 or response.body.count(b":") != 1:
        return None  # several fields, or none
    data = parse_json(response.body)
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
        raise make_error(answer, decide(ERROR_ANSWERS, answer))
    if result.links and all(is_safe_link(link, profile.link_hosts) for link in result.links.values()):
        return result
    raise unknown_error(answer)


def _read_form(answer: Answer) -> PrepareResult | None:
    """Return the form of an answer, its links not checked yet; None without a valid `paymentId`."""
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
    else cancelled. What names another id beside one that names this one is left out. Raises a `RefusedError`, or
    `OutcomeUnknownError`: for what cannot be read or a cache stored, and for "not found" that may be of another id.
    """
    answer = Answer(response, profile, client_transaction_id)
    report = _read_single_report(answer)
    if report is None and _is_array(answer):
        reports = [_read_report(entry, profile) for entry in answer.data]
        if client_transaction_id in {each.client_transaction_id for each in reports} - {None}:
            # A search by the beginning of an id finds those of others, too.
            reports = [
                each for each in reports if each.client_transaction_id in (None, client_transaction_id)
            ]
        report = _report_of_all(reports)
    elif report is None and not _is_not_found(answer):
        raise make_error(answer, decide(QUERY_ANSWERS, answer))
    if (response.header("age") or "0").strip() != "0":
        raise unknown_error(answer, "the answer came from a cache, of an earlier query")
    if report is None and client_transaction_id is not None and _SHORTENED.search(client_transaction_id):
        raise unknown_error(answer, '"not found" may be of another id, to which a proxy shortens this one')
    return report


def decode_confirm(
    response: HttpResponse, profile: ServiceProfile, client_transaction_id: str | None
) -> StatusReport:
    """Read the answer to a confirmation: a status object. Raises a `RefusedError`, else `OutcomeUnknownError`."""
    answer = Answer(response, profile, client_transaction_id)
    report = _read_single_report(answer)
    if report is None:
        raise make_error(answer, decide(QUERY_ANSWERS, answer))
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
    undo = profile.cancel if operation == "cancel" else profile.reverse
    too_late = NotCancellableError if operation == "cancel" else NotReversibleError
    is_too_late = undo is not None and answer.codes & undo.too_late_codes
    raise make_error(answer, decide(ERROR_ANSWERS, answer), too_late if is_too_late else None)


# --- Status objects -> reports

#: The fields of a report that are read strictly.
_REPORTED = ("transaction_id", "client_transaction_id", "amount", "currency")


def _read_single_report(answer: Answer) -> StatusReport | None:
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
    """Return whether an answer has one of the profile's codes for "no such transaction", and no state.

    A status that says that nothing was looked up, such as 401 or 408, contradicts the code.
    """
    return (
        answer.status // 100 in (2, 4)
        and answer.status not in (401, 403, 429, *GAVE_UP)
        and answer.fields.error_code in answer.profile.not_found_codes
        and answer.fields.state is None
        and not answer.contradicts_itself
    )


def _read_report(entry: dict[str, Any], profile: ServiceProfile) -> StatusReport:
    """Read one status object. A field of another type is left out and named in `unreadable`."""
    fields, status = read_fields(entry, profile), profile.status
    assert status is not None  # noqa: S101 - a profile without one has no reports
    # None: not mapped, or contradicted by the profile's code of the state.
    state: Any = status.states.get(fields.state)  # type: ignore[arg-type]  # None and unreadable ones are in no map
    if fields.state_code is not None and status.codes.get(fields.state_code) != state:
        state = None
    found: dict[str, Any] = {name: getattr(fields, name) for name in _REPORTED}
    wrong = [name for name, value in found.items() if value is UNREADABLE]
    kept = kept_fields(entry, profile.receipt_fields)
    found.update(dict.fromkeys(wrong, None))
    return StatusReport(
        state=state,
        **found,
        unreadable=tuple(map(to_service, wrong)),
        reason=_join_reason(kept) if state == "Cancelado" else None,
        receipt=kept if state == "Aceptado" else {},
        raw=entry,
    )


def kept_fields(entry: Mapping[str, Any], names: Iterable[str]) -> dict[str, str | int]:
    """Return the fields that are there and hold a text, bounded so that any database takes it, or a 64-bit number."""
    kept: dict[str, str | int] = {}
    for name in names:
        value = entry.get(name)
        if isinstance(value, str) and value.strip():
            kept[name] = sanitize_text(value[:MAX_KEPT])
        elif type(value) is int and -(2**63) <= value < 2**64:
            kept[name] = value
    return kept


def _join_reason(kept: dict[str, str | int]) -> str | None:
    """Return the message with its code, such as "Fondos Insuficientes (16)"; a code of 0 is left out."""
    said = [str(kept[name]) for name in REASON if kept.get(name, 0) != 0]
    return f"{said[0]} ({said[1]})" if len(said) > 1 else "".join(said) or None


def _report_of_all(reports: list[StatusReport]) -> StatusReport | None:
    """Return the one report that stands for all transactions of a client transaction id; None for no transaction.

    The first of these that there is: an accepted one, a pending one, one whose state the profile does not map, a
    cancelled one. Where several are undecided, or all of several are cancelled, it names no transaction.
    """
    if not reports:
        return None
    accepted = [report for report in reports if report.state == "Aceptado"]
    if accepted:
        # An unreadable report is not a verdict, so it is taken only where all are unreadable.
        chosen = min(accepted, key=lambda report: bool(report.unreadable))
    else:
        possible = [report for report in reports if report.state != "Cancelado"] or reports
        # Among these an unreadable one comes first: they decide only if all can be read.
        chosen = min(possible, key=lambda report: (report.state != "Pendiente", not report.unreadable))
        if len({report.transaction_id for report in possible}) > 1:
            chosen = attrs.evolve(chosen, transaction_id=None)
    return attrs.evolve(
        chosen,
        also_accepted=_other_ids(accepted, chosen.transaction_id),
        others=_other_ids(reports, chosen.transaction_id),
    )


def _other_ids(reports: list[StatusReport], own: int | None) -> tuple[int, ...]:
    ids = dict.fromkeys(report.transaction_id for report in reports)
    return tuple(each for each in ids if each is not None and each != own)
