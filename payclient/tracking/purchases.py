"""One purchase, however many asks: what is known of it, and why another ask of it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

import attrs

from payclient.errors import AlreadyPaidError, ErrorDetail, InvalidRequestError, PayError, PurchaseOpenError
from payclient.ledger.records import may_be_paid, purchase_holder
from payclient.lifecycle import Record, State
from payclient.tracking.followup import customer_acted
from payclient.tracking.outcomes import Outcome
from payclient.validation import blank_fault, id_fault, text_fault

if TYPE_CHECKING:
    from payclient.tracking.poller import Poller

__all__ = ["Purchase"]


@attrs.frozen(kw_only=True)
class Purchase:
    """The facts that are known of one purchase at this moment.

    - `key`: The name that the merchant gave it.
    - `asks`: One outcome for each client transaction id of an ask, the oldest first.
    - `held_until`: Until when, about, an open ask keeps another one from being sent, in UTC seconds since the epoch.
      Open is a push request, a payment that is being given back, or a form whose links may still be paid, also where
      its customer closed it. None: another ask may be sent now, or the purchase is paid.
    """

    key: str
    asks: tuple[Outcome, ...] = ()
    held_until: float | None = None

    @property
    def paid(self) -> bool | None:
        """True where an ask is paid; False where all are decided and none is paid; None: not known, hold the goods."""
        if any(ask.paid for ask in self.asks):
            return True
        return None if any(ask.paid is None for ask in self.asks) else False

    @property
    def collected(self) -> int:
        """Cents of the asks that are paid, and not given back."""
        return sum(ask.amount for ask in self.asks if ask.paid)

    @property
    def overpaid(self) -> int:
        """Cents collected beyond the first payment: more than 0 where somebody paid twice."""
        return sum([ask.amount for ask in self.asks if ask.paid][1:])

    @classmethod
    def of(cls, key: str, records: Iterable[Record], *, held_until: float | None = None) -> Self:
        """Return what records say, in the order of their permits. The newest of one client transaction id counts."""
        newest = {record.client_transaction_id: record for record in records}
        asks = tuple(Outcome.of(record) for record in newest.values())
        return cls(key=key, asks=asks, held_until=held_until)


def check_purchase(key: str) -> None:
    """Raise `InvalidRequestError` for what could be taken for another purchase's key."""
    fault = "must be a text" if type(key) is not str else text_fault(key) or id_fault(key) or blank_fault(key)
    if fault is None and not key:
        fault = "must not be empty"
    if fault is not None:
        raise InvalidRequestError(errors=[ErrorDetail("purchase", 0, (fault,))])


def find_holder(poller: Poller, asks: Sequence[Record], *, beside_open_form: bool = False) -> Record | None:
    """Return the ask of a purchase that keeps another one from being sent now; see `holds_purchase`.

    The ledger refuses a permit beside that ask. Or it may yet turn out to be paid: it is a form with dead links, or
    only a person can find out what its customer did.
    """
    if holder := purchase_holder(asks, poller.clock.time(), beside_open_form=beside_open_form):
        return holder
    counted = [each for each in asks if each.kind == "sale"] if beside_open_form else asks
    return next((each for each in counted if _may_yet_be_paid(poller, each)), None)


def _may_yet_be_paid(poller: Poller, ask: Record) -> bool:
    """Return whether an ask may yet turn out to be paid that does not hold its purchase in the ledger any more.

    Its customer acted, and no query finds it; or it is a form, and queries or confirmations of it go on.
    """
    policy = poller.policy
    is_acted_on = not ask.state.decided and customer_acted(ask)
    if is_acted_on and not (policy.can_query and policy.follows(ask)):
        return True
    if ask.kind == "sale":
        return False
    # The service may have confirmed a transaction that was named, and its answer was lost.
    is_in_doubt = is_acted_on or (ask.state is State.CANCELLED and may_be_paid(ask))
    is_queried = ask.state is State.PENDING and policy.follows(ask)
    return is_queried or (is_in_doubt and poller.clock.time() < policy.closed_until(ask))


def held_until(poller: Poller, asks: Sequence[Record]) -> float | None:
    """Return until when another ask of the purchase is refused because one of these is open."""
    holder = find_holder(poller, asks)
    return None if holder is None or holder.state is State.ACCEPTED else _open_until(poller, holder)


def _open_until(poller: Poller, holder: Record) -> float:
    """Return until when, about, an open ask holds its purchase, in UTC seconds."""
    policy, dead_at = poller.policy, holder.links_dead_at
    if dead_at is None or holder.state is State.REVERSING:  # a push, or a payment that is being given back
        return holder.expires_at or policy.longest_end(holder)  # a push that is being sent has no end yet
    if holder.state is State.CANCELLED or dead_at <= poller.clock.time():  # a payment of it may yet show
        return policy.closed_until(holder)
    return dead_at


def refusal_of(poller: Poller, holder: Record) -> PayError:
    """Return the error that names the ask of the purchase that is paid or open, and query an open one once more."""
    identifier = holder.client_transaction_id
    if holder.state is State.ACCEPTED:
        words = f"this purchase is paid by {identifier}; nothing was sent"
        paid = AlreadyPaidError(words, client_transaction_id=identifier)
        paid.outcome = Outcome.of(holder)
        return paid
    words = f"this purchase has an open ask, {identifier}, which may be paid; nothing was sent"
    taken = PurchaseOpenError(words, client_transaction_id=identifier)
    taken.pending, taken.until = poller.handle(holder), _open_until(poller, holder)
    poller.query_overdue(holder)
    return taken
