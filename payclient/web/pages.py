"""The frame of each page: a shell for a phone's screen, under a Content-Security-Policy of hashes.

Nothing is loaded from elsewhere, and nothing inline is allowed but the style below and each page's own script. A site
whose own policy forbids those too (`default-src 'self'`) serves both as files: `assets`.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

import attrs

from payclient.errors import ConfigurationError
from payclient.tracking.health import Health

__all__ = ["Language", "Page"]

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


def health_page(health: Health) -> Page:
    """Make the answer of a health route: the fields of `Health`, `ok` and `problems`, with status 200 or 503."""
    body = {"ok": health.ok, "problems": health.problems, **attrs.asdict(health)}
    return make_json(body, 200 if health.ok else 503)


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
    style, code = (ASSETS[name].body.decode() if name else "" for name in ("style.css", script))
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
        # The forms open only for who says where the customer comes from (§4). Also as <meta>, where a proxy
        # in front of the shop adds a policy of its own: the one read last holds.
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
