"""What the document leaves open about a concrete service, each with the least that a default can claim."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

from attrs import Attribute, field, frozen, validators

__all__ = ["ACCEPTED", "CANCELLED", "OPERATIONS", "PENDING", "Settings"]

PENDING = "Pendiente"
ACCEPTED = "Aceptado"
CANCELLED = "Cancelado"

#: What the document does not have at all, so that `Settings.paths` says where it is.
OPERATIONS: Final = ("confirm", "cancel", "cancel_by_client_id", "reverse", "reverse_by_client_id", "regions")

_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")  # in small letters, without scheme and port


def _has_placeholder(_: object, attribute: "Attribute[Any]", template: str | None) -> None:
    placeholder = "{" + attribute.name.removeprefix("status_by_") + "}"
    if template is not None and not (template.startswith("/") and placeholder in template):
        raise ValueError(f"{attribute.name} must be a path that contains {placeholder}")


def _is_free_name(_: object, attribute: "Attribute[Any]", name: str) -> None:
    if name in {"", "paymentId", "payWithCard"}:
        raise ValueError(f"{attribute.name} must be a name that no other field of the answer has")


def _are_hosts(_: object, attribute: "Attribute[Any]", hosts: frozenset[str] | None) -> None:
    for host in hosts or ():
        if not _HOST.fullmatch(host):
            raise ValueError(f"{attribute.name} must hold hosts such as 'shop.example', not {host!r}")


def _are_paths(_: object, attribute: "Attribute[Any]", paths: Mapping[str, tuple[str, ...]]) -> None:
    for operation, ways in paths.items():
        if operation not in OPERATIONS:
            raise ValueError(f"{attribute.name} must name {', '.join(OPERATIONS)}, not {operation!r}")
        if isinstance(ways, str) or not all(way.startswith("/") for way in ways):
            raise ValueError(f"{attribute.name} must give each operation a tuple of paths")


def _frozen(mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(mapping))


@frozen(kw_only=True)
class Settings:
    """How this simulated service fills in what the document calls "not shown"."""

    #: Seconds until an unanswered push expires. Shown (§8): 300; demos and tests shorten it.
    sale_window: float = field(default=300.0, validator=validators.gt(0))
    #: Seconds that a form link lives from its first load. Shown (§8): 600.
    form_window: float = field(default=600.0, validator=validators.gt(0))

    #: Not shown (§3): the state that follows an approval, or a paid form.
    state_after_approve: str = field(default=ACCEPTED, validator=validators.in_((ACCEPTED, CANCELLED)))
    #: Not shown (§3): the state that follows a rejection, or a form whose payment was declined.
    state_after_reject: str = field(default=CANCELLED, validator=validators.in_((ACCEPTED, CANCELLED)))

    #: Not shown (§4.2): the path of the status query, such as "/api/Sale/{transaction_id}"; None: no route.
    status_by_transaction_id: str | None = field(default=None, validator=_has_placeholder)
    #: Not shown (§4.2): the path of the query by the merchant's id, with "{client_transaction_id}" in it.
    status_by_client_transaction_id: str | None = field(default=None, validator=_has_placeholder)
    #: Not shown: whether the query by the merchant's id answers all its sales or only the newest.
    client_status_as_array: bool = True
    #: Not shown: the name of the field that carries the state in a status answer.
    state_field: str = "transactionStatus"
    #: Not shown: the word that a status answer has for each of the states of §3; one left out is itself.
    state_words: Mapping[str, str] = field(factory=dict)
    #: Not shown: HTTP status and errorCode of the answer to a query for a transaction that does not exist.
    not_found: tuple[int, int] = (404, 20)
    #: Not shown (§3, §4.2): whether an expired transaction is still found. If true, a query for one answers the
    #: not-found error object.
    forgets_expired: bool = False

    #: Not shown (§2.3): the name of the parameter for a form's language; None: there is none, and all are in "es".
    language_field: str | None = None
    #: Not shown (§2.6): the real name of the wallet link's field, which carries the service's brand.
    wallet_link_field: str = field(default="payWithWallet", validator=_is_free_name)
    #: The hosts from which the merchant may redirect to a form (§4), such as "shop.example". None: from any,
    #: but the redirecting site must tell which it is.
    registered_domains: frozenset[str] | None = field(default=None, validator=_are_hosts)
    #: Not shown (§7.7): the HTTP status of the access-denied page.
    denied_status: int = 200
    #: Not shown (§6): the names of the parameters that a form adds to `responseUrl`.
    redirect_id_field: str = "id"
    redirect_client_id_field: str = "clientTransactionId"
    #: Not shown (§6): the id that a form adds to `cancellationUrl`, together with the merchant's; None: neither.
    cancelled_redirect_id: int | None = None

    #: Not shown (§2.2): the name of the boolean flag that charges `nickName`; None: there is no flag.
    nick_name_flag: str | None = None
    #: Not shown: whether `phoneNumber` may be absent when that flag is true; §2.2 names no exception.
    phone_optional_by_nick_name: bool = False

    #: Not shown: the errorCode of a repeated clientTransactionId. None: the repeat creates a SECOND sale,
    #: because the document promises nothing else.
    duplicate_code: int | None = None
    #: Phone numbers that are answered with code 22 (§7.2), nothing created; its reasons are not shown.
    refuse_phones: frozenset[str] = frozenset()

    #: Not shown (§4.4): the HTTP status of an error object.
    error_status: int = 400
    #: Not shown (§4.4): the HTTP status of a request without the right bearer token.
    unauthorized_status: int = 401

    #: Not shown (§6): the HTTP method of the notification. Its parameters go into the query in either case.
    notification_method: Literal["GET", "POST"] = field(
        default="GET", validator=validators.in_(("GET", "POST"))
    )

    # What one real service has beside the document; `payphone.PAYPHONE` says which, and how we know.

    #: Names in any letter case, numbers as text and text as numbers, bodies as a web form sends them, paths and
    #: the word Bearer in any letter case.
    tolerant: bool = False
    #: Where each of `OPERATIONS` is; one that is left out does not exist. All but "regions" are POST.
    paths: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_frozen, validator=_are_paths)
    #: Required fields of §2.2 and of §2.3 that may be absent all the same.
    sale_may_lack: frozenset[str] = frozenset()
    prepare_may_lack: frozenset[str] = frozenset()
    #: The currency of a request that names none.
    default_currency: str = "USD"
    #: The smallest and the largest number that a field may have, such as {"amount": (1, 99_999_999)}.
    ranges: Mapping[str, tuple[int, int]] = field(factory=dict, converter=_frozen)
    #: The largest number of characters that a field may have.
    sale_max_lengths: Mapping[str, int] = field(factory=dict, converter=_frozen)
    prepare_max_lengths: Mapping[str, int] = field(factory=dict, converter=_frozen)
    #: The known stores; another one is answered with code 100. None: all are known.
    stores: frozenset[str] | None = None
    #: The errorCode with which a phone, nick name, store or client transaction id is answered, nothing created.
    refuse_with: Mapping[str, int] = field(factory=dict, converter=_frozen)
    #: HTTP statuses by errorCode; a code left out has `error_status`.
    error_statuses: Mapping[int, int] = field(factory=dict, converter=_frozen)
    #: Not shown (§7): whether an error object without specific errors has an empty `errors`, or none.
    empty_errors: bool = True
    #: What a request without the right token is told.
    unauthorized_message: str = "Authorization has been denied for this request."
    #: The kind of the application whose token it is: "API" may ask for sales, "WEB" for forms and Confirm. None: both.
    application: Literal["API", "WEB"] | None = None
    #: Whether messages are in the language of the request's Accept-Language.
    accept_language: bool = False

    #: Whether a status has all the fields of the card, the person and the shop, or only ids, money and state.
    full_status: bool = False
    #: What a full status does with a value that is absent: leave the field out, or say null.
    status_nulls: bool = False
    #: Hours from UTC in which a full status tells its date, and in which the day of a reversal is counted.
    utc_offset: float = 0.0
    store_name: str = "Tienda simulada"
    region: str = "EC"
    #: What the list of regions answers.
    regions: tuple[Mapping[str, str], ...] = ()
    #: Status queries answered in any 60 seconds; None: all.
    queries_per_minute: int | None = field(default=None, validator=validators.optional(validators.gt(0)))
    #: The HTTP status past that, and whether Retry-After says when to come back.
    rate_limited_status: int = 429
    rate_limited_retry_after: bool = True

    #: Paths of the two forms.
    form_paths: Mapping[Literal["wallet", "card"], str] = field(
        default={"wallet": "/form/wallet", "card": "/form/card"}, converter=_frozen
    )
    #: The link that a Prepare with `transactionSummaryUrl` gives as well, and its path; it opens the wallet form.
    payment_code_link_field: str | None = None
    payment_code_path: str = "/form/code"
    #: Whether a form from an unregistered domain leads back to `responseUrl` with `msg` instead of a page.
    domain_problem_redirects: bool = False
    #: Whether the X leads to `responseUrl` where there is no `cancellationUrl`.
    cancel_leads_to_response_url: bool = False
    #: Seconds within which a paid form must be confirmed, or it is reversed. None: it need not be.
    confirm_window: float | None = field(default=None, validator=validators.optional(validators.gt(0)))
    #: The state of a paid form until it is confirmed, if it must be.
    state_until_confirmed: str = field(
        default=ACCEPTED, validator=validators.in_((PENDING, ACCEPTED, CANCELLED))
    )
    #: The state of what was reversed, by whomever.
    state_after_reverse: str = field(default=CANCELLED, validator=validators.in_((ACCEPTED, CANCELLED)))
    #: The hour, in `utc_offset`, until which a payment of the same day can be reversed.
    reversal_hour: int = field(default=24, validator=validators.in_(range(25)))

    #: Parameters of the notification (§6); the document writes the second so, and doubts nothing.
    notification_id_field: str = "id"
    notification_client_id_field: str = "clientTransactionID"
    #: Where each approved payment is told of by a POST of JSON; None: nowhere.
    external_notification_url: str | None = None
    #: Whether a form is told of once it is paid, or only once it is confirmed.
    external_notification_on_confirm: bool = False
