"""What the document leaves open about a concrete service, each with the least that a default can claim."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from attrs import Attribute, field, frozen, validators

__all__ = ["ACCEPTED", "CANCELLED", "PENDING", "Settings"]

PENDING = "Pendiente"
ACCEPTED = "Aceptado"
CANCELLED = "Cancelado"

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
