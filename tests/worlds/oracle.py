"""Who sees everything: the ledger, the service, each byte that left. Says which promise was broken, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

import payclient
from payclient import State
from payclient.events import Evidence
from payclient.lifecycle import Record

if TYPE_CHECKING:
    from worlds.process import Process
    from worlds.world import World

__all__ = ["Oracle", "Post", "Transaction", "account_of"]


def account_of(token: str) -> str:
    """The account of a token: its first letter."""
    return token[:1]


def _is_unpaid_form(said: Record | payclient.Outcome) -> bool:
    """The browser came back, and nobody has paid yet."""
    return said.kind == "form" and said.state is State.CANCELLED and said.evidence is Evidence.UNPAID


@attrs.define(eq=False)
class Post:
    """One Sale whose bytes left."""

    client_id: str
    attempt: int
    worker: str
    at: float
    #: When its permit was committed.
    permitted_at: float
    #: Whose token it carried.
    account: str
    token: str = ""
    #: What our answer named without being a success.
    named: Transaction | None = None
    heard: bool = False
    #: Copies of it that may still be executed.
    under_way: int = 0
    transactions: list[Transaction] = attrs.field(factory=list)
    is_form: bool = False
    #: Decided once: copies of what the service refused are refused too.
    refused: bool = False
    #: Until when it may be called refused though it exists: something repeated it, and the index does not list it yet.
    unlisted_until: float = 0.0

    @property
    def nothing(self) -> bool:
        """Nothing was created by it, nor will be. A form whose links nobody has charges nobody."""
        if self.is_form:
            return not self.transactions
        return self.refused or (not self.under_way and not self.transactions)

    @property
    def may_be_refused(self) -> bool:
        """Whether it may be called refused: as nothing, or for as long as an index lags that is asked once more."""
        return self.nothing or self.unlisted_until > 0.0

    @property
    def is_over(self) -> bool:
        """Whether its id may be sent again: nobody can pay it."""
        return self.nothing or (
            self.may_be_refused and all(each.state == "Cancelado" for each in self.transactions)
        )


@attrs.define(eq=False)
class Transaction:
    """What the service holds."""

    number: int
    client_id: str
    phone: str
    amount: int
    currency: str
    account: str
    #: From when on it is found by its number, and by its client transaction id.
    visible_at: float
    listed_at: float
    state: str = "Pendiente"
    #: No Sale of ours made it: another account has it from elsewhere.
    namesake: bool = False
    is_form: bool = False
    #: A form's payment stands only once it is confirmed.
    confirmed: bool = True
    was_accepted: bool = False


class Oracle:
    """Checks at each byte, each commit and each word said to an application."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.posts: list[Post] = []
        #: When the permit of (client transaction id, attempt) was committed.
        self.permits: dict[tuple[str, int], float] = {}
        self.violations: list[str] = []
        #: Attempts that were recorded as cancelled; a transaction that is created later was not there to look at.
        self._cancelled: set[str] = set()
        #: When the ledger first named (client transaction id, transaction id).
        self.named: dict[tuple[str, int], float] = {}

    def violated(self, what: str) -> None:
        """A promise is broken."""
        self._world.note(f"VIOLATION {what}")
        self.violations.append(what)

    # --- What is true

    def posts_of(self, client_id: str, attempt: int | None = None) -> list[Post]:
        """The Sales of a client transaction id, or of one attempt of it."""
        return [
            post
            for post in self.posts
            if post.client_id == client_id and (attempt is None or post.attempt == attempt)
        ]

    def transactions_of(self, client_id: str) -> list[Transaction]:
        """What the service holds under a client transaction id."""
        return [transaction for post in self.posts_of(client_id) for transaction in post.transactions]

    def settled(self, client_id: str) -> bool:
        """Whether what the service holds of it will not change."""
        return all(
            not post.under_way and all(each.state != "Pendiente" for each in post.transactions)
            for post in self.posts_of(client_id)
        )

    # --- Each byte

    def bytes_leave(self, worker: str, client_id: str, account: str) -> Post:
        """The first byte of a Sale leaves: there must be one committed permit, fresh and unused."""
        newest = self._world.store.newest(client_id)
        now, total = self._world.now, self._world.settings.total
        attempt = 0 if newest is None else newest.attempt
        permitted_at = self.permits.get((client_id, attempt), now)
        post = Post(client_id, attempt, worker, now, permitted_at, account)
        if newest is None:
            self.violated(f"{client_id}: a POST without a committed permit")
        elif self.posts_of(client_id, attempt):
            self.violated(f"{client_id}: POSTed again under attempt {attempt}, which is {newest.state}")
        elif newest.state is not State.SENDING:
            self.violated(f"{client_id}: a POST of attempt {attempt}, which is {newest.state}")
        elif now - permitted_at > total + 1e-6:
            self.violated(f"{client_id}: a POST {now - permitted_at:.1f} s after its permit")
        for earlier in self.posts_of(client_id):
            # Or it was queried before its process stood still.
            stood = next(each.stood for each in self._world.processes.values() if each.name == worker)
            if min(now, stood[0] if now < stood[1] + 45.0 else now) < earlier.unlisted_until:
                post.refused = True  # nobody here could know: the service refuses it
            elif not earlier.is_over:
                self.violated(f"{client_id}: POSTed again, and attempt {earlier.attempt} may exist")
        self.posts.append(post)
        return post

    def created(self, post: Post) -> None:
        """The service created a transaction: the ledger must have its row."""
        record = self._world.store.attempt(post.client_id, post.attempt)
        if record is None:
            self.violated(f"{post.client_id}: created at the service, and lost: there is no row")
        elif record.state is State.REFUSED:
            self.violated(f"{post.client_id}: created after it was refused ({record.evidence})")
        elif record.state is State.CANCELLED and record.kind == "sale" and len(post.transactions) == 1:
            self.violated(f"{post.client_id}: created after it was cancelled ({record.evidence})")

    # --- Each commit

    def committed(self, record: Record) -> None:
        """A row is on disk: what it says must be true, now and for ever."""
        name = f"{record.client_transaction_id}/{record.attempt}"
        posts = self.posts_of(record.client_transaction_id, record.attempt)
        for each in record.candidate_ids:
            self.named.setdefault((record.client_transaction_id, each), self._world.now)
        if record.state is State.REFUSED:
            if not all(post.may_be_refused for post in posts):
                self.violated(f"{name}: recorded as refused ({record.evidence}), and it may exist")
        elif record.state is State.UNKNOWN and record.evidence is Evidence.NO_ANSWER:
            # Whatever its answer named is on disk.
            for post in posts:
                if post.named is not None and post.heard:
                    self._world.service.name(post.named)
        elif not _is_unpaid_form(record) and record.state in (
            State.ACCEPTED,
            State.CANCELLED,
            State.REVERSED,
        ):
            word = "Aceptado" if record.state is State.ACCEPTED else "Cancelado"
            if not self._holds(record.client_transaction_id, record.transaction_id, word):
                self.violated(f"{name}: recorded as {record.state}, which the service does not hold")
            elif (
                record.state is State.CANCELLED
                and record.kind == "sale"
                and record.evidence is Evidence.QUERY
                and name not in self._cancelled
            ):
                self._cancelled.add(name)
                self._one_of_several(record)

    def given_up(self, payment: Transaction) -> None:
        """A form's payment was not confirmed in time: nobody was there who could know of it, or another ask held it."""
        world = self._world
        asks = {each.client_transaction_id: each for each in world.store.all()}
        form, since = asks[payment.client_id], self.named.get((payment.client_id, payment.number))
        if since is None or not world.settings.leases or form.state.decided:
            return
        others = [each for each in asks.values() if each.purchase == form.purchase and each is not form]
        lives = [
            each for each in world.processes.values() if each.open and not (each.dead or each.cancelled_at)
        ]
        if any(max(since, each.opened_at) < world.now - 75.0 for each in lives) and not any(
            each.kind == "sale" or each.candidate_ids or each.state is State.ACCEPTED for each in others
        ):
            self.violated(
                f"{payment.client_id}: {payment.number} is named since {since:.3f}, and nobody confirmed it"
            )

    def _holds(self, client_id: str, number: int | None, word: str) -> bool:
        any_of_them = number is None or self.twins(client_id)
        # What was given back since may not have been heard of yet; the end tells.
        return any(
            each.state == word or (word == "Aceptado" and each.was_accepted)
            for each in self.transactions_of(client_id)
            if any_of_them or each.number == number
        )

    def _one_of_several(self, record: Record) -> None:
        """Before one of several decides by being cancelled, a query by client transaction id looks at all of them."""
        world, client_id = self._world, record.client_transaction_id
        seen = [each for each in self.transactions_of(client_id) if each.listed_at < world.now - 5.0]
        looks = world.settings.by_client and not world.settings.source
        if looks and len(seen) > 1 and client_id not in world.service.all_cancelled:
            self.violated(f"{client_id}: recorded as cancelled by one of {len(seen)}, the others not seen")

    def twins(self, client_id: str) -> bool:
        """A copy of the network's was charged too, by a service that does not look: no word is all the truth."""
        return any(len(post.transactions) > 1 and not post.is_form for post in self.posts_of(client_id))

    # --- Each query

    def queried(self, process: Process) -> None:
        """A status query leaves: within the rate, and soon for whom was notified."""
        settings, now, times = self._world.settings, self._world.now, process.queries
        if settings.queries_per_minute is None:
            return
        times.append(now)
        while times[0] <= now - 10.0:
            times.popleft()
        if len(times) > settings.queries_per_minute / 6 * 1.1 + 3:
            allowed = f"{settings.queries_per_minute:g} a minute are allowed"
            self.violated(f"{process.name}: {len(times)} queries in 10 s, and {allowed}")

    # --- Each word

    def said(self, outcome: payclient.Outcome) -> None:
        """An application was told: True and False must be so."""
        client_id = outcome.client_transaction_id
        record = self._world.store.newest(client_id)
        if record is not None and record.state is State.SENDING and outcome.state is State.PENDING:
            self.violated(f"{client_id}: said to be {outcome.state}, and the ledger does not know")
        if outcome.paid is True and not self._holds(client_id, outcome.transaction_id, "Aceptado"):
            self.violated(f"{client_id}: said to be paid ({outcome.state}), and it is not")
        elif outcome.paid is False and outcome.state is State.REFUSED:
            attempts = {post.attempt for post in self.posts_of(client_id)}
            if attempts and not any(
                all(post.may_be_refused for post in self.posts_of(client_id, attempt))
                for attempt in range(1, max(attempts) + 1)
            ):
                self.violated(f"{client_id}: said to be refused, and it may exist")
        elif (
            outcome.paid is False
            and not _is_unpaid_form(outcome)
            and not self._holds(client_id, outcome.transaction_id, "Cancelado")
        ):
            self.violated(f"{client_id}: said to be unpaid ({outcome.state}), and it is not cancelled")

    def raised(self, worker: str, client_id: str, since: int, error: Exception) -> None:
        """`sale` raised: what that call sent created nothing."""
        if not isinstance(error, payclient.PayError):
            self.violated(f"{client_id}: sale raised {error!r}")
        for post in self.posts[since:]:
            if post.client_id == client_id and post.worker == worker and not post.may_be_refused:
                self.violated(f"{client_id}: sale raised {type(error).__name__}, and it may exist")

    # --- The end

    def at_the_end(self) -> None:
        """Everything was repaired, restarted and asked for: what was created is known, and nothing was lost."""
        for post in self.posts:
            if post.transactions and self._world.store.attempt(post.client_id, post.attempt) is None:
                self.violated(f"{post.client_id}: created at the service, and lost")
            self._unlisted_at_the_end(post)
        if self._world.settings.purchases:
            self._world.till.at_the_end()
        for record in self._world.store.all():
            name = f"{record.client_transaction_id}/{record.attempt}"
            self.committed(record)
            if record.state is State.SENDING:
                self.violated(f"{name}: still sending at the end")
            # A request to give back is waited for by the wall clock, which may have been set back by hours.
            waits = record.state is State.REVERSING and self._world.settings.jump
            if not (record.state.decided or waits) and self.tells(record):
                self.violated(f"{name}: still {record.state} at the end, and the service would say")

    def _unlisted_at_the_end(self, post: Post) -> None:
        """What was paid though it was refused is known by now, whatever came after it, if who was to look lived on."""
        world, latest = self._world, post.at + 1.9 * self._world.settings.absent_after
        for each in post.transactions if post.unlisted_until else ():
            newest = world.store.newest(post.client_id)
            if each.state != "Aceptado" or each.listed_at > world.now or newest is None:
                continue
            looked = any(one.name == post.worker or post.at < one.opened_at < latest for one in world.lasting)
            if looked and newest.state not in (State.ACCEPTED, State.REVERSING, State.REVERSED):
                self.violated(
                    f"{post.client_id}: {each.number} is paid, and called {newest.state} at the end"
                )

    def tells(self, record: Record) -> bool:
        """Whether the service, asked now, would say how it ended."""
        world, settings = self._world, self._world.settings
        posts = self.posts_of(record.client_transaction_id)
        named = [
            post for post in posts if record.transaction_id in [each.number for each in post.transactions]
        ]
        # What was named may be of an earlier attempt, which was called refused.
        posts = named or [post for post in posts if post.attempt == record.attempt]
        if settings.endless or record.kind == "form":
            return False  # what is collected of a form the till knows
        if self.twins(record.client_transaction_id):
            held = self.transactions_of(record.client_transaction_id)
            best = "Aceptado" if any(each.state == "Aceptado" for each in held) else "Cancelado"
            ours = [each.state for each in held if record.transaction_id in (None, each.number)]
            if not settings.by_client or best not in ours:
                return False
        if not any(post.transactions for post in posts):
            # Whether nothing is there is only for the credentials that sent it to say.
            proves = settings.by_client and not settings.source and settings.accounts == "one"
            # A number that somebody made up is asked for first, and must be seen to be nobody's or another's.
            asked = settings.by_transaction and settings.reports_client_id
            return proves and (asked or not record.candidate_ids)
        if any(post.account != account_of(world.token()) for post in posts):
            return False
        if record.transaction_id is None and any(post.token != world.token() for post in posts):
            return False  # where no other sale shows that it is the same account
        held = [each for post in posts for each in post.transactions]
        listed = any(each.listed_at <= world.now for each in held)
        if (settings.by_client or settings.source) and listed:
            return True
        # A cancelled one decides only after a query by client transaction id has looked for others.
        decides = not settings.by_client or any(each.state == "Aceptado" for each in held)
        return (settings.by_transaction or settings.source) and record.transaction_id is not None and decides
