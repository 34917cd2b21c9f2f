"""`Secret`: a token, a proxy, a database's address or a form's link, which nothing shows."""

from __future__ import annotations

from typing import Generic, TypeVar

_T = TypeVar("_T")


class Secret(Generic[_T]):
    """A value that nothing shows: its `repr` and `str` are `***`, and it does not pickle.

    Error trackers show the local variables and the attributes of what raised; a secret stands there as a `Secret`.
    Two secrets are equal if their values are.
    """

    __slots__ = ("_value",)

    def __init__(self, value: _T) -> None:
        self._value = value

    @classmethod
    def of(cls, value: _T | Secret[_T]) -> Secret[_T]:
        """Return a secret itself, or a value as a secret."""
        return value if isinstance(value, Secret) else cls(value)

    def reveal(self) -> _T:
        """Return the value. Pass it on at once, and keep it in no variable."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return "***"

    def __reduce__(self) -> str:
        raise TypeError("a secret does not pickle")
