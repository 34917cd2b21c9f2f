"""`payclient doctor`: what would go wrong, said before it does.

Nobody is charged: no POST is made, and no token is sent.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Annotated, Literal
from urllib.parse import urlsplit

import attrs
from cyclopts import Parameter
from rich.markup import escape

from payclient.access import check_base_url
from payclient.cli import terminal
from payclient.cli.settings import BaseUrl, LedgerUrl, Profile, RotatingToken, profile_of, token_of
from payclient.errors import ConfigurationError, LedgerError, LedgerInUseError
from payclient.ledger import open_ledger
from payclient.lifecycle import State
from payclient.links import is_loopback
from payclient.profile import ServiceProfile
from payclient.web.referrer import check_page

__all__: list[str] = []

#: Seconds, for a connection and for an answer.
TIMEOUT = 10.0

#: Bytes of a page that are read: what says something about referrers stands at its head and on its links.
MAX_PAGE = 1 << 20

_COLOURS = {"ok": "green", "note": "dim", "gap": "yellow", "wrong": "bold red"}


@attrs.frozen
class Line:
    """One thing that was looked at. `gap`: something will not work as it could; `wrong`: something will fail."""

    level: Literal["ok", "note", "gap", "wrong"]
    text: str


def doctor(
    *,
    site: Annotated[
        str | None, Parameter(help="A page of yours: would it send its referrer to a payment form?")
    ] = None,
    base_url: BaseUrl = None,
    profile: Profile = None,
    ledger: LedgerUrl = None,
) -> int:
    """Look at settings, network, ledger, profile and a page of yours, and say what to change. Nobody is charged.

    Exit codes: 0 all well; 3 gaps, such as a profile without a status query; 4 something is wrong and will fail.
    """
    levels: list[str] = []
    told = (base_url, ledger, os.environ.get("PAYCLIENT_TOKEN"), os.environ.get("PAYCLIENT_TOKEN_FILE"))
    if site is None or any(told):
        try:
            found = profile_of(profile)
        except ConfigurationError as error:
            about = [Line("wrong", str(error))]
        else:
            about = [Line("ok", f"profile: {found.name}"), *check_profile(found)]
            base_url = base_url or found.base_url
        address = check_address(base_url)
        levels += _show("settings", [address, check_token()])
        if base_url and address.level == "ok":
            levels += _show("network", check_reach(base_url))
        levels += _show("ledger", asyncio.run(check_ledger(ledger, base_url)))
        levels += _show("profile", about)
    if site is not None:
        levels += _show("site", check_site(site))
    return 4 if "wrong" in levels else 3 if "gap" in levels else 0


def _show(title: str, lines: Iterable[Line]) -> list[str]:
    """Print a section and give its levels."""
    out = terminal.out()
    out.print(f"[bold]{title}[/]")
    levels: list[str] = []
    for line in lines:
        out.print(f"  [{_COLOURS[line.level]}]{line.level:<5}[/] {escape(line.text)}")
        levels.append(line.level)
    return levels


# --- What it looks at


def check_address(base_url: str | None) -> Line:
    """Where requests go."""
    if not base_url:
        return Line("wrong", "base_url: give --base-url, or set PAYCLIENT_BASE_URL")
    try:
        check_base_url(base_url)
    except ConfigurationError as error:
        return Line("wrong", str(error))
    return Line("ok", f"base_url: {base_url}")


def check_token() -> Line:
    """The token's shape, which is never shown."""
    try:
        source = token_of()
        token = source.read() if isinstance(source, RotatingToken) else source
    except ConfigurationError as error:
        return Line("wrong", str(error))
    shape = "of a shape that can be sent; whether it is good is not tried"
    return Line("ok", f"token: {len(token)} characters, {shape}")


def check_reach(base_url: str) -> Iterator[Line]:
    """TCP, TLS and one GET without a token. `base_url` has passed `check_base_url`."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    connection = (
        http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT)
    )
    try:
        connection.connect()
        if isinstance(connection.sock, ssl.SSLSocket):
            yield Line("ok", f"TLS: {connection.sock.version()}, the certificate is trusted and names {host}")
        else:
            yield Line("note", "TLS: none, as is right for this machine only")
        connection.request("GET", parts.path or "/", headers={"User-Agent": "payclient doctor"})
        status = connection.getresponse().status
        yield Line(
            "ok", f"reachable: HTTP {status} to a GET without a token (its status says nothing about charges)"
        )
    except ssl.SSLCertVerificationError as error:
        yield Line("wrong", f"TLS: the certificate is not trusted: {error.verify_message}")
    except (OSError, http.client.HTTPException) as error:
        name = errno.errorcode.get(getattr(error, "errno", None) or 0, "")
        yield Line("wrong", f"not reachable: {type(error).__name__}{f' ({name})' if name else ''}")
    finally:
        connection.close()


async def check_ledger(url: str | None, base_url: str | None) -> list[Line]:
    """Whether the ledger opens with what safety needs; a file that does not exist yet is tried beside its place."""
    if not url:
        return [
            Line(
                "gap", "no ledger is named: give --ledger, such as sqlite:charges.db, or set PAYCLIENT_LEDGER"
            )
        ]
    kind, _, path = url.partition(":")
    if kind == "memory":
        here = is_loopback(urlsplit(base_url or "").hostname or "")
        text = "memory: forgets what was charged, and the next run would charge it again: use sqlite:PATH"
        return [Line("note" if here else "wrong", text)]
    trial = None
    if kind == "sqlite" and path and not os.path.lexists(path):  # noqa: ASYNC240 - nothing else runs meanwhile
        trial = f"{path}.doctor-{secrets.token_hex(4)}"
    try:
        book = await open_ledger(url if trial is None else f"sqlite:{trial}")
        try:
            states = [record.state async for record in book.unfinished()]
        finally:
            await book.aclose()
    except LedgerInUseError:
        return [Line("note", "the ledger is open in another process, which has checked it; not looked at")]
    except (ConfigurationError, LedgerError) as error:
        return [Line("wrong", str(error))]
    finally:
        for end in ("", "-wal", "-shm"):
            if trial is not None:
                with suppress(FileNotFoundError):
                    os.unlink(trial + end)
    if trial is not None:
        return [Line("ok", "the ledger's file does not exist yet; its place is safe")]
    lines = [Line("ok", f"the ledger ({kind}) opens, and every setting that safety needs was read back")]
    if states:
        unknown = sum(state is not State.PENDING for state in states)
        lines.append(
            Line("note", f"{len(states)} open, {unknown} of them unknown or expired: payclient ledger list")
        )
    return lines


#: What a setting means that the profile does not have.
_LEFT_OPEN = {
    "cancel": "no [cancel]: session.cancel raises ConfigurationError",
    "reverse": "no [reverse]: session.reverse raises ConfigurationError",
    "nick_name_flag": "no nick_name_flag: a Sale with by_nick_name raises ConfigurationError (§2.2)",
    "language_field": "no language_field: a form with a language raises ConfigurationError (§2.3)",
    "wallet_link_field": (
        "no wallet_link_field: form.wallet raises ConfigurationError where an answer has more links than one beside "
        "the card's (§2.6)"
    ),
    "link_hosts": "no link_hosts: a form link may name any https host",
    "queries_per_minute": "no queries_per_minute: status queries are paced by need alone",
}


def check_profile(profile: ServiceProfile) -> Iterator[Line]:
    """What the document leaves open (§4.2, §2.2, §2.3) and this profile does too: what will raise, what cannot be."""
    status = profile.status
    if status is None:
        yield Line("gap", "no [status]: `paid` can never become True, and session.status raises ConfigurationError "
                          "(unless the app gives the tracker a status source of its own)")  # fmt: skip
    else:
        if status.by_transaction_id is None:
            yield Line(
                "gap",
                "no status.by_transaction_id: session.status(transaction_id=...) raises ConfigurationError",
            )
        if status.by_client_transaction_id is None:
            yield Line("gap", "no status.by_client_transaction_id: a sale whose answer was lost stays unknown until an "
                              "operator decides it, a paid form is not noticed, and "
                              "session.status(client_transaction_id=...) raises ConfigurationError")  # fmt: skip
        elif not profile.not_found_codes:
            yield Line(
                "note", 'no not_found_codes: an error object in answer to a status query is never "not found"'
            )
        missing = {"Pendiente", "Aceptado", "Cancelado"} - set(status.states.values())
        if missing:
            yield Line("gap", f"status.states maps no word to {', '.join(sorted(missing))}")
        if status.by_transaction_id and status.by_client_transaction_id and not missing:
            yield Line("ok", "status: by both ids, with a word for each state")
    if profile.confirm is None or profile.returned is None:
        yield Line("note", "no [confirm] or no [returned]: tracker.returned raises ConfigurationError")
    for name, means in _LEFT_OPEN.items():
        if getattr(profile, name) is None:
            yield Line("note", means)


def check_site(url: str) -> Iterator[Line]:
    """Whether a page of the merchant's would send its referrer to a payment form (§4)."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        yield Line("wrong", "--site: is an address such as https://shop.example/checkout")
        return
    request = urllib.request.Request(url, headers={"User-Agent": "payclient doctor", "Accept": "text/html"})  # noqa: S310 - http or https, see above
    try:
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310 - likewise; it redirects to no other
        except urllib.error.HTTPError as error:
            yield Line(
                "note", f"the page answers HTTP {error.code}: is it the one that customers leave from?"
            )
            answer = error
        with answer:
            html = answer.read(MAX_PAGE).decode(answer.headers.get_content_charset() or "utf-8", "replace")
            final, headers = answer.geturl(), answer.headers.items()
    except (OSError, http.client.HTTPException, LookupError) as error:
        yield Line("wrong", f"the page cannot be read: {type(error).__name__}")
        return
    if urlsplit(final).netloc != parts.netloc:
        yield Line("note", f"it redirects to {urlsplit(final).hostname}, whose page was looked at")
    for finding in check_page(final, headers, html):
        yield Line("ok" if finding.good else "wrong", finding.text)
    yield Line("note", "payclient.web's redirect page has a policy of its own, whatever the rest of the site has; "
                       "a typed address answered by a redirect brings no referrer at all")  # fmt: skip
