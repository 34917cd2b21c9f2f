"""Faults, by script or by chance: their kinds, and which comes next. No I/O.

A scripted fault comes before one of chance. Chance hangs on the seed, the operation, the client transaction id (or the
path of a query) and how often that was requested. Neither the order of arrival nor another run changes it.
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import product
from random import Random
from typing import Final

from attrs import asdict, define, field, frozen, validators

#: The operations that a fault may affect; "any" is every request of the merchant's.
OPERATIONS: Final = ("sale", "prepare", "status", "confirm", "cancel", "reverse", "any", "notification")


@frozen
class _Kind:
    meaning: str
    #: Whether the request is executed: "before" it is not, "after" it is. The first is the default.
    when: tuple[str, ...] = ("before", "after")
    operations: tuple[str, ...] = OPERATIONS[:-1]
    #: The default status, and the first and last that it may be.
    statuses: tuple[int, int, int] = (0, 0, 0)


_LATER: Final = ("after", "before")
_AFTER: Final = ("after",)
_SENT: Final = ("notification",)

#: Every kind of fault, and what it does.
KINDS: Final[Mapping[str, _Kind]] = {
    "latency": _Kind("The answer comes late, by a second unless given.", _LATER),
    "stall": _Kind("No answer ever comes; the connection stays open.", _LATER),
    "reset": _Kind("The connection is reset without an answer.", _LATER),
    "cut": _Kind("The answer breaks off in the middle of its body.", _AFTER),
    "error": _Kind("An empty answer with a 5xx status.", statuses=(503, 500, 599)),
    "html": _Kind("A gateway's HTML page instead of the answer.", statuses=(502, 200, 599)),
    "redirect": _Kind("A redirect to a page beside.", statuses=(307, 300, 399)),
    "throttle": _Kind(
        "429 as of a gateway, or with an error code as of the service; with `Retry-After` if given.",
        ("before",), statuses=(429, 429, 429),
    ),
    "refuse": _Kind(
        "The service's error object: code 22, or another such as 2061 or 800.", statuses=(400, 200, 599)
    ),
    "early": _Kind("The customer approves before the answer: the notification overtakes it.", _AFTER, ("sale",)),
    "lost": _Kind("The notification is never sent.", _AFTER, _SENT),
    "late": _Kind("The notification comes late, by a second unless given.", _AFTER, _SENT),
    "duplicate": _Kind("The notification comes twice.", _AFTER, _SENT),
    "forged": _Kind("A notification with a foreign transaction id comes first.", _AFTER, _SENT),
}  # fmt: skip


@frozen
class Fault:
    """One thing that goes wrong, such as `Fault("reset", when="before")`; ValueError for what cannot be.

    The kind has defaults for the rest.

    - `kind`: what goes wrong; the guide `testing` has a table.
    - `operation`: what it affects, a Sale unless given, or the notification for the kinds of those.
    - `when`: "after" for a request that is executed, "before" for one that is not.
    - `status`: the HTTP status of the answer.
    - `seconds`: how late the answer of `latency`, or the notification of `late`, comes.
    - `retry_after`: seconds, for `throttle`; None: the answer names none.
    - `error_code`: the service's code, for `throttle` and `refuse`.
    - `client_transaction_id`: only for this client transaction id; None: whichever comes next.
    """

    kind: str
    operation: str = field(default="", kw_only=True)
    when: str = field(default="", kw_only=True)
    status: int = field(default=0, kw_only=True)
    seconds: float = field(default=1.0, kw_only=True, validator=validators.ge(0))
    retry_after: int | None = field(default=None, kw_only=True)
    error_code: int | None = field(default=None, kw_only=True)
    client_transaction_id: str | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if (kind := KINDS.get(self.kind)) is None:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        default, first, last = kind.statuses
        for name, value in {"operation": kind.operations[0], "when": kind.when[0], "status": default}.items():
            object.__setattr__(self, name, getattr(self, name) or value)  # frozen: as attrs itself sets it
        for name, allowed in {"operation": kind.operations, "when": kind.when}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} of {self.kind} must be one of {', '.join(allowed)}")
        if not first <= self.status <= last:
            raise ValueError(f"status of {self.kind} must be {f'{first} to {last}' if last else 'left out'}")

    @property
    def lets_execute(self) -> bool:
        """Whether the request is executed all the same."""
        return self.when == "after" or self.kind == "latency"

    def as_json(self) -> dict[str, object]:
        """Return the members but for those that are left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, 0)}

    def applies_to(self, operation: str, client_transaction_id: str | None) -> bool:
        """Return whether the fault applies to this exchange."""
        meant = self.operation == operation or (self.operation == "any" and operation != "notification")
        return meant and self.client_transaction_id in (None, client_transaction_id)


def _check_chances(_: object, __: object, chances: Mapping[Fault, float]) -> None:
    for fault, chance in chances.items():
        if not isinstance(fault, Fault):
            raise TypeError(f"chances must be of Fault objects; {type(fault).__name__} was given")
        if not (type(chance) in (int, float) and 0 < chance <= 1):
            raise ValueError(f"the chance of {fault.kind} must be above 0 and at most 1")
    identifiers = {None, *(fault.client_transaction_id for fault in chances)}
    for operation, identifier in product(OPERATIONS, identifiers):
        total = sum(one for fault, one in chances.items() if fault.applies_to(operation, identifier))
        if total > 1 + 1e-9:
            raise ValueError(f"the chances of all faults of {operation} must sum to at most 1, not {total:g}")


@define(eq=False)
class Faults:
    """The faults of one service: first the scripted ones, then those by chance, repeatable by the seed.

    A chance is above 0 and at most 1, and those of all faults of one operation sum to at most 1; ValueError otherwise.
    """

    chances: Mapping[Fault, float] = field(factory=dict, validator=_check_chances)
    seed: int = field(default=0, kw_only=True)
    #: Scripted faults that have not happened yet, with how often.
    script: list[tuple[Fault, int]] = field(factory=list, init=False)
    #: How often each kind has happened.
    done: Counter[str] = field(factory=Counter, init=False)
    _requests: Counter[tuple[str, str]] = field(factory=Counter, init=False)  # of each operation, by key

    def as_json(self) -> dict[str, object]:
        return {
            "script": [{**fault.as_json(), "times": times} for fault, times in self.script],
            "chances": [{**fault.as_json(), "chance": one} for fault, one in self.chances.items()],
            "seed": self.seed,
            "done": dict(self.done),
        }

    def next(self, operation: str, key: str, client_transaction_id: str | None = None) -> Fault | None:
        """Return the fault of this exchange, used up and counted."""
        fault = self._take_scripted(operation, client_transaction_id)
        if fault is None and self.chances:
            fault = self._draw(operation, key, client_transaction_id)
        if fault is not None:
            self.done[fault.kind] += 1
        return fault

    def _take_scripted(self, operation: str, client_transaction_id: str | None) -> Fault | None:
        for index, (fault, times) in enumerate(self.script):
            if fault.applies_to(operation, client_transaction_id):
                if times > 1:
                    self.script[index] = fault, times - 1
                else:
                    del self.script[index]
                return fault
        return None

    def _draw(self, operation: str, key: str, client_transaction_id: str | None) -> Fault | None:
        self._requests[operation, key] += 1
        text = json.dumps([self.seed, operation, key, self._requests[operation, key]])
        point = Random(text).random()  # noqa: S311 - no secret
        for fault, chance in self.chances.items():
            if fault.applies_to(operation, client_transaction_id):
                if point < chance:
                    return fault
                point -= chance
        return None


def renewed(faults: Faults) -> Faults:
    """Return faults of the same chances and seed, of which nothing has happened yet."""
    return Faults(faults.chances, seed=faults.seed)
