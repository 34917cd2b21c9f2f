"""The frame of each page: a shell for a phone's screen, under a Content-Security-Policy of hashes.

Nothing is loaded from elsewhere, and nothing inline is allowed but the style below and each page's own script. A site
whose own policy forbids those too (`default-src 'self'`) serves both as files: `assets`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

import attrs

from payclient.errors import ConfigurationError

__all__ = ["Language", "Page"]

#: The languages of the pages, and of the service's forms (§2.3).
Language = Literal["es", "en"]

STYLE = """
:root{color-scheme:light dark;--page:#f3f5f8;--card:#fff;--text:#18202c;--soft:#566072;--line:#dde2ea;--main:#1757b8}
@media(prefers-color-scheme:dark){:root{--page:#10151d;--card:#1a212c;--text:#eef1f6;--soft:#a9b3c3;--line:#2c3646;\
--main:#8ab4f8}}
*{box-sizing:border-box}
body{display:flex;min-height:100vh;min-height:100dvh;margin:0;padding:1.25rem;background:var(--page);\
color:var(--text);font:1.0625rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{width:100%;max-width:26rem;margin:auto;padding:2.25rem 1.5rem;border:1px solid var(--line);border-radius:1rem;\
background:var(--card);text-align:center}
svg{display:block;width:5rem;height:5rem;margin:0 auto 1.25rem;fill:none;stroke:var(--main);stroke-width:2;\
stroke-linecap:round;stroke-linejoin:round}
h1{margin:0 0 .75rem;font-size:1.4rem;line-height:1.25;text-wrap:balance}
p{margin:0 0 1rem;text-wrap:balance}
.soft{color:var(--soft);font-size:.9375rem}
.amount{font-size:1.75rem;font-weight:650;line-height:1.2}
.left{margin:1.5rem 0;padding:.75rem 1rem;border:1px solid var(--line);border-radius:.75rem}
#offline{padding:.5rem;border:1px solid var(--line);border-radius:.75rem;font-weight:600}
.left b{display:block;font-size:1.75rem;line-height:1.25;font-variant-numeric:tabular-nums}
a.go{display:block;margin:1.5rem 0 1rem;padding:.875rem 1rem;border-radius:.75rem;background:var(--main);\
color:#fff;font-weight:600;text-decoration:none}
a.go:focus-visible{outline:3px solid var(--text);outline-offset:2px}
@media(prefers-color-scheme:dark){a.go{color:#10151d}}
main>:last-child{margin-bottom:0}
main a:not(.go){color:var(--main)}
.ring{stroke:var(--line)}
.turning{transform-origin:center;animation:turn 1.1s linear infinite}
@keyframes turn{to{transform:rotate(360deg)}}
@media(prefers-reduced-motion:reduce){.turning{animation-duration:8s}}
"""


@attrs.frozen(kw_only=True)
class Page:
    """An HTML page as its HTTP answer. Its body may hold a form's link, so that its `repr` leaves it out."""

    status: int
    headers: Mapping[str, str]
    #: UTF-8.
    body: bytes = attrs.field(repr=False)


def make_page(
    *,
    language: Language,
    title: str,
    content: str,
    status: int = 200,
    head: str = "",
    script: str = "",
    script_name: str = "",
    assets: str | None = None,
    sources: str = "",
) -> Page:
    """Make the page around `content`, which is HTML, as `head` is; `sources` are further directives of its policy.

    Style and script are inline, allowed by their hashes; with `assets` they are the files below that address.
    """
    if assets is None:
        style, style_source = f"<style>{STYLE}</style>", hash_of(STYLE)
        code, code_source = f"<script>{script}</script>", hash_of(script)
    else:
        folder = escape(check_address(assets, "assets").rstrip("/"))
        style, style_source = f'<link rel="stylesheet" href="{folder}/style.css">', "self"
        code, code_source = f'<script src="{folder}/{script_name}"></script>', "self"
    policy = (
        f"default-src 'none'; style-src '{style_source}'; "
        + (f"script-src '{code_source}'; " if script else "")
        + f"{sources}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    body = f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="origin">
<meta name="robots" content="noindex">
<title>{escape(title)}</title>
{style}
{head}</head>
<body>
<main>
{content.strip()}
</main>
{code if script else ""}
</body>
</html>
"""
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


def check_language(language: str) -> None:
    """Raise `ConfigurationError` for a language that no page of ours has."""
    if language not in ("es", "en"):
        raise ConfigurationError("language: is es or en")


def check_address(address: str, name: str) -> str:
    """Return an address of the shop's own. Raises `ConfigurationError` unless it is http, https or a path."""
    try:
        parts = urlsplit(address)
        safe = address.isprintable() and not {" ", "\\"} & set(address) and not address.startswith("//")
    except ValueError:
        safe = False
    if not safe or parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.netloc):
        raise ConfigurationError(f"{name}: is a path or an http address")
    return address


def hash_of(text: str) -> str:
    """Return the hash of a style or a script, as a Content-Security-Policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
