"""What a concrete service refuses beyond the document's rules: bounds, unknown stores, and codes on demand."""

from collections import deque
from collections.abc import Mapping

from .clock import Clock
from .refusals import FieldFault, Refusal, refusal
from .settings import Settings

__all__ = ["QueryLimit", "failing_limits", "refused_on_demand"]

_MINUTE = 60.0


def failing_limits(
    body: Mapping[str, object], settings: Settings, max_lengths: Mapping[str, int]
) -> list[FieldFault]:
    """The faults of a body whose numbers are out of range or whose texts are too long."""
    faults = []
    for name, (low, high) in settings.ranges.items():
        value = body.get(name)
        if type(value) is int and not low <= value <= high:
            faults.append(FieldFault(name, f"El campo {name} debe estar entre {low} y {high}"))
    for name, most in max_lengths.items():
        value = body.get(name)
        if isinstance(value, str) and len(value) > most:
            faults.append(FieldFault(name, f"El campo {name} debe tener como máximo {most} caracteres"))
    return faults


def refused_on_demand(body: Mapping[str, object], settings: Settings) -> Refusal | None:
    """The refusal of a store that is not known, or of what the settings name."""
    store = body.get("storeId")
    if settings.stores is not None and store is not None and store not in settings.stores:
        return refusal(100)
    for name in ("phoneNumber", "nickName", "storeId", "clientTransactionId"):
        value = body.get(name)
        if isinstance(value, str) and value in settings.refuse_with:
            return refusal(settings.refuse_with[value])
    return None


class QueryLimit:
    """How many status queries are answered in any minute, by the clock's monotonic time."""

    def __init__(self, clock: Clock, per_minute: int | None) -> None:
        self._clock = clock
        self._per_minute = per_minute
        self._answered: deque[float] = deque()

    def take(self) -> float:
        """0 if a query is answered now, else the seconds until the next one is."""
        if self._per_minute is None:
            return 0.0
        now, answered = self._clock.monotonic(), self._answered
        while answered and now - answered[0] >= _MINUTE:
            answered.popleft()
        if len(answered) >= self._per_minute:
            return answered[0] + _MINUTE - now
        answered.append(now)
        return 0.0
