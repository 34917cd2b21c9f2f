"""The pages of a customer: one sends them to a payment form, one is where they wait for the outcome.

The forms ask for the site that the customer comes from (§4). Measured in Chromium: an HTTP 200 page under
`Referrer-Policy: origin` that moves on sends it; a typed address answered by a 303 with that header does not.

No HTTP request waits while the customer does (§8: 5 minutes). The page queries the app's own JSON route every 2
seconds, and reloads itself when the waiting or the time is over. Without JavaScript it reloads every 4 seconds, and in
any case every 30.

Nothing is loaded from elsewhere, and nothing inline is allowed but the style and each page's own script, by their
hashes. A site whose own Content-Security-Policy forbids those too serves both as files: `assets`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Set
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import attrs

from payclient.errors import ConfigurationError
from payclient.lifecycle import State
from payclient.tracking.forms import FormLink
from payclient.tracking.outcomes import PendingSale
from payclient.validation import check_type, is_safe_link

if TYPE_CHECKING:
    from payclient import sync

__all__ = ["Language", "Page", "is_waiting", "redirect_page", "sale_status", "waiting_page"]

#: The languages of the pages, and of the service's forms (§2.3).
Language = Literal["es", "en"]


@attrs.frozen(kw_only=True)
class Page:
    """An HTTP answer, such as an HTML page. Its body may hold a form's link, so that its `repr` leaves it out."""

    status: int
    headers: Mapping[str, str]
    #: UTF-8.
    body: bytes = attrs.field(repr=False)


def make_answer(kind: str, body: str, status: int = 200, cache: str = "no-store") -> Page:
    """Make an answer of a content type."""
    return Page(status=status, headers={"Content-Type": kind, "Cache-Control": cache}, body=body.encode())


def make_json(body: object, status: int = 200) -> Page:
    """Make an answer in JSON."""
    return make_answer("application/json", json.dumps(body), status)


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


#: The style of all pages, and each page's script, as the files below `{prefix}/assets`.
ASSETS = {
    name: make_answer(f"text/{kind}; charset=utf-8", _read(name), cache="max-age=3600")
    for name, kind in (("style.css", "css"), ("waiting.js", "javascript"), ("redirect.js", "javascript"))
}
_PAGE = Template(_read("page.html"))
_TEXTS: Mapping[str, Mapping[str, str]] = json.loads(_read("texts.json"))


def make_page(
    *,
    language: Language,
    title: str,
    content: str,
    status: int = 200,
    head: str = "",
    script: str | None = None,
    assets: str | None = None,
    sources: str = "",
) -> Page:
    """Make the page around `content`, which is HTML, as `head` is; `sources` are further directives of its policy.

    Style and script, one of `ASSETS`, are inline, allowed by their hashes; with `assets` they are files below it.
    """
    style, code = ASSETS["style.css"].body.decode(), ASSETS[script].body.decode() if script else ""
    if assets is None:
        style_source, code_source = hash_of(style), hash_of(code)
        style, code = f"<style>{style}</style>", code and f"<script>{code}</script>"
    else:
        style_source = code_source = "self"
        folder = escape(check_address(assets, "assets").rstrip("/"))
        style = f'<link rel="stylesheet" href="{folder}/style.css">'
        code = code and f'<script src="{folder}/{script}"></script>'
    sources = f"style-src '{style_source}'; " + (f"script-src '{code_source}'; " if code else "") + sources
    policy = f"default-src 'none'; {sources}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    body = _PAGE.substitute(
        language=language, title=escape(title), style=style, head=head, content=content.strip(), code=code
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Cache-Control": "no-store",
        "Content-Security-Policy": policy,
        # The forms open only where the browser names the site that the customer comes from (§4). The page repeats
        # this as <meta>, since a proxy may add a policy of its own: the one read last holds.
        "Referrer-Policy": "origin",
        "X-Content-Type-Options": "nosniff",
    }
    return Page(status=status, headers=MappingProxyType(headers), body=body.encode())


def texts_of(language: str) -> Mapping[str, str]:
    """Return the texts of a language. Raises `ConfigurationError` for one that the pages do not have."""
    if language not in _TEXTS:
        raise ConfigurationError("language must be es or en")
    return _TEXTS[language]


def check_address(address: str, name: str) -> str:
    """Return an address of the shop's own. Raises `ConfigurationError` unless it is http, https or a path."""
    check_type(name, address, str)
    try:
        parts = urlsplit(address)
        safe = address.isprintable() and not {" ", "\\"} & set(address) and not address.startswith("//")
    except ValueError:
        safe = False
    if not safe or parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.netloc):
        raise ConfigurationError(f"{name} must be a path or an http address")
    return address


def hash_of(text: str) -> str:
    """Return the hash of a style or a script, as a Content-Security-Policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# --- The two pages

_CLOCK = """<svg viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="18"/>\
<path d="M24 14v10l7 5"/></svg>"""
#: The words in the circle that turns.
_DRAWN = {
    "redirect": '<rect x="14" y="20" width="20" height="14" rx="3"/><path d="M18 20v-4a6 6 0 0 1 12 0v4"/>',
    "sale": '<rect x="17" y="11" width="14" height="26" rx="3"/><path d="M22 33h4"/>',
    "form": '<rect x="12" y="16" width="24" height="16" rx="3"/><path d="M12 21h24M17 27h4"/>',
}


def _turning(what: str) -> str:
    return f"""<svg viewBox="0 0 48 48" aria-hidden="true">{_DRAWN[what]}<circle class="ring" cx="24" cy="24" r="21"/>\
<path class="turning" d="M24 3a21 21 0 0 1 21 21"/></svg>"""


def redirect_page(
    link: FormLink,
    language: Language = "es",
    *,
    again: str | None = None,
    hosts: Set[str] | None = None,
    now: float | None = None,
    assets: str | None = None,
) -> Page:
    """Make an HTTP 200 page that moves on to a form with the origin as referrer (§4), by script or without one.

    A link that is not live (§8) is not handed out: the page is then an HTTP 410 that offers to start again at `again`,
    an address of the shop's. `hosts` are the profile's `link_hosts`. `now` is in UTC seconds since the epoch, this
    machine's unless given. `assets` is as for `waiting_page`. Raises `ConfigurationError` for an unsafe link,
    and for another language.
    """
    check_type("link", link, FormLink)
    texts = texts_of(language)
    # Also where `again` is not used; and before `url` holds the link, which error trackers would show.
    for name, address in (("assets", assets), ("again", again)):
        if address is not None:
            check_address(address, name)
    if not is_safe_link(link.url, hosts):
        raise ConfigurationError("link must be a form link that may be handed out (https, one of link_hosts)")
    if not link.is_live(time.time() if now is None else now):
        gone = f'{_CLOCK}\n<h1>{texts["gone"]}</h1>\n<p class="soft">{texts["why"]}</p>\n'
        if again is not None:
            gone += f'<a class="go" href="{escape(again)}">{texts["again"]}</a>'
        return make_page(language=language, title=texts["gone"], status=410, assets=assets, content=gone)
    url = escape(link.url)
    return make_page(
        language=language,
        title=texts["title"],
        head=f'<noscript><meta http-equiv="refresh" content="2; url={url}"></noscript>\n',
        content=f"""
{_turning("redirect")}
<h1 role="status">{texts["title"]}</h1>
<a class="go" id="go" href="{url}" referrerpolicy="origin">{texts["go"]}</a>
<p class="soft">{texts["hint"]}</p>""",
        script="redirect.js",
        assets=assets,
    )


def is_waiting(sale: PendingSale | sync.PendingSale) -> bool:
    """Return whether the customer can still act: the sale is not decided, and its time not over (§8).

    Afterwards `outcome.paid` is what to tell them; None is "we do not know yet", never "not paid".
    """
    return not sale.state.decided and sale.state not in (State.EXPIRED, State.REVERSING) and (
        sale.state is State.SENDING or sale.remaining > 0
    )  # fmt: skip


def sale_status(sale: PendingSale | sync.PendingSale) -> dict[str, object]:
    """Return what the app's JSON route answers to the page: `waiting`, `paid`, `state` and `remaining` seconds."""
    return {
        "waiting": is_waiting(sale),
        "paid": sale.outcome.paid,
        "state": str(sale.state),
        "remaining": round(sale.remaining, 1),
    }


def waiting_page(
    sale: PendingSale | sync.PendingSale,
    status_url: str,
    language: Language = "es",
    *,
    cancel_url: str | None = None,
    assets: str | None = None,
) -> Page:
    """Make the page that says "approve it on your phone", with the time left, until the outcome.

    Answer it while `is_waiting(sale)`, on the route that answers the outcome afterwards. `status_url` is the route
    that answers `sale_status(sale)` as JSON, on the same origin (`order_routes` has it). For a payment form the page
    says that the payment is being confirmed. `cancel_url` is a page of the shop's for a wrong number or another way to
    pay. `assets` is `order_routes`' address of style and script, for sites whose own Content-Security-Policy forbids
    what is inline. Raises `ConfigurationError`.
    """
    texts = texts_of(language)
    seconds = f"{sale.remaining:.0f}"
    minutes, rest = divmod(int(seconds), 60)
    left = f'<p class="left">{texts["left"]} <b id="clock" role="timer">{minutes}:{rest:02}</b></p>'
    cancel = "" if cancel_url is None else escape(check_address(cancel_url, "cancel_url"))
    return make_page(
        language=language,
        title=texts[sale.kind],
        head='<meta http-equiv="refresh" content="30">\n'
        '<noscript><meta http-equiv="refresh" content="4"></noscript>\n',
        content=f"""
{_turning(sale.kind)}
<div id="wait" role="status" data-status="{escape(check_address(status_url, "status_url"))}" \
data-seconds="{seconds}"><h1>{texts[sale.kind]}</h1>
<p id="offline" hidden>{texts["offline"]}</p></div>
<p>{texts[f"{sale.kind}_how"]}</p>
{left if sale.kind == "sale" else ""}
<p class="soft">{texts["stay"]}</p>
{f'<p><a href="{cancel}">{texts[f"{sale.kind}_cancel"]}</a></p>' if cancel else ""}""",
        script="waiting.js",
        assets=assets,
        sources="connect-src 'self'; ",
    )
