"""`payclient doctor`: what would go wrong, said before it does.

Nobody is charged: no POST is made, and no token is sent.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit

import attrs
from cyclopts import Parameter
from rich.markup import escape

from payclient.cli import terminal
from payclient.cli.settings import NO_LEDGER, LedgerUrl, ServiceOptions, profile_of
from payclient.errors import ConfigurationError, LedgerError, LedgerInUseError, LedgerMissingError
from payclient.ledger import open_ledger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile
from payclient.transport import AiohttpTransport
from payclient.validation import is_loopback
from payclient.web.referrer import check_page
from payclient.wire import HttpRequest, HttpResponse

__all__: list[str] = []

#: Seconds, for a connection and for an answer.
TIMEOUT = 10.0

#: Redirects of the merchant's page that are followed.
MAX_REDIRECTS = 5

_COLOURS = {"ok": "green", "note": "dim", "gap": "yellow", "wrong": "bold red"}


class Check(NamedTuple):
    """One thing that was looked at. `gap`: something will not work as it could; `wrong`: something will fail."""

    level: Literal["ok", "note", "gap", "wrong"]
    text: str


def doctor(
    *,
    site: Annotated[
        str | None, Parameter(help="A page of yours: would it send its referrer to a payment form?")
    ] = None,
    options: ServiceOptions = ServiceOptions(),
    ledger: LedgerUrl = None,
) -> int:
    """Look at settings, network, ledger, profile and a page of yours, and print what to change. Nobody is charged.

    Exit codes: 0 all well; 3 gaps, such as a profile without a status query; 4 something is wrong and will fail.
    """
    about = list(check_named(options.profile))
    # A bad profile is printed as such; the rest is looked at all the same.
    known = options if about[0].level == "ok" else attrs.evolve(options, profile=None)
    settings = list(check_settings(known))
    levels, address = _show("settings", settings), None
    if settings[0].level == "ok":
        address = known.address()
        levels += _show("network", check_reach(address))
    levels += _show("ledger", asyncio.run(check_ledger(ledger, address)))
    levels += _show("profile", about)
    if site is not None:
        levels += _show("site", check_site(site))
    return 4 if "wrong" in levels else 3 if "gap" in levels else 0


def _show(title: str, lines: Iterable[Check]) -> list[str]:
    """Print a section and return its levels."""
    out, levels = terminal.out(), list[str]()
    out.print(f"[bold]{title}[/]")
    for level, text in lines:
        out.print(f"  [{_COLOURS[level]}]{level:<5}[/] {escape(text)}")
        levels.append(level)
    return levels


# --- What it looks at


def check_settings(options: ServiceOptions) -> Iterator[Check]:
    """Check where requests go, and the shape of the token, which is never shown."""
    try:
        yield Check("ok", f"base_url: {options.address()}")
    except ConfigurationError as error:
        yield Check("wrong", str(error))
    try:
        token = options.token()
        count = len(token if isinstance(token, str) else token.read())
        yield Check(
            "ok", f"token: {count} characters, of a shape that can be sent; whether it is good is not tried"
        )
    except ConfigurationError as error:
        yield Check("wrong", str(error))


def check_named(profile: str | None) -> Iterator[Check]:
    """Check a profile by its name or path."""
    try:
        found = profile_of(profile)
    except ConfigurationError as error:
        yield Check("wrong", str(error))
    else:
        yield Check("ok", f"profile: {found.name}")
        yield from check_profile(found)


async def get(url: str) -> HttpResponse:
    """GET one address without a token, over the transport of a session; redirects are not followed."""
    parts = urlsplit(url)
    transport = AiohttpTransport(f"{parts.scheme}://{parts.netloc}", connect_timeout=TIMEOUT)
    try:
        async with asyncio.timeout(TIMEOUT):
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            return await transport(HttpRequest("GET", path, headers={"Accept": "text/html"}), None)
    finally:
        await transport.aclose()


def check_reach(base_url: str) -> Iterator[Check]:
    """Check TCP, TLS and one GET without a token, over the transport of a session."""

    try:
        answer = asyncio.run(get(base_url))
    except Exception as error:
        fault = getattr(error, "certificate_error", None)
        if isinstance(fault, ssl.SSLCertVerificationError):
            yield Check("wrong", f"TLS: the certificate is not trusted: {fault.verify_message}")
            return
        cause = getattr(error, "os_error", error)
        if isinstance(cause, socket.gaierror):
            yield Check("wrong", f"no address found for {urlsplit(base_url).hostname} (DNS)")
            return
        name = errno.errorcode.get(getattr(cause, "errno", None) or 0, "")
        yield Check("wrong", f"not reachable: {type(cause).__name__}{f' ({name})' if name else ''}")
        return
    if base_url.startswith("https:"):
        yield Check("ok", f"TLS: the certificate is trusted and names {urlsplit(base_url).hostname}")
    else:
        yield Check("note", "TLS: none, as is right for this machine only")
    words = f"HTTP {answer.status} to a GET without a token (its status says nothing about charges)"
    yield Check("ok", f"reachable: {words}")


async def check_ledger(url: str | None, base_url: str | None) -> list[Check]:
    """Check whether the ledger opens with what safety needs; for one that does not exist yet a trial is made beside."""
    if not url:
        return [Check("gap", f"no ledger is named: {NO_LEDGER}")]
    kind, _, path = url.partition(":")
    if kind == "memory":
        here = is_loopback(urlsplit(base_url or "").hostname or "")
        text = "memory: forgets what was charged, and the next run would charge it again: use sqlite:PATH"
        return [Check("note" if here else "wrong", text)]
    try:
        book = await open_ledger(url, create=False)
        states = [record.state async for record in book.unfinished()]
        await book.aclose()
    except LedgerInUseError:
        return [Check("note", "the ledger is open in another process, which has checked it; not looked at")]
    except LedgerMissingError:
        if kind != "sqlite":
            return [Check("note", "the ledger does not exist yet: payclient ledger init makes it")]
        return [await _try_place(os.path.dirname(os.path.abspath(path)))]  # noqa: ASYNC240 - asks no disk
    except (ConfigurationError, LedgerError) as error:
        return [Check("wrong", str(error))]
    lines = [Check("ok", f"the ledger ({kind}) opens, and every setting that safety needs was read back")]
    if states:
        unknown = sum(state is not State.PENDING for state in states)
        words = f"{len(states)} open, {unknown} of them unknown or expired: payclient ledger list"
        lines.append(Check("note", words))
    return lines


async def _try_place(directory: str) -> Check:
    try:
        with TemporaryDirectory(prefix=".doctor-", dir=directory) as place:
            await (await SqliteLedger.open(os.path.join(place, "ledger.db"))).aclose()
    except (ConfigurationError, LedgerError) as error:
        return Check("wrong", str(error))
    except OSError as error:
        return Check("wrong", f"the ledger's directory does not exist or cannot be written: {error.strerror}")
    return Check("ok", "the ledger's file does not exist yet; its place is safe")


def check_site(url: str) -> Iterator[Check]:
    """Check whether a page of the merchant's would send its referrer to a payment form (§4)."""
    first = urlsplit(url).netloc
    for _ in range(MAX_REDIRECTS):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            yield Check("wrong", "--site: must be an address such as https://shop.example/checkout")
            return
        try:
            answer = asyncio.run(get(url))
        except Exception as error:
            yield Check("wrong", f"the page cannot be read: {type(error).__name__}")
            return
        if not 300 <= answer.status <= 399 or not (target := answer.headers.get("Location")):
            break
        url = urljoin(url, target)
    if answer.status != 200:
        yield Check("note", f"the page answers HTTP {answer.status}; give the page that customers leave from")
    if urlsplit(url).netloc != first:
        yield Check("note", f"the page redirects to {urlsplit(url).hostname}, whose page was looked at")
    for finding in check_page(url, answer.headers.items(), answer.body.decode("utf-8", "replace")):
        yield Check("ok" if finding.good else "wrong", finding.text)
    policy = answer.headers.get("Content-Security-Policy", "")
    if "-src" in policy and "'unsafe-inline'" not in policy:
        yield Check("note", "the site has a Content-Security-Policy that forbids what is inline: if a proxy adds it to "
                           "every page, give payclient.web's pages assets=, the address of order_routes")  # fmt: skip
    yield Check("note", "payclient.web's redirect page has a referrer policy of its own; a typed address that is "
                       "answered by a redirect sends no referrer")  # fmt: skip


#: Settings without which a call that needs one raises `ConfigurationError`.
_NEEDED = (
    "confirm", "returned", "cancel", "reverse", "nick_name_flag", "language_field", "wallet_link_field",
)  # fmt: skip


def check_profile(profile: ServiceProfile) -> Iterator[Check]:
    """Find what the document leaves open (§4.2, §2.2, §2.3) and this profile does too."""
    status = profile.status
    missing = {"Pendiente", "Aceptado", "Cancelado"} - set(status.states.values() if status else ())
    by_client_id = status is not None and status.by_client_transaction_id
    gaps = []
    if status is None:
        gaps = ["no [status]: `paid` can never become True, and session.status raises ConfigurationError "
                "(unless the app gives the tracker a status source of its own)"]  # fmt: skip
    else:
        if not status.by_transaction_id:
            gaps.append(
                "no status.by_transaction_id: session.status(transaction_id=...) raises ConfigurationError"
            )
        if not by_client_id:
            gaps.append("no status.by_client_transaction_id: a sale whose answer was lost stays unknown until an "
                        "operator decides it, and a paid form is not noticed")  # fmt: skip
        if missing:
            gaps.append(f"status.states maps no word to {', '.join(sorted(missing))}")
        if not gaps:
            yield Check("ok", "status: by both ids, with a word for each state")
    yield from (Check("gap", text) for text in gaps)
    if by_client_id and not profile.not_found_codes:
        yield Check("note", "no not_found_codes: an error object never answers a status query with not found")
    if profile.link_hosts is None:
        yield Check("note", "no link_hosts: a form link may name any https host")
    if unset := [name for name in _NEEDED if getattr(profile, name) is None]:
        yield Check("note", f"no {', '.join(unset)}: a call that needs one raises ConfigurationError")
