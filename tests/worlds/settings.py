"""What kind of world a seed makes: who is in it, and which faults it has. Few worlds have all of them."""

from __future__ import annotations

import random

import attrs

import payclient

__all__ = ["Settings"]


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

    @classmethod
    def of(cls, seed: int) -> Settings:
        """The world of a seed."""
        r = random.Random(seed)  # noqa: S311 - it must repeat

        def rate(most: float, off: float = 0.4) -> float:
            return 0.0 if r.random() < off else r.uniform(0.05, 1.0) * most

        workers = r.choice((1, 1, 1, 2, 3, 4))
        window = r.choice((300.0, 300.0, 60.0))
        asks = r.random()
        jump = rate(1.0, 0.5)
        orders = r.randint(1, 4)
        return cls(
            seed=seed,
            workers=workers,
            orders=orders,
            customers=r.randint(1, orders),
            chaos=r.choice((300.0, 900.0, 1500.0)) * window / 300.0,
            by_transaction=asks < 0.75,
            by_client=asks < 0.6 or 0.75 <= asks < 0.9,
            window=window,
            total=30.0 if window > 100 else 10.0,
            gap=r.choice((5.0, 20.0, 60.0)),
            checks_duplicates=r.random() < 0.5,
            checks_busy=r.random() < 0.5,
            reports_client_id=r.random() < 0.7,
            reports_amount=r.random() < 0.7,
            answers_array=r.random() < 0.5,
            no_connection=rate(0.4),
            dead_connection=rate(0.3),
            slow=rate(0.4),
            drop_request=rate(0.4),
            duplicate_request=rate(0.3),
            late=rate(0.5),
            drop_answer=rate(0.5),
            mangle_answer=rate(0.5),
            refuse=rate(0.4),
            query_fault=rate(0.4),
            odd_word=rate(0.3),
            notify=rate(1.0, 0.2),
            notify_early=rate(0.6),
            notify_twice=rate(0.5),
            forge=rate(1.0),
            incidents=r.choice((0, 1, 2, 4, 8)),
            crash=r.random(),
            suspend=jump == 0.0,
            hot=rate(0.5),
            jump=jump,
            disk_fault=rate(0.15, 0.6),
            operator=rate(1.0, 0.5),
        )

    @property
    def profile(self) -> payclient.ServiceProfile:
        """What the merchant knows of the service."""
        status = None
        if self.by_transaction or self.by_client:
            status = payclient.StatusProfile(
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
            sale_window=self.window,
            form_window=self.window / 2,  # no forms here, and a wait may last as long as the longest life
            status=status,
        )

    @property
    def absent_after(self) -> float:
        """No request is executed later than this after its permit."""
        return 2 * self.window
