"""What a ledger remembers of the service's address, and values that nothing shows."""

from __future__ import annotations

import pickle

import pytest

from payclient.auth import Secret, service_fingerprint

KEY = b"k" * 32


@pytest.mark.parametrize(
    "other",
    ["https://PAY.example", "https://pay.example/", "https://pay.example:443", "https://pay.example:443/"],
)
def test_the_same_service(other: str) -> None:
    """However its address is spelled."""
    assert service_fingerprint(other, KEY) == service_fingerprint("https://pay.example", KEY)


@pytest.mark.parametrize(
    "other",
    [
        "https://sandbox.pay.example", "https://pay.example:8443", "https://pay.example/sandbox", "http://127.0.0.1:80",
    ],
)  # fmt: skip
def test_another_service(other: str) -> None:
    """Another host, port or path is another service."""
    assert service_fingerprint(other, KEY) != service_fingerprint("https://pay.example", KEY)


def test_simulators_are_one() -> None:
    """A simulator that starts again has another port."""
    assert service_fingerprint("http://127.0.0.1:4711", KEY) == service_fingerprint(
        "http://localhost:8080", KEY
    )


def test_no_ledger_tells_another_where_it_was_used() -> None:
    """The digest is keyed."""
    assert service_fingerprint("https://pay.example", KEY) != service_fingerprint(
        "https://pay.example", b"l" * 32
    )


def test_a_secret_shows_nothing() -> None:
    """Neither printed nor inside of something, and no pickle takes it away."""
    secret = Secret("canary")
    assert (repr(secret), str(secret), f"{secret}", f"{[secret]}") == ("***", "***", "***", "[***]")
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(secret)
    assert secret.reveal() == Secret[str].of(secret).reveal() == Secret.of("canary").reveal() == "canary"
