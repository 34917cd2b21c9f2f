"""Whether a referrer policy sends the origin."""

from __future__ import annotations

import pytest

from payclient.web.referrer import effective_policy, sends_origin


@pytest.mark.parametrize(
    ("policy", "sends"),
    [
        ("origin", True),
        ("origin-when-cross-origin", True),
        ("strict-origin", True),
        ("strict-origin-when-cross-origin", True),
        ("no-referrer-when-downgrade", True),
        ("unsafe-url", True),
        ("Origin", True),
        ("nonsense", True),
        ("", True),
        ("same-origin", False),
        ("no-referrer", False),
        ("origin, no-referrer", False),
        ("no-referrer, something-new", False),
        ("same-origin,strict-origin", True),
    ],
)
def test_the_header_decides(policy: str, sends: bool) -> None:
    """The last word that browsers know; nothing said is their default, which sends the origin."""
    assert sends_origin(effective_policy([policy])) is sends
