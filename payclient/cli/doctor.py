"""`payclient doctor`: checks of what a charge needs, before the first charge.

Nobody is charged: no POST is made, and no token is sent.
"""

import asyncio
import os
import ssl
from collections.abc import Iterable, Iterator
from contextlib import aclosing
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import attrs

from payclient.auth import TokenFile
from payclient.cli import terminal
from payclient.cli.configuration import origins
from payclient.cli.settings import FORGETS, NO_LEDGER, LedgerUrl, ServiceOptions, location_of
from payclient.cli.texts import reason, sentence, text
from payclient.errors import ConfigurationError, LedgerError, LedgerInUseError, LedgerMissingError
from payclient.ledger import open_ledger
from payclient.ledger.sqlite import SqliteLedger
from payclient.lifecycle import State
from payclient.profile import ServiceProfile, find_profile
from payclient.session import describe_failure
from payclient.transport import AiohttpTransport
from payclient.validation import is_loopback, parse_address
from payclient.web.referrer import check_page
from payclient.wire import HttpRequest, HttpResponse

#: Seconds, for a connection and for an answer.
TIMEOUT = 10.0

_COLOURS = {"ok": "green", "note": "dim", "gap": "yellow", "wrong": "bold red"}

#: Settings without which a call that needs one raises `ConfigurationError`.
_NEEDED = (
    "confirm", "returned", "cancel", "reverse", "nick_name_flag", "language_field", "wallet_link_field",
)  # fmt: skip


class Check(NamedTuple):
    """The result of one check. `gap`: something will not work as it could; `wrong`: something will fail."""

    level: Literal["ok", "note", "gap", "wrong"]
    text: str


def doctor(
    *, site: str | None = None, options: ServiceOptions = ServiceOptions(), ledger: LedgerUrl = None
) -> int:
    """Look at settings, network, ledger, profile and a page of yours, and print what to change.

    Nobody is charged. Each setting is shown with the place that it is from: an option, a variable, or the file
    payclient.toml.
    Exit codes: 0 all well; 3 gaps, such as a profile without a status query; 4 something is wrong and will fail.

    :param site: A page of yours: would it send its referrer to a payment form?
    """
    about = list(check_named(options.profile))
    # A bad profile is one result; the other checks go on without it.
    known = options if about[0].level == "ok" else attrs.evolve(options, profile=None)
    levels, address = _show("settings", check_settings(known)), None
    if levels[0] == "ok":
        address = known.address()
        levels += _show("network", check_reach(address))
    levels += _show("ledger", [asyncio.run(check_ledger(ledger, address))])
    levels += _show("profile", about)
    if site is not None:
        levels += _show("site", check_site(site))
    return 4 if "wrong" in levels else 3 if "gap" in levels else 0


def _show(title: str, lines: Iterable[Check]) -> list[str]:
    """Print a section and return its levels."""
    out, levels = terminal.out(), list[str]()
    out.print(f"[bold]{sentence(title)}[/]")
    for level, words in lines:
        out.print(f"  [{_COLOURS[level]}]{sentence(level):<5}[/] {terminal.printable(words)}")
        levels.append(level)
    return levels


# --- The checks


def check_settings(options: ServiceOptions) -> Iterator[Check]:
    """Check the service's address and the token's shape, without showing the token; then show the other settings."""
    checked = {
        "base_url": (options.address, text("doctor.of_profile")),
        "token_file": (options.token, "PAYCLIENT_TOKEN"),
    }
    for name, (get, otherwise) in checked.items():
        try:
            yield Check("ok", _value(name, get(), otherwise))
        except ConfigurationError as error:
            yield Check("wrong", reason(str(error)))
    for name, (value, _) in origins.get().items():
        if name not in (*checked, "site"):
            yield Check("note", _value(name, value))


def _value(name: str, value: object, otherwise: str = "") -> str:
    """Return a setting's value, and where it was set, in words; of a token the length."""
    place = origins.get().get(name, ("", otherwise))[1]
    where = text("doctor.from", place=place) if place else ""
    if name == "token_file":
        token = value.read() if isinstance(value, TokenFile) else str(value)
        return text("doctor.token", count=len(token), place=where)
    shown = ", ".join(value) if isinstance(value, list) else str(value)
    return f"{name}: {location_of(shown) if name == 'ledger' else shown}{where}"


def check_named(profile: str | None) -> Iterator[Check]:
    """Check a profile by its name or path."""
    try:
        found = find_profile(profile)
    except ConfigurationError as error:
        yield Check("wrong", reason(str(error)))
    else:
        yield Check("ok", f"{sentence('profile')}: {found.name}")
        yield from check_profile(found)


async def get(url: str) -> HttpResponse:
    """GET one address without a token, over the transport of a session; redirects are not followed."""
    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    transport = AiohttpTransport(f"{parts.scheme}://{parts.netloc}", connect_timeout=TIMEOUT)
    async with aclosing(transport), asyncio.timeout(TIMEOUT):
        return await transport(HttpRequest("GET", path, headers={"Accept": "text/html"}), None)


def check_reach(base_url: str) -> Iterator[Check]:
    """Check TCP, TLS and one GET without a token, over the transport of a session."""
    try:
        answer = asyncio.run(get(base_url))
    except Exception as error:
        words = text("doctor.unreachable", why=reason(describe_failure(error)))
        if isinstance(fault := getattr(error, "certificate_error", None), ssl.SSLCertVerificationError):
            words = text("doctor.certificate", why=fault.verify_message)
        yield Check("wrong", words)
        return
    parts = urlsplit(base_url)
    words = text("doctor.tls", host=parts.hostname)
    yield Check("ok", words) if parts.scheme == "https" else Check("note", text("doctor.no_tls"))
    yield Check("ok", text("doctor.reached", status=answer.status))


async def check_ledger(url: str | None, base_url: str | None) -> Check:
    """Check whether the ledger opens with what safety needs. If none exists, make a trial one in its directory."""
    if not url:
        return Check("gap", text("doctor.no_ledger", how=reason(NO_LEDGER)))
    kind, _, path = url.partition(":")
    if kind == "memory":
        here = is_loopback(urlsplit(base_url or "").hostname or "")
        return Check("note" if here else "wrong", reason(FORGETS))
    try:
        try:
            async with aclosing(await open_ledger(url, create=False)) as book:
                await book.drop_links(0.0)  # none; it writes all the same, which a full disk does not let it
                states = [record.state async for record in book.unfinished()]
        except LedgerMissingError as error:
            if kind != "sqlite":
                return Check("note", reason(str(error)))
            directory = os.path.dirname(os.path.abspath(path))
            with TemporaryDirectory(prefix=".doctor-", dir=directory) as place:
                await (await SqliteLedger.open(os.path.join(place, "ledger.db"))).aclose()
            return Check("ok", text("doctor.safe"))
    except LedgerInUseError:
        return Check("note", text("doctor.in_use"))
    except (ConfigurationError, LedgerError) as error:
        return Check("wrong", reason(str(error)))
    except OSError as error:
        return Check("wrong", text("doctor.place", why=reason(error.strerror or "")))
    unknown = sum(state is not State.PENDING for state in states)
    return Check("ok", text("doctor.opens", kind=kind, count=len(states), unknown=unknown))


def check_site(url: str) -> Iterator[Check]:
    """Check whether a page of the merchant sends its referrer to a payment form (§4)."""
    parts = parse_address(url)
    if parts is None or parts.scheme not in ("http", "https") or "@" in parts.netloc:
        yield Check("wrong", text("doctor.address"))
        return
    try:
        answer = asyncio.run(get(url))
    except Exception as error:
        yield Check("wrong", text("doctor.page", why=reason(describe_failure(error))))
        return
    if answer.status != 200:
        yield Check("note", text("doctor.status", status=answer.status))
    if (coding := answer.headers.get("Content-Encoding", "identity").strip().lower()) != "identity":
        yield Check("wrong", text("doctor.page", why=text("doctor.compressed", coding=coding)))
        return
    for finding in check_page(answer.headers.items(), answer.body.decode("utf-8", "replace")):
        yield Check("ok" if finding.good else "wrong", reason(finding.text))
    policy = answer.headers.get("Content-Security-Policy", "")
    if "-src" in policy and "'unsafe-inline'" not in policy:
        yield Check("note", text("doctor.policy"))


def check_profile(profile: ServiceProfile) -> Iterator[Check]:
    """Yield what the document leaves open (§4.2, §2.2, §2.3) and this profile leaves open too."""
    if (status := profile.status) is None:
        yield Check("gap", text("doctor.no_status"))
    else:
        missing = sorted({"Pendiente", "Aceptado", "Cancelado"} - {*status.states.values()})
        if not status.by_transaction_id:
            yield Check("gap", text("doctor.no_by_id"))
        if not status.by_client_transaction_id:
            yield Check("gap", text("doctor.no_by_client_id"))
        if missing:
            yield Check("gap", text("doctor.no_words", states=", ".join(missing)))
        if status.by_transaction_id and status.by_client_transaction_id and not missing:
            yield Check("ok", text("doctor.by_both"))
    if unset := [name for name in _NEEDED if getattr(profile, name) is None]:
        yield Check("note", text("doctor.unset", names=", ".join(unset)))
