"""Whether a page would send its referrer to a payment form (§4, §7.7), by its headers and its HTML. Pure.

The forms ask which site the customer comes from; a page whose policy hides it leads to "access denied".
"""

from collections.abc import Iterable
from contextlib import suppress
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

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


def check_page(url: str, headers: Iterable[tuple[str, str]], html: str) -> list[Finding]:
    """Find what of a page at `url` lets its referrer pass, and what not: header, `<meta>`, `rel`, `referrerpolicy`.

    A link, a form or a script of the page takes the page's policy, unless it has one of its own.
    """
    seen = _Seen(url)
    seen.feed(html)
    sent = _known(value for name, value in headers if name.lower() == "referrer-policy")
    # The header is read first, then each <meta>: the last of them holds.
    said = [("the header Referrer-Policy", word) for word in sent[-1:]]
    said += [("<meta name=referrer>", word) for word in seen.metas]
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
    if not seen.metas and not sends_origin(effective_policy(sent)):
        found.append(Finding(False, f"who may have set it: {_CULPRITS}"))
    return found + [
        Finding(False, f"{where} has {what}: {_DENIED} Take it out.") for where, what in seen.hiding
    ]


def _known(values: Iterable[str]) -> list[str]:
    words = (word.strip().lower() for value in values for word in value.split(","))
    return [word for word in words if word in _POLICIES]


class _Seen(HTMLParser):
    """The parts of a page's HTML that concern referrers."""

    def __init__(self, url: str) -> None:
        super().__init__()
        #: The page's address, and what its links are relative to: the address of its first <base>.
        self._url = self._base = url
        self.metas: list[str] = []
        #: Links and forms to another site that hide where they come from: where, and by what.
        self.hiding: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        # As browsers do: of two attributes of one name the first counts, and " no-referrer" is not a policy.
        given = {name: value or "" for name, value in reversed(attributes)}
        if tag == "meta" and given.get("name", "").lower() == "referrer":
            word = given.get("content", "").lower()
            word = _OLD_WORDS.get(word, word)
            if word in _POLICIES:
                self.metas.append(word)
        elif tag == "base" and self._base == self._url:  # the first one that changes it
            with suppress(ValueError):
                self._base = urljoin(self._url, given.get("href", "").strip())
        elif tag in ("a", "area", "form"):
            self._look_at_link(tag, given)

    def _look_at_link(self, tag: str, given: dict[str, str]) -> None:
        target = given.get("action" if tag == "form" else "href", "").strip()
        try:
            host = urlsplit(urljoin(self._base, target) if target else self._url).hostname
        except ValueError:
            return
        if host is None or host == urlsplit(self._url).hostname:
            return
        # Only the host: the rest of the address may be a secret.
        where = f"<{tag}> to {host}"
        if "noreferrer" in given.get("rel", "").lower().split():
            self.hiding.append((where, "rel=noreferrer"))
        elif not sends_origin(word := given.get("referrerpolicy", "").lower()):
            self.hiding.append((where, f"referrerpolicy={word}"))
