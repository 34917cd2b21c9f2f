"""Purchases: the service's forms and reversals, customers who pay by push or by card, and what is collected."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from fake_service import LINKS, answer, refusal
from payclient import State
from payclient.events import Overpaid
from payclient.lifecycle import Record
from payclient.tracking.purchases import Purchase
from payclient.wire import HttpResponse
from worlds.oracle import Post, Transaction

if TYPE_CHECKING:
    from worlds.process import Process
    from worlds.world import World

__all__ = ["Customers", "Desk", "Till"]


@attrs.define(eq=False)
class Form:
    """A hosted form. Its link lives from its first load."""

    payment_id: str
    post: Post
    client_id: str
    amount: int
    currency: str
    dead_at: float | None = None
    #: Paid, or declined.
    closed: bool = False


# --- The service


class Desk:
    """Prepares forms, takes what is paid there, wants it confirmed, and gives back."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.forms: dict[str, Form] = {}

    def prepare(self, post: Post, data: dict[str, Any]) -> HttpResponse:
        """Answer by a form's links, or refuse: an id whose form is there already."""
        client_id = data["clientTransactionId"]
        if any(form.client_id == client_id for form in self.forms.values()):
            return refusal(23)
        form = Form(f"pay-{len(self.forms)}", post, client_id, data["amount"], data["currency"])
        self.forms[form.payment_id] = form
        self._world.note(f"service prepared {form.payment_id} for {client_id}")
        return answer(200, {"paymentId": form.payment_id, **LINKS})

    def pay(self, form: Form, *, accepted: bool) -> Transaction | None:
        """A customer presses the button; None where the link is dead by now."""
        world = self._world
        if form.closed or form.dead_at is None or world.now > form.dead_at:
            return None
        state = "Aceptado" if accepted else "Cancelado"
        number = 1000 + len(world.service.transactions)
        transaction = Transaction(
            number, form.client_id, "", form.amount, form.currency, form.post.account, world.now, world.now,
            state, is_form=True, confirmed=not accepted,
        )  # fmt: skip
        world.service.transactions[number] = transaction
        form.post.transactions.append(transaction)
        form.closed = accepted or not world.settings.another_card
        world.note(f"the form {form.payment_id} of {form.client_id} is {state} as {number}")
        world.oracle.created(form.post)
        if accepted:
            transaction.was_accepted = True
            world.after(world.settings.window / 2, self._give_up, transaction)
        return transaction

    def _give_up(self, transaction: Transaction) -> None:
        if not transaction.confirmed:
            self._world.oracle.given_up(transaction)
            self.take_back(transaction, "unconfirmed")

    def take_back(self, transaction: Transaction, why: str) -> bool:
        """Give a payment back; False where it is not paid."""
        if transaction.state != "Aceptado":
            return False
        transaction.state = "Cancelado"
        self._world.note(f"service gave back {transaction.number}: {why}")
        return True

    def undo_or_confirm(self, path: str, data: dict[str, Any]) -> HttpResponse:
        """Carry out a reversal or a confirmation that arrived."""
        found = self._world.service.transactions.get(data["id"])
        if path.endswith("/Reverse"):
            is_undone = found is not None and self.take_back(found, "asked for")
            return answer(200, True) if is_undone else refusal(20, status=404)
        if found is None or not found.is_form or found.client_id != data["clientTxId"]:
            return refusal(20, status=404)
        if found.state == "Aceptado" and not found.confirmed:
            found.confirmed = True
            self._world.note(f"service confirmed {found.number}")
            self._world.till.collected(found)
        return answer(200, self._world.service.report(found))


# --- Who sees the money


class Till:
    """What is collected for each purchase, by all that the service holds; says when it is too much."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Forms that were confirmed though what else their purchase has could not be read just before.
        self._unread: set[str] = set()

    def confirming(self, process: Process, client_id: str) -> None:
        """A confirmation leaves: rather than the service giving the payment back, where the ledger fails."""
        if asyncio.current_task() not in process.ledger.readers:
            self._unread.add(client_id)

    def money(self, key: str) -> list[Transaction]:
        """The payments of a purchase that stand; of what the network repeated, one."""
        world = self._world
        found: dict[str, Transaction] = {}
        for each in world.service.transactions.values():
            if each.state == "Aceptado" and each.confirmed and not each.namesake:
                record = world.store.newest(each.client_id)
                if record is not None and record.purchase == key:
                    found.setdefault(each.client_id, each)
        return list(found.values())

    def collected(self, transaction: Transaction) -> None:
        """Money is taken: it must be the purchase's first, unless the shop said `beside_open_form`."""
        world = self._world
        record = world.store.newest(transaction.client_id)
        if record is None or not world.settings.purchases:
            return
        # What the network repeats much later is charged by a service that does not look: nobody here can help it.
        found = [
            each
            for each in self.money(record.purchase)
            if each.client_id not in self._unread
            and not (world.oracle.twins(each.client_id) or self._was_unlisted(each, record.purchase))
        ]
        asks = [each for each in world.store.all() if each.purchase == record.purchase]
        if len(found) > 1 and not any(each.beside_open_form for each in asks):
            names = ", ".join(f"{each.client_id} ({each.number})" for each in found)
            world.oracle.violated(f"{record.purchase} is collected twice: by {names}")

    def _was_unlisted(self, paid: Transaction, key: str) -> bool:
        """Whether a query by its own id found nothing as the purchase's other asks left: it was refused as existing."""
        world = self._world
        posts = world.oracle.posts_of(paid.client_id)
        until = max((post.unlisted_until for post in posts), default=0.0)
        asks = {each.client_transaction_id for each in world.store.all() if each.purchase == key}
        others = [post.at for post in world.oracle.posts if post.client_id in asks and post not in posts]
        return until > 0.0 and all(at < until for at in others)

    def reversing(self, number: int) -> None:
        """A request to give back leaves: under a permit, and once for each."""
        # An attempt that was refused may name it as well: a notification of the next one came before its answer.
        states = {each.state for each in self._world.store.all() if each.transaction_id == number}
        if not states & {State.REVERSING, State.REVERSED}:
            self._world.oracle.violated(f"{number}: a reversal leaves without a permit")

    def at_the_end(self) -> None:
        """Everything was looked at: what is collected is called paid, what is not is not, and too much was seen."""
        world = self._world
        records = world.store.all()
        for each in world.service.transactions.values():
            record = next((one for one in records if one.transaction_id == each.number), None)
            stands = each.state == "Aceptado" and each.confirmed
            if world.oracle.twins(each.client_id) or each.listed_at > world.now:
                continue  # the service charged a copy, too; or its index lags for ever
            if each.is_form and stands and (record is None or record.state is not State.ACCEPTED):
                world.oracle.violated(f"{each.client_id}: {each.number} is collected, not known to be paid")
            elif (
                record is not None
                and record.state is State.ACCEPTED
                and not (stands or world.settings.endless)
            ):
                world.oracle.violated(f"{each.client_id}: {each.number} was given back, and is called paid")
        for key in {record.purchase for record in records}:
            asks = [record for record in records if record.purchase == key]
            held = [each for ask in asks for each in world.oracle.transactions_of(ask.client_transaction_id)]
            if any(world.oracle.twins(each.client_id) or each.listed_at > world.now for each in held):
                continue
            known = Purchase.of(key, asks)
            sales = (each for each in asks if each.kind == "sale" and not each.state.decided)
            # What these collected nobody can find out: the answer was lost, and no query goes by their id.
            untold = {each.client_transaction_id for each in sales if not world.oracle.tells(each)}
            true = sum(each.amount for each in self.money(key) if each.client_id not in untold)
            if known.paid is not None and known.collected != true and not world.settings.endless:
                world.oracle.violated(f"{key}: {true} cents are collected, and {known.collected} are known")
            paid = [ask for ask in asks if ask.state is State.ACCEPTED]
            if len(paid) > 1:
                world.note(f"{key} is overpaid: {known.overpaid}")
                if not any(self._was_seen(ask) for ask in paid):
                    world.oracle.violated(f"{key} is paid by {len(paid)}, and nobody was told")

    def _was_seen(self, record: Record) -> bool:
        found = self._world.store.connection.execute(
            "SELECT 1 FROM history WHERE client_transaction_id = ? AND event = ?",
            (record.client_transaction_id, Overpaid.__name__),
        )
        return found.fetchone() is not None


# --- What happens


class Customers:
    """Who pays for what: clicks, links that are loaded and paid late, and reversals that nobody here asked for."""

    def __init__(self, world: World) -> None:
        self._world = world

    def plan(self) -> None:
        """Draw the visits of each purchase: alone, again after a while, and several at once."""
        world = self._world
        settings, r = world.settings, world.random
        for number in range(settings.purchases):
            key, tries = f"cart-{number}", 0
            when = r.uniform(0.0, settings.chaos * 0.3)
            phone = f"09841113{number:02}"
            for _ in range(r.randint(2, 8)):
                if when > settings.chaos + settings.window:
                    break  # what is asked later would not be over at the end
                tries += r.random() < 0.6
                for _ in range(r.choice((1, 1, 2, 3))):  # tabs, and double clicks
                    if r.random() < 0.5:
                        beside = settings.beside and r.random() < 0.7
                        tab = r.choice(("", "", "b"))
                        asked = {"purchase": key, "beside_open_form": beside}
                        visit = partial(world.let, "buy", f"{key}-{tries}{tab}", phone, 150, asked)
                    else:
                        visit = partial(world.let, "get_form", key)
                    world.at(when, partial(visit, again=10.0))
                    when += r.choice((0.0, 0.0, 0.01, 0.2))
                when += r.uniform(0.0, r.choice((2.0, 60.0, settings.window, 3 * settings.window)))
        for _ in range(r.randint(0, 3)):
            world.at(r.uniform(settings.chaos * 0.3, settings.chaos), self._give_back)

    def _give_back(self) -> None:
        """The shop gives a payment back."""
        world = self._world
        paid = [each for each in world.store.all() if each.state is State.ACCEPTED]
        process = world.somebody()
        if paid and process is not None:
            process.do(process.give_back(world.random.choice(paid).client_transaction_id))

    def accepted(self, transaction: Transaction) -> None:
        """Somebody gives some payments back in the service's own portal."""
        world = self._world
        if world.happens(world.settings.portal):
            delay = world.random.uniform(1.0, world.settings.window)
            world.after(delay, world.service.desk.take_back, transaction, "by the portal")

    def got_links(self, payment_id: str, margin: float) -> None:
        """A customer has the links of a form, and loads one before it is too old; or does not."""
        world, r = self._world, self._world.random
        form = world.service.desk.forms[payment_id]
        world.note(f"a customer has the form {payment_id} of {form.client_id}")
        if r.random() < 0.85:
            world.after(r.uniform(0.0, 0.9 * margin), self._load, form)

    def _load(self, form: Form) -> None:
        world, r = self._world, self._world.random
        if form.closed:
            return
        if form.dead_at is None:
            form.dead_at = world.now + world.profile.form_window
        left = form.dead_at - world.now
        if left > 0:
            late = r.choice((0.1, 0.5, 1.0))
            world.after(r.uniform(0.0, late * left), self._act, form)

    def _act(self, form: Form) -> None:
        world, r = self._world, self._world.random
        again = world.settings.another_card
        what = r.choice(("pay", "decline") if again else ("pay", "pay", "pay", "decline", "close", ""))
        if what in ("pay", "decline"):
            transaction = world.service.desk.pay(form, accepted=what == "pay")
            if transaction is None:
                return
            if what == "pay":
                self.accepted(transaction)
            self._lead_back(form, transaction.number)
            if r.random() < world.settings.notify:
                delay = r.choice((0.01, 0.5, 30.0))
                world.after(delay, world.let, "hear", transaction.number, form.client_id)
        elif what == "close" and not form.closed:
            self._lead_back(form, 0)
        if what in ("close", "decline") and not form.closed and r.random() < (0.9 if again else 0.5):
            world.after(r.uniform(0.0, world.settings.window / 2 if again else 60.0), self._act, form)

    def _lead_back(self, form: Form, number: int) -> None:
        """A browser goes back to the shop, which may lose it, or see it twice."""
        world, r = self._world, self._world.random
        for _ in range(r.choice((0, 0, 1, 1, 2))):
            query = f"id={number}&clientTransactionId={form.client_id}"
            world.after(r.choice((0.1, 1.0, 20.0)), world.let, "come_back", query)
