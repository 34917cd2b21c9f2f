"""Whether a page would send its referrer to a payment form (§4, §7.7), by its headers and its HTML. Pure.

The forms ask which site the customer comes from; a page whose policy hides it leads to "access denied".
"""

from collections.abc import Iterable
from html.parser import HTMLParser

import attrs

__all__ = ["Finding", "advice", "check_page", "effective_policy", "sends_origin"]

#: The policies of the standard: those that send another https site no origin, and those that send at least that.
_HIDING = frozenset({"no-referrer", "same-origin"})
_POLICIES = _HIDING | {
    "no-referrer-when-downgrade", "origin", "origin-when-cross-origin", "strict-origin",
    "strict-origin-when-cross-origin", "unsafe-url",
}  # fmt: skip

#: Words of `<meta name=referrer>` from before the standard, which browsers still read.
_OLD_WORDS = {
    "never": "no-referrer",
    "default": "strict-origin-when-cross-origin",
    "always": "unsafe-url",
    "origin-when-crossorigin": "origin-when-cross-origin",
}

#: The policy of browsers where a page names none.
BROWSER_DEFAULT = "strict-origin-when-cross-origin"

_DENIED = "no referrer is sent, and a form opened from it answers 'access denied'."

#: Programs that set a policy which hides the site, and where to look it up.
_CULPRITS = (
    "Django sets same-origin by itself (SECURE_REFERRER_POLICY, from 3.1); Helmet sets no-referrer; "
    "a reverse proxy or a content network may add a header of its own"
)


@attrs.frozen
class Finding:
    """One thing that was looked at. `good`: it sends the referrer; `text` says in words what to change if not."""

    good: bool
    text: str


def effective_policy(values: Iterable[str]) -> str:
    """Return the policy of Referrer-Policy headers: the last word that browsers know, else their default."""
    return (_known(values) or [BROWSER_DEFAULT])[-1]


def sends_origin(policy: str) -> bool:
    """Return whether a policy sends another site the origin."""
    return policy not in _HIDING


def advice(what: str) -> str:
    """Return what to change, in words."""
    return f"Set {what} to 'origin' or 'origin-when-cross-origin' (§4)."


def check_page(headers: Iterable[tuple[str, str]], html: str) -> list[Finding]:
    """Find what of a page lets its referrer pass, and what not: its header and each `<meta>`.

    A link of the page may have a policy of its own. That is not looked at: which links lead to a form is not known.
    """
    metas = _Metas()
    metas.feed(html)
    sent = _known(value for name, value in headers if name.lower() == "referrer-policy")
    # The header is read first, then each <meta>: the last of them holds.
    said = [("the header Referrer-Policy", word) for word in sent[-1:]]
    said += [("<meta name=referrer>", word) for word in metas.words]
    found = list[Finding]()
    if not said:
        found.append(Finding(True, f"no referrer policy is set: browsers then take {BROWSER_DEFAULT}"))
    for where, word in said:
        if sends_origin(word):
            found.append(Finding(True, f"{where} is {word}: it sends the referrer"))
        elif sends_origin(said[-1][1]):
            found.append(Finding(True, f"{where} is {word}, which a later word mends"))
        else:
            found.append(Finding(False, f"{where} is {word}: {_DENIED} {advice(where)}"))
    if not metas.words and not sends_origin(effective_policy(sent)):
        found.append(Finding(False, f"who may have set it: {_CULPRITS}"))
    return found


def _known(values: Iterable[str]) -> list[str]:
    words = (word.strip().lower() for value in values for word in value.split(","))
    return [word for word in words if word in _POLICIES]


class _Metas(HTMLParser):
    """The policies of a page's `<meta name=referrer>`."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        # As browsers do: of two attributes of one name the first counts, and " no-referrer" is not a policy.
        given = {name: value or "" for name, value in reversed(attributes)}
        if tag == "meta" and given.get("name", "").lower() == "referrer":
            word = given.get("content", "").lower()
            word = _OLD_WORDS.get(word, word)
            if word in _POLICIES:
                self.words.append(word)
