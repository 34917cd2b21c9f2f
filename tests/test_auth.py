"""What a ledger remembers of the service's address, and values that nothing shows."""

from __future__ import annotations

import pickle

import pytest

from payclient.auth import Secret, service_fingerprint

KEY = b"k" * 32
URL = "https://pay.example"


@pytest.mark.parametrize(
    ("one", "others", "same"),
    [
        # However its address is spelled; a simulator that starts again has another port.
        (URL, ["https://PAY.example", f"{URL}/", f"{URL}:443", f"{URL}:443/"], True),
        ("http://127.0.0.1:4711", ["http://localhost:8080"], True),
        (URL, ["https://sandbox.pay.example", f"{URL}:8443", f"{URL}/sandbox", "http://127.0.0.1:80"], False),
    ],
)
def test_another_host_port_or_path_is_another_service(one: str, others: list[str], same: bool) -> None:
    """The digest is keyed, so that no ledger tells another where it was used."""
    for other in others:
        assert (service_fingerprint(other, KEY) == service_fingerprint(one, KEY)) is same
        assert service_fingerprint(other, b"l" * 32) != service_fingerprint(one, KEY)


def test_a_secret_shows_nothing() -> None:
    """Neither printed nor inside of something, and no pickle takes it away."""
    secret = Secret("canary")
    assert (repr(secret), str(secret), f"{secret}", f"{[secret]}") == ("***", "***", "***", "[***]")
    assert not hasattr(secret, "__dict__")
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(secret)
    assert secret.reveal() == Secret[str].of(secret).reveal() == Secret.of("canary").reveal() == "canary"
