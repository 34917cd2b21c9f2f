"""`parse_notification`: what arrives at `responseUrl` (§6), however it is delivered.

The document shows two parameters and neither the HTTP method nor the encoding, so query, form and JSON are read. A
notification is unsigned and carries no verdict: it is a hint to ask the service.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

import orjson

from payclient.checks import text_fault
from payclient.errors import InvalidNotificationError
from payclient.models import Notification

__all__ = ["Receipt", "parse_notification"]

#: Bytes of query and body together.
MAX_SIZE = 8192

_ID = re.compile(r"[1-9][0-9]{0,18}")


class Receipt(enum.StrEnum):
    """What a notification was to the tracker. Never a verdict."""

    #: An open sale of ours: it is asked for at once.
    MATCHED = "matched"
    #: Heard before; nothing is done.
    DUPLICATE = "duplicate"
    #: Our POST has no answer yet; routine in practice.
    EARLY = "early"
    #: The sale is decided; it is asked for once more, perhaps for a correction.
    LATE = "late"
    #: No sale of ours; nothing is asked, written or kept.
    UNMATCHED = "unmatched"
    #: Our client transaction id with another transaction id; noted, nothing is overwritten.
    CONFLICT = "conflict"


def parse_notification(
    *, query: str | Mapping[str, str] | None = None, body: bytes = b"", content_type: str = ""
) -> Notification:
    """Read the two ids of a notification from its query, or from a form or JSON body (§6).

    `clientTransactionID` may be in any letter case. Raises `InvalidNotificationError` for anything else, over 8 KiB
    too; its text repeats nothing of what came.
    """
    size = len(body) + (len(query) if isinstance(query, str) else sum(map(len, (query or {}).values())))
    if size > MAX_SIZE:
        raise InvalidNotificationError("the notification is too large")
    found: dict[str, set[str]] = {"id": set(), "clienttransactionid": set()}
    for name, value in [*_query(query), *_body(body, content_type)]:
        if name.lower() in found:
            found[name.lower()].add(value)
    transaction_ids, client_ids = found["id"], found["clienttransactionid"]
    if len(transaction_ids) != 1 or len(client_ids) != 1:
        raise InvalidNotificationError("a notification has one id and one clientTransactionID")
    (transaction_id,), (client_id,) = transaction_ids, client_ids
    if not _ID.fullmatch(transaction_id) or int(transaction_id) >= 2**63:
        raise InvalidNotificationError("id is no transaction id")
    if not client_id.strip() or text_fault(client_id) is not None:
        raise InvalidNotificationError("clientTransactionID is no client transaction id")
    return Notification(transaction_id=int(transaction_id), client_transaction_id=client_id)


def _query(query: str | Mapping[str, str] | None) -> Iterable[tuple[str, str]]:
    if query is None:
        return ()
    return _pairs(query.removeprefix("?")) if isinstance(query, str) else query.items()


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise InvalidNotificationError("the parameters cannot be read") from None


def _body(body: bytes, content_type: str) -> Iterable[tuple[str, str]]:
    kind = content_type.partition(";")[0].strip().lower()
    if not body.strip() or kind.startswith("multipart/"):
        return ()
    if kind.endswith("json") or body.lstrip()[:1] == b"{":
        try:
            data = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise InvalidNotificationError("the body is no JSON") from None
        if not isinstance(data, dict):
            raise InvalidNotificationError("the body is no JSON object")
        # An id may come as a number; `true` is none.
        return [(name, str(value)) for name, value in data.items() if type(value) in (int, str)]
    try:
        return _pairs(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidNotificationError("the body is no text") from None
