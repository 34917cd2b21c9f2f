"""What a ledger remembers of the service's address."""

from __future__ import annotations

import pytest

from payclient.access import environment_digest

KEY = b"k" * 32


@pytest.mark.parametrize(
    "other",
    ["https://PAY.example", "https://pay.example/", "https://pay.example:443", "https://pay.example:443/"],
)
def test_the_same_service(other: str) -> None:
    """However its address is spelled."""
    assert environment_digest(other, KEY) == environment_digest("https://pay.example", KEY)


@pytest.mark.parametrize(
    "other",
    [
        "https://sandbox.pay.example", "https://pay.example:8443", "https://pay.example/sandbox", "http://127.0.0.1:80",
    ],
)  # fmt: skip
def test_another_service(other: str) -> None:
    """Another host, port or path is another service."""
    assert environment_digest(other, KEY) != environment_digest("https://pay.example", KEY)


def test_simulators_are_one() -> None:
    """A simulator that starts again has another port."""
    assert environment_digest("http://127.0.0.1:4711", KEY) == environment_digest(
        "http://localhost:8080", KEY
    )


def test_no_ledger_tells_another_where_it_was_used() -> None:
    """The digest is keyed."""
    assert environment_digest("https://pay.example", KEY) != environment_digest(
        "https://pay.example", b"l" * 32
    )
