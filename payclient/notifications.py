"""Requests at `responseUrl` (§6), however they are delivered: notifications, and browsers back from a form.

The document shows two parameters and neither the HTTP method nor the encoding, so query, form and JSON are read. All
of it is unsigned and anybody can send it: a hint to query the service, even where it holds "approved".
`notification_url` makes the address hard to guess, which keeps strangers away and proves nothing either.
"""

import base64
import enum
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlunsplit

import attrs

from payclient.answers import BOM, is_id, parse_json
from payclient.errors import ConfigurationError, InvalidNotificationError
from payclient.models import Notification
from payclient.profile import ReturnProfile
from payclient.validation import check_type, parse_address, text_fault

__all__ = [
    "Receipt",
    "acknowledgement",
    "notification_url",
    "parse_external_notification",
    "parse_notification",
]

#: Bytes of query and body together.
MAX_SIZE = 8192

#: Bytes of an external notification, which holds every field of a payment.
MAX_EXTERNAL = 65536

#: Bytes of a secret, at least.
SHORTEST_SECRET = 16

_ID = re.compile(r"[1-9][0-9]{0,18}")


class Receipt(enum.StrEnum):
    """How the tracker took a notification. Never a verdict."""

    #: An open sale of this ledger: queried at once.
    MATCHED = "matched"
    #: Received before: nothing is written. An undecided sale is queried, a form confirmed, once a second at most.
    DUPLICATE = "duplicate"
    #: Our POST has no answer yet; routine in practice.
    EARLY = "early"
    #: The sale is decided: queried once more, perhaps for a correction. An archived one takes none: it is logged.
    LATE = "late"
    #: Not a sale of this ledger: nothing is queried, written or kept.
    UNMATCHED = "unmatched"
    #: Our client transaction id with another transaction id: recorded as an event, nothing is overwritten.
    CONFLICT = "conflict"


def parse_notification(
    *, query: str | Mapping[str, str] | None = None, body: bytes = b"", content_type: str | None = ""
) -> Notification:
    """Read the two ids of a notification from its query, or from a form or JSON body (§6).

    `clientTransactionID` may be in any letter case. Raises `InvalidNotificationError` for anything else, over 8 KiB
    too; its text repeats nothing of what came.
    """
    check_type("body", body, bytes | bytearray)
    given = [*_read_query(query or "", len(body)), *_body(body, content_type or "")]
    return _read_ids(given, "id", "clientTransactionID")


def parse_external_notification(body: bytes) -> Notification:
    """Read the two ids of an external notification: a JSON object with every field of an approved payment.

    Nobody signed it, so pass it to `tracker.notify`, which queries the service, and answer with `acknowledgement`.
    Names may be in any letter case. Raises `InvalidNotificationError`, over 64 KiB too; its text repeats nothing of
    what came.
    """
    check_type("body", body, bytes | bytearray)
    if len(body) > MAX_EXTERNAL:
        raise InvalidNotificationError("the notification is too large")
    return _read_ids(_object(body), "TransactionId", "ClientTransactionId")


def _read_ids(fields: Iterable[tuple[str, str]], id_name: str, client_id_name: str) -> Notification:
    """Read the two ids, each given once under its name in any letter case."""
    given = {(name.lower(), value) for name, value in fields}
    ids, client_ids = (
        [value for name, value in given if name == wanted.lower()] for wanted in (id_name, client_id_name)
    )
    if len(ids) != 1 or len(client_ids) != 1:
        raise InvalidNotificationError(f"a notification must have one {id_name} and one {client_id_name}")
    return Notification(
        transaction_id=_transaction_id(ids[0]), client_transaction_id=_client_id(client_ids[0])
    )


def acknowledgement(receipt: Receipt) -> bytes:
    """Return the JSON body of the answer to an external notification, whose HTTP status is always 200.

    The code is 333 for one that was received before. All else gets 000, even the notification of an unknown sale, so
    that nothing can be probed.
    """
    if receipt is Receipt.DUPLICATE:
        return b'{"Response": false, "ErrorCode": "333"}'
    return b'{"Response": true, "ErrorCode": "000"}'


@attrs.frozen(kw_only=True)
class Return:
    """The ids that a browser brought back from a form; nothing vouches for them."""

    #: None: the customer cancelled, or could not pay.
    transaction_id: int | None
    client_transaction_id: str
    #: Whether the form could not be used.
    unusable: bool = False


def parse_return(
    query: str | Mapping[str, str], names: ReturnProfile, client_transaction_id: str | None = None
) -> Return:
    """Read what a form's redirect brings to `response_url`, by the profile's names in any letter case.

    The parameters are appended to the address's own, so the last of a name counts. `client_transaction_id` is the
    merchant's own record of which form it was, for redirects that bring none. Raises `InvalidNotificationError`.
    """
    values_of = getattr(query, "getlist", None)
    if values_of is not None:  # Flask's mapping has the first value of a name
        query = {name: values_of(name)[-1] for name in query}
    found = {name.lower(): value for name, value in _read_query(query)}
    client_id = found.get(names.client_transaction_id.lower(), client_transaction_id)
    unusable = names.message is not None and names.message.lower() in found
    if client_id is None:
        raise InvalidNotificationError(
            "a form could not be used: is it opened from the registered domain?"
            if unusable
            else "the redirect does not name the form that the browser comes from"
        )
    if client_transaction_id not in (None, client_id):
        raise InvalidNotificationError("the browser comes from another form")
    number = found.get(names.transaction_id.lower(), "")
    return Return(
        transaction_id=None if number in ("", "0") else _transaction_id(number),
        client_transaction_id=_client_id(client_id),
        unusable=unusable,
    )


def _transaction_id(text: str) -> int:
    if not _ID.fullmatch(text) or not is_id(int(text)):
        raise InvalidNotificationError("id must be a transaction id")
    return int(text)


def _client_id(text: str) -> str:
    if not text.strip() or text_fault(text) is not None:
        raise InvalidNotificationError("clientTransactionID must be a client transaction id")
    return text


def _read_query(query: str | Mapping[str, str], body_size: int = 0) -> Iterable[tuple[str, str]]:
    """Return names and values of a query. Raise `InvalidNotificationError` where it and the body exceed 8 KiB."""
    texts = [text for pair in query.items() for text in pair] if isinstance(query, Mapping) else [query]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidNotificationError("the parameters must be a query, or texts")
    if sum(map(len, texts)) + body_size > MAX_SIZE:
        raise InvalidNotificationError("the notification is too large")
    return _pairs(query.removeprefix("?")) if isinstance(query, str) else query.items()


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        # Another program's parameters may be in another encoding; an id in one is refused.
        return parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="surrogateescape")
    except ValueError:
        raise InvalidNotificationError("the parameters cannot be read") from None


def _body(body: bytes, content_type: str) -> Iterable[tuple[str, str]]:
    """Return the names and values of a body, which is JSON or a web form; none of a form with files."""
    kind = content_type.partition(";")[0].strip().lower()
    if not body.strip() or kind.startswith("multipart/"):
        return ()
    if kind.endswith("json") or body.removeprefix(BOM).lstrip()[:1] == b"{":
        return _object(body)
    return _pairs(body.decode("utf-8", "surrogateescape"))


def _object(body: bytes) -> list[tuple[str, str]]:
    data = parse_json(body)
    if not isinstance(data, dict):
        raise InvalidNotificationError("the body must be a JSON object")
    # An id may come as a number; `true` is not one.
    return [(name, str(value)) for name, value in data.items() if type(value) in (int, str)]


def notification_url(base: str, client_transaction_id: str, secret: str | bytes) -> str:
    """Return the `response_url` of one sale: `base` with a last part that cannot be guessed without the secret.

    `secret` is 16 bytes or more of your own, the same in all processes. Anybody who has seen the address may still lie,
    so a notification that arrives there is a hint like any other. Raises `ConfigurationError`.
    """
    check_type("base", base, str)
    check_type("client_transaction_id", client_transaction_id, str)
    parts = parse_address(base)
    if parts is None or parts.scheme not in ("http", "https") or parts.fragment:
        raise ConfigurationError("base must be an address such as https://shop.example/notify")
    key = _notification_key(client_transaction_id, check_secret(secret))
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{key}"))


def is_notification_key(key: str, client_transaction_id: str, secret: bytes) -> bool:
    """Return whether a key is the last part of the sale's `notification_url`, in the same time whatever the key is."""
    return hmac.compare_digest(
        key.encode("utf-8", "replace"), _notification_key(client_transaction_id, secret).encode()
    )


def check_secret(secret: str | bytes) -> bytes:
    """Return the secret as bytes. Raises `ConfigurationError` for a secret that can be guessed."""
    found = secret.encode("utf-8", "replace") if isinstance(secret, str) else secret
    if not isinstance(found, bytes) or len(found) < SHORTEST_SECRET:
        raise ConfigurationError(f"secret must be at least {SHORTEST_SECRET} bytes, chosen at random")
    return found


def _notification_key(client_transaction_id: str, secret: bytes) -> str:
    text = ("payclient notification " + client_transaction_id).encode("utf-8", "replace")
    return base64.urlsafe_b64encode(hmac.digest(secret, text, hashlib.sha256)[:24]).decode()
