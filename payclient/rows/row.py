"""One row of a file, whichever its form, and the request that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import attrs
from cattrs import BaseValidationError

from payclient.errors import InvalidRequestError
from payclient.models import SaleRequest
from payclient.rows.faults import Fault, faults_of

__all__ = ["Row", "make_row", "short_digest"]


@attrs.frozen
class Row:
    """One row of a file: a request, or the faults that forbid one."""

    #: Counted from 1, the header included.
    line: int
    #: What stands in the key column; None where it is missing or no text.
    key: str | None
    request: SaleRequest | None
    faults: tuple[Fault, ...] = ()
    #: The byte at which it begins, and a digest of its bytes.
    offset: int = attrs.field(default=0, eq=False)
    digest: int = attrs.field(default=0, eq=False, repr=False)


def make_row(
    make: Callable[[], SaleRequest],
    line: int,
    key: str,
    spelled: Mapping[str, str],
    values: Mapping[str, Any],
    offset: int,
    digest: int,
) -> Row:
    """A row whose values can be read: the model says whether they are a request."""
    try:
        return Row(line, key, make(), (), offset, digest)
    except (InvalidRequestError, BaseValidationError) as error:
        return Row(line, key, None, tuple(faults_of(error, line, spelled, values)), offset, digest)


def short_digest(content: bytes) -> int:
    """A signed 64-bit digest: two rows of a million share one once in 30 million files."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big", signed=True)
