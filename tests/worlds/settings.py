"""What kind of world a seed makes: who is in it, and which faults it has. Few worlds have all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Any

import attrs

import payclient
from payclient.profile import ConfirmProfile, ReturnProfile, StatusProfile, UndoProfile

__all__ = ["KINDS", "QUIET", "Settings"]


@attrs.frozen(kw_only=True)
class Settings:
    """One world. Rates are parts of one, times are seconds."""

    seed: int
    #: One: it owns its SQLite ledger. More: machines over one database.
    workers: int
    orders: int
    customers: int
    #: Faults end and everything is repaired after this.
    chaos: float
    # The service.
    by_transaction: bool
    by_client: bool
    window: float
    total: float
    gap: float
    checks_duplicates: bool
    checks_busy: bool
    reports_client_id: bool
    reports_amount: bool
    answers_array: bool
    # The network.
    no_connection: float
    dead_connection: float
    slow: float
    drop_request: float
    duplicate_request: float
    late: float
    drop_answer: float
    mangle_answer: float
    refuse: float
    query_fault: float
    odd_word: float
    # Notifications.
    notify: float
    notify_early: float
    notify_twice: float
    forge: float
    # The machines.
    incidents: int
    crash: float
    suspend: bool
    hot: float
    jump: float
    disk_fault: float
    operator: float
    #: The first incident of the first process comes before this step of its loop; None: by the seed.
    first_incident: int | None = None
    # What only worlds of a kind have; see `KINDS`.
    #: POSTs that something in front of the service repeats; the second answer is the one that is seen.
    repeat: float = 0.0
    #: Seconds for which the index does not list what is repeated, within which the id is refused for itself if it is
    #: brought again; and how often each order is brought beside.
    repeat_lag: float = 0.0
    again: int = 0
    #: Pushes of which an answer said that they are there, and that no query finds before their window is long over.
    hidden: float = 0.0
    #: Answers that are a copy of another Sale's.
    copies: float = 0.0
    #: Answers that name the transaction and yet are not a success.
    named: float = 0.0
    #: Transactions that are found by their client transaction id only later.
    lag: float = 0.0
    #: Status queries answered by 429, and what they say of `Retry-After`.
    shed: float = 0.0
    retry_after: str | None = None
    #: From when to when every status query fails.
    silence: tuple[float, float] = (0.0, 0.0)
    #: `shed`, `hang` and `query_fault` never end.
    endless: bool = False
    queries_per_minute: float | None = None
    #: Storms in which every transaction is notified again, and forged notifications of each storm.
    storms: int = 0
    flood: int = 0
    #: A status source of the user's, which may fail, and queries that are never answered.
    source: bool = False
    hang: float = 0.0
    #: Writes that begin an outage of the ledger, and whether it takes the reads with it.
    outage: float = 0.0
    outage_of_reads: bool = False
    #: Single reads of the ledger that fail, or are answered late.
    lost_reads: float = 0.0
    #: Whether machines share out what is open, by leases, as they do over PostgreSQL.
    leases: bool = False
    #: Of the incidents, those in which a process closes in good order, and in which it cancels all its tasks.
    closes: float = 0.0
    cancels: float = 0.0
    #: `one`, `another` (some processes have the token of another account), `rotated` (a token is replaced).
    accounts: str = "one"
    #: Sales of which another account has one of the same client transaction id, amount and currency.
    namesakes: float = 0.0
    #: Tasks begin at once (CPython 3.12).
    eager: bool = False
    #: Purchases that are asked for several times, by push and by form; whether pushes may stand beside an open form;
    #: and payments that are given back in the service's own portal.
    purchases: int = 0
    beside: bool = False
    portal: float = 0.0
    #: Whether a form whose card was declined may be paid by another one.
    another_card: bool = False

    @classmethod
    def of(cls, seed: int, kinds: Collection[str] = ()) -> Settings:
        """The world of a seed; of these kinds, whatever else the seed says."""
        settings = cls._plain(seed)
        r = random.Random(f"kinds {seed}")  # noqa: S311 - it must repeat
        for name, draw in KINDS.items():
            changes, drawn = draw(r, settings), r.random() < (0.04 if name == "storms" else 0.12)
            if name in kinds or (drawn and not kinds):
                settings = attrs.evolve(settings, **changes)
        return settings

    @classmethod
    def _plain(cls, seed: int) -> Settings:
        r = random.Random(seed)  # noqa: S311 - it must repeat

        def rate(most: float, off: float = 0.4) -> float:
            return 0.0 if r.random() < off else r.uniform(0.05, 1.0) * most

        workers = r.choice((1, 1, 1, 2, 3, 4))
        window = r.choice((300.0, 300.0, 60.0))
        asks = r.random()
        jump = rate(1.0, 0.5)
        orders = r.randint(1, 4)
        return cls(
            seed=seed, workers=workers, orders=orders, customers=r.randint(1, orders),
            chaos=r.choice((300.0, 900.0, 1500.0)) * window / 300.0, by_transaction=asks < 0.75,
            by_client=asks < 0.6 or 0.75 <= asks < 0.9, window=window, total=30.0 if window > 100 else 10.0,
            gap=r.choice((5.0, 20.0, 60.0)), checks_duplicates=r.random() < 0.5,
            checks_busy=r.random() < 0.5, reports_client_id=r.random() < 0.7,
            reports_amount=r.random() < 0.7, answers_array=r.random() < 0.5, no_connection=rate(0.4),
            dead_connection=rate(0.3), slow=rate(0.4), drop_request=rate(0.4), duplicate_request=rate(0.3),
            late=rate(0.5), drop_answer=rate(0.5), mangle_answer=rate(0.5), refuse=rate(0.4),
            query_fault=rate(0.4), odd_word=rate(0.3), notify=rate(1.0, 0.2), notify_early=rate(0.6),
            notify_twice=rate(0.5), forge=rate(1.0), incidents=r.choice((0, 1, 2, 4, 8)), crash=r.random(),
            suspend=jump == 0.0, hot=rate(0.5), jump=jump, disk_fault=rate(0.15, 0.6),
            operator=rate(1.0, 0.5),
        )  # fmt: skip

    @property
    def profile(self) -> payclient.ServiceProfile:
        """What the merchant knows of the service."""
        status = None
        if self.by_transaction or self.by_client:
            status = StatusProfile(
                by_transaction_id="/api/Sale/{transaction_id}" if self.by_transaction else None,
                by_client_transaction_id="/api/Sale/client/{client_transaction_id}"
                if self.by_client
                else None,
                state_field="state",
            )
        return payclient.ServiceProfile(
            name="world",
            duplicate_codes=frozenset({23}),
            not_found_codes=frozenset({20}),
            queries_per_minute=self.queries_per_minute,
            sale_window=self.window,
            form_window=self.window / 2,  # a wait may last as long as the longest life
            status=status,
            **(_forms(self.window / 2) if self.purchases else {}),
        )

    @property
    def absent_after(self) -> float:
        """No request is executed later than this after its permit."""
        return 2 * self.window

    @property
    def longest_wait(self) -> float:
        """Seconds within which every wait of a process that is awake ends, whatever the service does.

        The network may hold a sale back for two windows, and a whole one begins where it is found pending then; a wall
        clock that jumps begins it anew. Queries go on for 500 s more, as the service may answer 429 to any of them.
        """
        life = (3 * self.window + self.total) * (2 if self.jump else 1)
        queued = self.orders * 8 * 60.0 / self.queries_per_minute if self.queries_per_minute else 0.0
        return life + 600.0 + queued + (150.0 if self.outage or self.disk_fault or self.lost_reads else 0.0)

    @property
    def slow_wait(self) -> float:
        """Seconds as long as a wait may last, where queries are shed for ever or queued for a rate."""
        return self.longest_wait if self.endless or self.queries_per_minute is not None else 0.0


def _forms(window: float) -> dict[str, Any]:
    """What the profile has of forms and reversals; seconds within which a form is confirmed."""
    return {
        "confirm": ConfirmProfile(
            path="/api/button/V2/Confirm", transaction_id_field="id",
            client_transaction_id_field="clientTxId", window=window,
        ),
        "reverse": UndoProfile(by_transaction_id="/api/Reverse", transaction_id_field="id"),
        "returned": ReturnProfile(transaction_id="id", client_transaction_id="clientTransactionId"),
    }  # fmt: skip


def _storm(r: random.Random, settings: Settings) -> dict[str, Any]:
    many = r.randint(8, 24)
    return {
        "orders": many, "customers": many, "queries_per_minute": r.choice((20.0, 30.0, 60.0)),
        "notify": r.choice((0.1, 1.0)), "storms": r.randint(1, 3), "flood": r.choice((0, 10, 60)),
        "query_fault": settings.query_fault if r.random() < 0.3 else 0.0,
        "incidents": settings.incidents if r.random() < 0.3 else 0,
    }  # fmt: skip


#: Faults that are switched off, so that stops are the only ones.
QUIET: dict[str, Any] = dict.fromkeys(
    (
        "no_connection", "dead_connection", "slow", "drop_request", "duplicate_request", "late",
        "drop_answer", "mangle_answer", "refuse", "query_fault", "odd_word", "hot", "jump", "disk_fault",
        "operator", "forge", "repeat", "named", "lag", "shed", "hang", "outage",
    ),
    0.0,
)  # fmt: skip


def _silence(r: random.Random, settings: Settings) -> dict[str, Any]:
    begin = r.uniform(0.0, settings.chaos / 2)
    return {"silence": (begin, begin + r.uniform(1.0, 3.0) * settings.window)}


def _purchases(r: random.Random, _: Settings) -> dict[str, Any]:
    return {
        "purchases": r.randint(1, 3), "orders": r.randint(1, 2), "beside": r.random() < 0.3,
        "portal": r.choice((0.0, 0.2, 0.5)), "by_transaction": True, "by_client": True,
        "reports_client_id": True, "reports_amount": True, "source": False, "accounts": "one",
        "namesakes": 0.0, "repeat": 0.0, "copies": 0.0, "queries_per_minute": None,
    }  # fmt: skip


def _shared(r: random.Random, settings: Settings) -> dict[str, Any]:
    """Machines that crash, and a form that is paid is confirmed while one of them lives, perhaps without any query."""
    return _purchases(r, settings) | QUIET | {
        "leases": True, "workers": r.randint(2, 4), "by_client": r.random() < 0.4, "window": 300.0, "total": 30.0,
        "chaos": 1500.0, "incidents": 8, "crash": 1.0, "hot": 0.4, "hidden": 0.0, "outage_of_reads": False,
        "silence": (0.0, 0.0), "endless": False, "closes": r.choice((0.0, 0.2)), "cancels": 0.0,
        "lost_reads": r.choice((0.0, 0.0, 0.1)), "again": 0,
    }  # fmt: skip


#: Name -> what a world of this kind has beside what its seed says.
KINDS: dict[str, Callable[[random.Random, Settings], dict[str, Any]]] = {
    "repeats": lambda r, s: {"repeat": r.uniform(0.1, 0.7)},
    "twins": lambda r, s: {
        "repeat": r.uniform(0.1, 0.7), "checks_duplicates": False, "checks_busy": False, "by_client": True,
    },
    "names": lambda r, s: {
        "named": r.uniform(0.0, 0.7), "lag": r.uniform(0.3, 1.0), "forge": s.forge or 1.0,
        "flood": r.choice((0, 6, 12)),
    },
    "lag": lambda r, s: {"lag": r.uniform(0.2, 1.0)},
    "sheds": lambda r, s: {
        "shed": r.choice((0.2, 0.3, 0.4)),
        "retry_after": r.choice((None, "0", "1", "30", "3600")),
        "endless": r.random() < 0.7,
    },
    "storms": _storm,
    "hangs": lambda r, s: {
        "source": r.random() < 0.6, "hang": r.uniform(0.05, 0.4), "endless": r.random() < 0.5,
    },
    "outages": lambda r, s: {"outage": r.uniform(0.02, 0.3), "outage_of_reads": r.random() < 0.3},
    "another account": lambda r, s: {
        "accounts": "another",
        "incidents": max(s.incidents, 2),
        # A source of the user's is asked under one account, whosever the sale is.
        "namesakes": 0.0 if s.source else r.choice((0.0, 0.5, 1.0)),
    },
    "rotated token": lambda r, s: {"accounts": "rotated"},
    "eager": lambda r, s: {"eager": True},
    "copies": lambda r, s: {"copies": r.uniform(0.1, 0.7), "orders": r.randint(3, 6), "customers": 6},
    # Behind those of whose faults its oracle cannot tell some apart: they are switched off.
    "purchases": _purchases,
    "silence": _silence,
    "again": lambda r, s: {
        "again": r.randint(2, 6), "repeat": r.uniform(0.5, 0.9), "refuse": r.uniform(0.05, 0.3),
        "repeat_lag": r.choice((5.0, 0.2 * s.window, 0.9 * s.window)),
        "checks_duplicates": r.random() < 0.3, "by_client": True, "checks_busy": True, "duplicate_request": 0.0,
        "reports_client_id": True, "source": False, "accounts": "one", "jump": 0.0, "endless": False,
        "odd_word": 0.0,  # what is refused is asked for once
        "chaos": 5 * s.window, "late": r.choice((s.late, 0.6)), "orders": 2, "customers": 2,
        "forge": s.forge or 0.5,
    },
    "hidden": lambda r, s: _purchases(r, s) | {"hidden": r.uniform(0.5, 1.0)},
    "another card": lambda r, s: _purchases(r, s) | {"another_card": True, "lost_reads": r.choice((0.1, 0.4))},
    "shared": _shared,
    "lost reads": lambda r, s: {"lost_reads": r.uniform(0.02, 0.4)},
    "endings": lambda r, s: {
        "incidents": max(s.incidents, 4), "closes": 0.4, "cancels": 0.4, "lost_reads": r.choice((0.0, 0.1, 0.3)),
    },
}  # fmt: skip
