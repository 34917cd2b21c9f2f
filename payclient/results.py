"""What the service says, as frozen attrs classes: results, reports and notifications.

Links, payment ids and whole answers never show in a `repr`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import attrs

from payclient.errors import ConfigurationError

__all__ = ["FormLinks", "Notification", "PrepareResult", "SaleResult", "StatusReport"]


@attrs.frozen(kw_only=True)
class SaleResult:
    """The service created the transaction (§2.5); it is `Pendiente` now (§3)."""

    transaction_id: int
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(repr=False)
class FormLinks(Mapping[str, str]):
    """Every `payWith...` link of a prepared form (§2.6). Links are secrets: `repr` shows only their names."""

    _links: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self._links[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __repr__(self) -> str:
        return f"FormLinks({', '.join(self._links)})"


@attrs.frozen(kw_only=True)
class PrepareResult:
    """A prepared payment form (§2.6)."""

    #: A secret where the links are made of it.
    payment_id: str = attrs.field(repr=False)
    links: FormLinks = attrs.field(repr=False)
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    #: The profile's name of the wallet link, which carries the service's brand (§2.6).
    wallet_link_field: str | None = attrs.field(default=None, repr=False)

    @property
    def pay_with_card(self) -> str:
        """The form for paying with a card. `ConfigurationError` if the answer had no such link."""
        return self._link("payWithCard")

    @property
    def pay_with_wallet(self) -> str:
        """The form for paying through the wallet app, by the profile's name or by being the only other.

        `ConfigurationError` where that is ambiguous.
        """
        if self.wallet_link_field is not None:
            return self._link(self.wallet_link_field)
        others = [name for name in self.links if name != "payWithCard"]
        if len(others) != 1:
            raise ConfigurationError(
                f"set wallet_link_field in the profile: one of {', '.join(others) or 'none'}"
            )
        return self.links[others[0]]

    def _link(self, name: str) -> str:
        try:
            return self.links[name]
        except KeyError:
            raise ConfigurationError(f"the answer has no link {name}") from None


@attrs.frozen(kw_only=True)
class StatusReport:
    """What the service says of a transaction at this moment.

    `state` is the document's word (§3): `Pendiente`, `Aceptado` or `Cancelado`; None where the profile does not
    map the service's own word, which is then neither pending nor final. `amount` is cents.
    """

    state: Literal["Pendiente", "Aceptado", "Cancelado"] | None
    transaction_id: int | None = None
    client_transaction_id: str | None = None
    amount: int | None = None
    currency: str | None = None
    #: Other accepted transactions under the same client transaction id: each of them is money.
    also_accepted: tuple[int, ...] = ()
    #: All other transactions under the same client transaction id. Where several are undecided, or all cancelled, they
    #: are all here, and `transaction_id` is None.
    others: tuple[int, ...] = ()
    #: Fields of the answer that are there and are not of their type, by the service's names: the report is not ours.
    unreadable: tuple[str, ...] = ()
    raw: Mapping[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class Notification:
    """What arrived at `responseUrl` (§6): two ids, unsigned, no verdict. A hint."""

    transaction_id: int
    client_transaction_id: str
