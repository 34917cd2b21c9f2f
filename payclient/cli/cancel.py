"""`payclient cancel`: one push request withdrawn."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from payclient.cli.settings import BaseUrl, Flag, Profile, Whole
from payclient.cli.undoing import undo

__all__: list[str] = []


def cancel(
    *,
    transaction_id: Annotated[int | None, Whole, Parameter(help="The service's id.")] = None,
    client_transaction_id: Annotated[str | None, Parameter(help="The merchant's own id.")] = None,
    yes: Annotated[bool, Flag, Parameter(help="Do not ask.")] = False,
    base_url: BaseUrl = None,
    profile: Profile = None,
) -> int:
    """Withdraw a push request that nobody answered.

    Exit codes: 0 withdrawn; 2 nothing was sent; 3 refused, nothing was withdrawn; 4 no usable answer: ask its status.
    """
    return undo("cancel", transaction_id, client_transaction_id, yes=yes, base_url=base_url, profile=profile)
