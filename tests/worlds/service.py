"""The service and the network in front of it: what arrives, what is executed, what is answered, when and whether."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

import payclient
from fake_service import answer, refusal
from payclient.wire import BeforeSend, HttpRequest, HttpResponse
from worlds.oracle import Post, Transaction, account_of
from worlds.purchases import Desk

if TYPE_CHECKING:
    from worlds.process import Process
    from worlds.world import World

__all__ = ["Line", "Service"]


_HTML = b"<html>proxy</html>"

#: Answers that prove nothing, whatever was executed before them.
_USELESS = (
    answer(500, _HTML), answer(502, _HTML), answer(503, b""), answer(504, _HTML),
    answer(500, {"message": "oops", "errorCode": 1}), answer(307, b"", Location="/api/Sale"),
    answer(308, b"", Location="/api/Sale"), answer(302, b"", Location="/login"), answer(408, b""),
    answer(409, {"message": "conflict"}), answer(429, b"slow down"), answer(200, b""),
    answer(200, b"{}"), answer(200, _HTML), answer(200, b'{"transactionId": '),
    answer(200, {"transactionId": "12"}), answer(200, {"transactionId": 12, "errorCode": 22}),
)  # fmt: skip

#: Answers that name what was created, and yet are not a success.
_NAMING: tuple[Callable[[int], HttpResponse], ...] = (
    lambda number: answer(500, {"transactionId": number}),
    lambda number: answer(500, {"message": "oops", "errorCode": 22, "transactionId": number}),
    lambda number: answer(408, {"message": "late", "errorCode": 5, "transactionId": number}),
    lambda number: answer(400, {"message": "oops", "errorCode": 22, "TransactionID": number}),
    lambda number: answer(200, {"errorCode": 22, "transactionId": number}),
    lambda number: answer(200, {"errorCode": 0, "data": {"transactionId": number}}),
    lambda number: answer(409, {"message": "m", "errorCode": 9, "data": [{"transactionid": number}]}),
    lambda number: answer(202, {"errorCode": 7, "result": {"transactionId": number}}),
)

#: Answers that refuse: whoever gives one creates nothing.
_REFUSALS = (
    refusal(22), refusal(800), refusal(99), refusal(22, 2061), refusal(22, status=500),
    refusal(5, status=429), answer(401, {"message": "no"}),
)  # fmt: skip


class Service:
    """Creates, decides, answers queries, and notifies."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.transactions: dict[int, Transaction] = {}
        self.desk = Desk(world)
        #: Client transaction ids of which a query by them has said that every transaction is cancelled.
        self.all_cancelled: set[str] = set()

    def knows(self, token: str) -> bool:
        """Whether a token is good now."""
        return self._world.settings.accounts != "rotated" or self._world.token() == token

    # --- Sales

    def execute(self, post: Post, data: dict[str, Any]) -> HttpResponse:
        """Carry out a Sale, and give its true answer. Something in front of the service may repeat it."""
        world, settings = self._world, self._world.settings
        if post.is_form:
            return self._prepare(post, data)
        response = self._execute(post, data)
        # Without a query by our own id a repeat that says 2061 cannot be told from a refusal.
        told = settings.by_client or settings.checks_duplicates or not settings.checks_busy
        if post.transactions and told and world.happens(settings.repeat):
            world.note(f"something repeats the POST of {post.client_id}/{post.attempt}")
            listed_at = world.now
            if settings.by_client and not post.unlisted_until:
                listed_at = min(
                    world.now + settings.repeat_lag, post.permitted_at + settings.absent_after - 2.0
                )
            post.transactions[-1].listed_at = post.transactions[-1].visible_at = listed_at
            response = self._execute(post, data)
            post.transactions[-1].listed_at = post.transactions[-1].visible_at = listed_at
            if listed_at > world.now:
                post.unlisted_until = listed_at + 45.0  # a query is made before its POST connects
        return response

    def _prepare(self, post: Post, data: dict[str, Any]) -> HttpResponse:
        if self._world.happens(self._world.settings.refuse):
            return self._world.random.choice(_REFUSALS)
        return self.desk.prepare(post, data)

    def _execute(self, post: Post, data: dict[str, Any]) -> HttpResponse:
        world, settings = self._world, self._world.settings
        if post.refused or (not post.transactions and world.happens(settings.refuse)):
            post.refused = True
            return world.random.choice(_REFUSALS)
        client_id, phone = data["clientTransactionId"], data["phoneNumber"]
        held = [one for one in self.transactions.values() if one.account == post.account and not one.namesake]
        if settings.checks_duplicates and any(each.client_id == client_id for each in held):
            post.refused = not post.transactions
            return refusal(23)
        if settings.checks_busy and any(each.phone == phone and each.state == "Pendiente" for each in held):
            post.refused = not post.transactions
            return refusal(22, 2061)
        visible_at = world.now + (world.random.choice((0.0, 0.0, 3.0)) if not world.calm else 0.0)
        listed_at = visible_at
        if world.happens(settings.lag):
            listed_at = world.random.uniform(visible_at, post.permitted_at + settings.absent_after - 2.0)
        transaction = Transaction(
            1000 + len(self.transactions), client_id, phone, data["amount"], data["currency"], post.account,
            visible_at, max(visible_at, listed_at),
        )  # fmt: skip
        self.transactions[transaction.number] = transaction
        post.transactions.append(transaction)
        world.note(f"service created {transaction.number} for {client_id}/{post.attempt}")
        world.oracle.created(post)
        self._meet_the_customer(transaction)
        if world.happens(settings.namesakes):
            self._make_namesake(transaction)
        return answer(200, {"transactionId": transaction.number})

    def _make_namesake(self, transaction: Transaction) -> None:
        number, account = 1000 + len(self.transactions), "B" if transaction.account == "A" else "A"
        self._world.note(f"account {account} has {number} of the same client transaction id")
        self.transactions[number] = attrs.evolve(
            transaction,
            number=number,
            account=account,
            state=self._world.random.choice(("Aceptado", "Cancelado", "Pendiente")),
            namesake=True,
        )

    def _meet_the_customer(self, transaction: Transaction) -> None:
        world, settings = self._world, self._world.settings
        act = world.random.choice(("Aceptado", "Aceptado", "Cancelado", ""))
        if act:
            longest = world.random.choice((1.0, 20.0, settings.window - 1))
            world.after(world.random.uniform(0.05, longest), self._decide, transaction, act)
        world.after(settings.window, self._decide, transaction, "Cancelado")
        if world.happens(settings.notify_early):
            world.after(world.random.uniform(0.0, 0.2), self._notify, transaction)

    def _decide(self, transaction: Transaction, state: str) -> None:
        if transaction.state != "Pendiente":
            return
        world, settings = self._world, self._world.settings
        transaction.state = state
        world.note(f"service decided {transaction.number}: {state}")
        if state == "Aceptado":
            transaction.was_accepted = True
            world.till.collected(transaction)
            world.customers.accepted(transaction)
        if world.random.random() < settings.notify:
            self._notify(transaction)
            if world.happens(settings.notify_twice):
                self._notify(transaction)

    def _notify(self, transaction: Transaction) -> None:
        delay = self._world.random.choice((0.01, 0.5, 30.0))
        self._world.after(delay, self._world.let, "hear", transaction.number, transaction.client_id)

    # --- Queries

    def query(self, path: str, account: str) -> HttpResponse:
        """Answer a status query by either id."""
        name, by_client = path.rpartition("/")[2], path.startswith("/api/Sale/client/")
        found = self.find(account, client_id=name) if by_client else self.find(account, number=name)
        if by_client and (self._world.settings.answers_array or len(found) > 1):
            return answer(200, found)
        return answer(200, found[0]) if found else refusal(20, status=404)

    def find(
        self, account: str, *, client_id: str | None = None, number: str | None = None
    ) -> list[dict[str, Any]]:
        """What an account sees now under one of the ids."""
        now = self._world.now
        found = [
            self.report(each)
            for each in self.transactions.values()
            if each.account == account
            and not (each.namesake and self._sent(each))
            and (
                (each.client_id == client_id and each.listed_at <= now)
                or (str(each.number) == number and each.visible_at <= now)
            )
        ]
        if client_id is not None and found and all(each["state"] == "Cancelado" for each in found):
            self.all_cancelled.add(client_id)
        return found

    def _sent(self, namesake: Transaction) -> bool:
        """Whether the namesake's account was sent a Sale of ours too: then that one is what it has."""
        posts = self._world.oracle.posts_of(namesake.client_id)
        return any(post.account == namesake.account for post in posts)

    def name(self, transaction: Transaction) -> None:
        """We have been told its number: the index by client transaction id need not have it ever."""
        world, settings = self._world, self._world.settings
        if transaction.listed_at > world.now and settings.by_transaction and settings.reports_client_id:
            world.note(f"{transaction.number} is named, and its index lags for ever")
            transaction.listed_at = math.inf

    def report(self, transaction: Transaction) -> dict[str, Any]:
        """The status object of a transaction."""
        world, settings = self._world, self._world.settings
        report: dict[str, object] = {"transactionId": transaction.number, "state": transaction.state}
        if world.happens(settings.odd_word):
            report["state"] = world.random.choice(("Revisando", "", None, "ACEPTADO"))
        if settings.reports_client_id:
            report["clientTransactionId"] = transaction.client_id
        if settings.reports_amount:
            report |= {"amount": transaction.amount, "currency": transaction.currency}
        return report


def _token(request: HttpRequest) -> str:
    assert request.headers is not None
    return request.headers["Authorization"].removeprefix("Bearer ")


class Line:
    """One process's way to the service: a `Transport`."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    async def __call__(self, request: HttpRequest, before_send: BeforeSend | None) -> HttpResponse:
        """Connect, ask for the permit, let the bytes go, and wait for what comes back."""
        world, settings = self._world, self._world.settings
        if world.happens(settings.no_connection):
            await asyncio.sleep(world.random.choice((0.01, 3.0, 40.0)))
            raise ConnectionRefusedError
        await asyncio.sleep(world.random.choice((0.0, 0.01, 0.1)))
        if before_send is not None:
            await before_send()
        promise: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        if request.method == "GET":
            self._send_query(request, promise)
        else:
            if world.happens(settings.dead_connection):
                raise payclient.NotSentError("the connection was dead")
            if request.path.endswith(("/Confirm", "/Reverse")):
                self._send_word(request, promise)
            else:
                self._send_sale(request, promise)
        return await promise

    def _send_query(self, request: HttpRequest, promise: asyncio.Future[HttpResponse]) -> None:
        world, settings, token = self._world, self._world.settings, _token(request)
        world.oracle.queried(self._process)
        if not world.service.knows(token):
            self._reply(promise, _REFUSALS[-1], 0.02)
        elif settings.silence[0] <= world.now < settings.silence[1]:
            self._reply(promise, _USELESS[0], 0.1)
        elif world.happens(settings.shed, endless=True):
            headers = {} if settings.retry_after is None else {"Retry-After": settings.retry_after}
            self._reply(promise, answer(429, {"message": "busy", "errorCode": 29}, **headers), 0.02)
        elif world.happens(settings.hang, endless=True):
            world.note(f"{self._process.name} a query is never answered")
        elif world.happens(settings.query_fault, endless=True):
            fault = world.random.choice((None, ConnectionResetError(), *_USELESS[:4], *_REFUSALS[-2:]))
            if fault is not None:
                self._reply(promise, fault, 0.1)
        else:
            account = account_of(token)
            world.after(0.02, lambda: self._reply(promise, world.service.query(request.path, account), 0.02))

    def _send_word(self, request: HttpRequest, promise: asyncio.Future[HttpResponse]) -> None:
        """A confirmation or a reversal: lost on its way, or its answer lost."""
        world, settings, random = self._world, self._world.settings, self._world.random
        if request.path.endswith("/Reverse"):
            world.till.reversing(json.loads(request.body)["id"])
        else:
            data = json.loads(request.body)
            world.till.confirming(self._process, data["clientTxId"])
        useless = random.choice((None, ConnectionResetError(), *_USELESS[:4]))
        if world.happens(settings.drop_request):
            if useless is not None:
                self._reply(promise, useless, 1.0)
            return

        def arrive() -> None:
            good = world.service.desk.undo_or_confirm(request.path, json.loads(request.body))
            said = useless if world.happens(settings.drop_answer) else good
            if said is not None:
                self._reply(promise, said, 0.02)

        world.after(random.choice((0.02, 0.2, 3.0)), arrive)

    def _send_sale(self, request: HttpRequest, promise: asyncio.Future[HttpResponse]) -> None:
        world, settings, random = self._world, self._world.settings, self._world.random
        data, token = json.loads(request.body), _token(request)
        post = world.oracle.bytes_leave(self._process.name, data["clientTransactionId"], account_of(token))
        post.token, post.is_form = token, request.path.endswith("/Prepare")
        world.note(f"{self._process.name} POST {post.client_id}/{post.attempt}")
        if not world.service.knows(token):
            post.refused = True
            self._reply(promise, _REFUSALS[-1], 0.02)
            return
        if world.happens(settings.drop_request):
            if random.random() < 0.5:
                self._reply(promise, random.choice((ConnectionResetError(), *_USELESS)), 1.0)
            return
        delay = random.choice((0.01, 0.2))
        if world.happens(settings.slow):
            delay = random.uniform(0.0, settings.total)
        # Nothing is executed later than `absent_after`, without which there is no proof of absence at all.
        latest = post.permitted_at + settings.absent_after - 5.0
        if world.happens(settings.late):
            delay = random.uniform(0.0, latest - world.now)
            if random.random() < 0.5:
                self._reply(promise, random.choice((ConnectionResetError(), *_USELESS)), 0.5)
        copies = [min(world.now + delay, latest)]
        if world.happens(settings.duplicate_request):
            copies.append(random.uniform(copies[0], latest))
        post.under_way = len(copies)
        for number, when in enumerate(copies):
            world.at(when, self._arrive, post, data, promise if number == 0 else None)

    def _arrive(self, post: Post, data: dict[str, Any], promise: asyncio.Future[HttpResponse] | None) -> None:
        world, settings = self._world, self._world.settings
        post.under_way -= 1
        response: HttpResponse | Exception = world.service.execute(post, data)
        if promise is None or world.happens(settings.drop_answer):
            return
        if post.transactions and not post.is_form and world.happens(settings.named):
            transaction = post.transactions[-1]
            post.named = transaction
            self._reply(promise, world.random.choice(_NAMING)(transaction.number), 0.02, post)
            return
        if post.transactions and not post.is_form and world.happens(settings.copies):
            response = self._copy(post) or response
        elif post.transactions and not post.is_form and world.happens(settings.hidden):
            begin, end = world.now + settings.window, post.permitted_at + settings.absent_after - 2.0
            found_at = world.random.uniform(min(begin, end), end)
            post.transactions[-1].visible_at = post.transactions[-1].listed_at = found_at
        elif world.happens(settings.mangle_answer):
            response = world.random.choice((ConnectionResetError(), *_USELESS))
        self._reply(promise, response, world.random.choice((0.01, 0.2, 2.0)))

    def _copy(self, post: Post) -> HttpResponse | None:
        """The answer to an earlier Sale under the same token, of which the ledger knows."""
        world = self._world
        numbers = [
            record.transaction_id
            for earlier in world.oracle.posts
            if earlier.client_id != post.client_id and earlier.token == post.token
            if (record := world.store.attempt(earlier.client_id, earlier.attempt)) is not None
            and record.transaction_id is not None
        ]
        if not numbers:
            return None
        number = world.random.choice(numbers)
        world.note(f"the answer to {post.client_id}/{post.attempt} is a copy that names {number}")
        return answer(200, {"transactionId": number})

    def _reply(
        self,
        promise: asyncio.Future[HttpResponse],
        response: HttpResponse | Exception,
        delay: float,
        naming: Post | None = None,
    ) -> None:
        def hear() -> None:
            if self._process.dead or promise.done():
                return
            if naming is not None:
                naming.heard = True
            if isinstance(response, Exception):
                # A fresh one, since it carries its traceback.
                promise.set_exception(type(response)())
            else:
                promise.set_result(response)

        self._world.after(delay, hear)
