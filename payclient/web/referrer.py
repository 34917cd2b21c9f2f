"""Whether a referrer policy sends the origin to a payment form (§4, §7.7).

The forms check which site the customer comes from; a page whose policy hides the site leads to "access denied".
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["advice", "effective_policy", "sends_origin"]

#: Each policy of the standard, and whether it sends at least the origin to another https site.
_POLICIES = {
    "no-referrer": False,
    "no-referrer-when-downgrade": True,
    "origin": True,
    "origin-when-cross-origin": True,
    "same-origin": False,
    "strict-origin": True,
    "strict-origin-when-cross-origin": True,
    "unsafe-url": True,
}

#: What browsers do without a policy.
BROWSER_DEFAULT = "strict-origin-when-cross-origin"


def effective_policy(values: Iterable[str]) -> str:
    """Return the policy that browsers take from the Referrer-Policy headers: the last word they know, else theirs."""
    words = (word.strip().lower() for value in values for word in value.split(","))
    return ([word for word in words if word in _POLICIES] or [BROWSER_DEFAULT])[-1]


def sends_origin(policy: str) -> bool:
    """Return whether the policy tells another site where the customer comes from."""
    return _POLICIES.get(policy, True)


def advice(what: str) -> str:
    """Return what to change, in words."""
    return f"Set {what} to 'origin' or 'origin-when-cross-origin' (§4)."
