"""What can go wrong, by script or by chance: the faults, their words, and which comes next. No I/O.

A scripted fault comes before one of chance. Chance hangs on the seed, the operation, the client transaction id (or the
path of a query) and how often that was asked for, so neither the order of arrival nor another run changes it.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, Final

from attrs import Attribute, asdict, evolve, field, fields_dict, frozen

__all__ = ["KINDS", "OPERATIONS", "Fault", "FaultPlan", "Faults"]

#: What a fault may befall; "any" is every request of the merchant's.
OPERATIONS: Final = (
    "sale", "prepare", "status", "confirm", "cancel", "reverse", "any", "notification",
)  # fmt: skip


@frozen
class _Kind:
    says: str
    #: Whether the request is executed: "before" it is not, "after" it is. The first is the default.
    when: tuple[str, ...] = ("before", "after")
    operations: tuple[str, ...] = OPERATIONS[:-1]
    status: int = 0
    statuses: range = range(0)


_NOTIFIED: Final = ("notification",)

#: Every kind of fault, and what it does.
KINDS: Final[dict[str, _Kind]] = {
    "latency": _Kind("The answer comes late, by a second unless told otherwise.", ("after", "before")),
    "stall": _Kind("No answer ever comes; the connection stays open.", ("after", "before")),
    "reset": _Kind("The connection is reset without an answer.", ("after", "before")),
    "cut": _Kind("The answer breaks off in the middle of its body.", ("after",)),
    "error": _Kind("An empty answer with a 5xx status.", status=503, statuses=range(500, 600)),
    "html": _Kind("A gateway's HTML page instead of the answer.", status=502, statuses=range(200, 600)),
    "redirect": _Kind("A redirect to a page beside.", status=307, statuses=range(300, 400)),
    "throttle": _Kind(
        "429 in a gateway's words, or in the service's own with an error code; says when to come back if told to.",
        ("before",), status=429, statuses=range(429, 430),
    ),
    "refuse": _Kind(
        "The service's error object: code 22, or another such as 2061 or 800.",
        ("before",), status=400, statuses=range(200, 600),
    ),
    "early": _Kind(
        "The customer approves before the answer, so the notification overtakes it.", ("after",), ("sale",)
    ),
    "lost": _Kind("The notification is never sent.", ("after",), _NOTIFIED),
    "late": _Kind("The notification comes late, by a second unless told otherwise.", ("after",), _NOTIFIED),
    "duplicate": _Kind("The notification comes twice.", ("after",), _NOTIFIED),
    "forged": _Kind("Before it comes one with a foreign transaction id.", ("after",), _NOTIFIED),
}  # fmt: skip

_MAX_SECONDS = 86_400.0


def _is_kind(_: object, attribute: "Attribute[str]", kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")


def _is_within(low: float, high: float, *, whole: bool) -> Any:
    def check(_: object, attribute: "Attribute[Any]", value: object) -> None:
        if value is None and attribute.default is None:
            return
        good = type(value) is int or (type(value) is float and not whole and math.isfinite(value))
        if not good or not low <= value <= high:  # type: ignore[operator]  # a number, by the line above
            raise ValueError(
                f"{attribute.name} must be a {'whole ' if whole else ''}number from {low:g} to {high:g}"
            )

    return check


@frozen
class Fault:
    """One thing that goes wrong, such as `Fault("reset", when="before")`; ValueError for what cannot be.

    `operation` is what it befalls: a Sale unless told otherwise, or the notification for its kinds. `when` says whether
    the request is executed ("after") or not ("before"); what is left out is the kind's own default.
    """

    kind: str = field(validator=_is_kind)
    operation: str = field(default="", kw_only=True)
    when: str = field(default="", kw_only=True)
    #: The HTTP status of the answer.
    status: int = field(default=0, kw_only=True, validator=_is_within(0, 599, whole=True))
    #: For `latency` and `late`.
    seconds: float = field(default=1.0, kw_only=True, validator=_is_within(0, _MAX_SECONDS, whole=False))
    #: Seconds, for `throttle`; None: it names none.
    retry_after: int | None = field(
        default=None, kw_only=True, validator=_is_within(0, int(_MAX_SECONDS), whole=True)
    )
    #: The service's code, for `throttle` and `refuse`.
    error_code: int | None = field(default=None, kw_only=True, validator=_is_within(0, 2**31 - 1, whole=True))
    #: Only for this client transaction id; None: whichever comes next.
    client_transaction_id: str | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        kind = KINDS[self.kind]
        defaults = {"operation": kind.operations[0], "when": kind.when[0], "status": kind.status}
        for name, default in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, default)  # frozen: as attrs itself sets it
        for name, allowed in (("operation", kind.operations), ("when", kind.when)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} of {self.kind} must be one of {', '.join(allowed)}")
        if kind.status and self.status not in kind.statuses:
            first, last = kind.statuses[0], kind.statuses[-1]
            raise ValueError(f"status of {self.kind} must be {first} to {last}")
        if not kind.status and self.status:
            raise ValueError(f"{self.kind} has no status")
        if type(self.client_transaction_id) not in (str, type(None)):
            raise ValueError("client_transaction_id must be a text")

    @classmethod
    def parse(cls, members: Mapping[str, Any]) -> "Fault":
        """Read what `as_json` gives; ValueError for an unknown name or a value that cannot be."""
        unknown = members.keys() - fields_dict(cls).keys()
        if unknown:
            raise ValueError(f"unknown: {', '.join(sorted(map(ascii, unknown)))}")
        if not isinstance(members.get("kind"), str):
            raise ValueError("kind is required, and a text")  # noqa: TRY004 - one error for what cannot be
        for name in ("operation", "when"):
            if not isinstance(members.get(name, ""), str):
                raise ValueError(f"{name} must be a text")  # noqa: TRY004 - likewise
        return cls(**members)

    def as_json(self) -> dict[str, object]:
        """Its members; those that say nothing are left out."""
        return {name: value for name, value in asdict(self).items() if value not in (None, 0)}

    def befalls(self, operation: str, client_transaction_id: str | None) -> bool:
        """Whether it is meant for this exchange."""
        meant = self.operation == operation or (self.operation == "any" and operation != "notification")
        return meant and self.client_transaction_id in (None, client_transaction_id)


@frozen
class Faults:
    """Faults by chance: what may go wrong, and how likely (above 0, at most 1), repeatable by the seed.

    What may befall one operation must sum to at most 1; ValueError otherwise.
    """

    chances: Mapping[Fault, float] = field(factory=dict)
    seed: int = field(default=0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        for fault, chance in self.chances.items():
            if not (type(chance) in (int, float) and 0 < chance <= 1):
                raise ValueError(f"the chance of {fault.kind} must be above 0 and at most 1")
        for operation in OPERATIONS:
            total = sum(one for fault, one in self.chances.items() if fault.befalls(operation, None))
            if total > 1 + 1e-9:
                raise ValueError(f"the chances of what befalls {operation} sum to {total:g}, above 1")


class FaultPlan:
    """Which fault comes next: first what was scripted, then what chance says."""

    def __init__(self, faults: Faults | None = None) -> None:
        #: How often each kind has really happened.
        self.done: Counter[str] = Counter()
        self.chances = Faults() if faults is None else faults
        self._script: list[tuple[Fault, int]] = []
        self._asked: Counter[tuple[str, str]] = Counter()

    @property
    def script(self) -> list[tuple[Fault, int]]:
        """What is scripted and has not happened yet, with how often."""
        return list(self._script)

    def add(self, fault: Fault, times: int = 1) -> None:
        """The next `times` exchanges that it is meant for; ValueError if `times` is not 1 or more."""
        if type(times) is not int or not 1 <= times <= 1_000_000:
            raise ValueError("times must be a whole number from 1 to 1000000")
        self._script.append((fault, times))

    def add_chance(self, fault: Fault, chance: float) -> None:
        """From now on by chance too; ValueError where the chances exceed 1."""
        self.chances = evolve(self.chances, chances={**self.chances.chances, fault: chance})

    def clear(self) -> None:
        """Nothing goes wrong any more; what has happened stays counted."""
        self._script.clear()
        self.chances = evolve(self.chances, chances={})

    def next(self, operation: str, key: str, client_transaction_id: str | None = None) -> Fault | None:
        """The fault of this exchange, used up and counted."""
        fault = self._scripted(operation, client_transaction_id)
        if fault is None and self.chances.chances:
            fault = self._drawn(operation, key, client_transaction_id)
        if fault is not None:
            self.done[fault.kind] += 1
        return fault

    def _scripted(self, operation: str, client_transaction_id: str | None) -> Fault | None:
        for index, (fault, times) in enumerate(self._script):
            if fault.befalls(operation, client_transaction_id):
                self._script[index : index + 1] = [(fault, times - 1)] if times > 1 else []
                return fault
        return None

    def _drawn(self, operation: str, key: str, client_transaction_id: str | None) -> Fault | None:
        self._asked[operation, key] += 1
        text = json.dumps([self.chances.seed, operation, key, self._asked[operation, key]])
        point = Random(text).random()  # noqa: S311 - no secret
        for fault, chance in self.chances.chances.items():
            if fault.befalls(operation, client_transaction_id):
                if point < chance:
                    return fault
                point -= chance
        return None
