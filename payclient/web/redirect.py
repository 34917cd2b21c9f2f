"""The page that sends a customer to a payment form with the referrer that the form asks for (§4).

Measured in Chromium: an HTTP 200 page under `Referrer-Policy: origin` that moves on sends it; a typed address
answered by a 303 with that header does not.
"""

import time
from collections.abc import Set
from html import escape

from payclient.errors import ConfigurationError
from payclient.tracking.forms import FormLink
from payclient.validation import is_safe_link
from payclient.web.pages import Language, Page, check_address, make_page, texts_of

_TURNING = """<svg viewBox="0 0 48 48" aria-hidden="true"><rect x="14" y="20" width="20" height="14" rx="3"/>\
<path d="M18 20v-4a6 6 0 0 1 12 0v4"/><circle class="ring" cx="24" cy="24" r="21"/>\
<path class="turning" d="M24 3a21 21 0 0 1 21 21"/></svg>"""
_CLOCK = """<svg viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="18"/>\
<path d="M24 14v10l7 5"/></svg>"""


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
    texts = texts_of(language)
    if not is_safe_link(link.url, None if hosts is None else frozenset(hosts)):
        raise ConfigurationError("link must be a form link that may be handed out (https, one of link_hosts)")
    if not link.is_live(time.time() if now is None else now):
        gone = f'{_CLOCK}\n<h1>{texts["gone"]}</h1>\n<p class="soft">{texts["why"]}</p>\n'
        if again is not None:
            gone += f'<a class="go" href="{escape(check_address(again, "again"))}">{texts["again"]}</a>'
        return make_page(language=language, title=texts["gone"], status=410, assets=assets, content=gone)
    url = escape(link.url)
    return make_page(
        language=language,
        title=texts["title"],
        head=f'<noscript><meta http-equiv="refresh" content="2; url={url}"></noscript>\n',
        content=f"""
{_TURNING}
<h1 role="status">{texts["title"]}</h1>
<a class="go" id="go" href="{url}" referrerpolicy="origin">{texts["go"]}</a>
<p class="soft">{texts["hint"]}</p>""",
        script="redirect.js",
        assets=assets,
    )
