"""`open_tracker`: a session, a ledger and a tracker over them, opened and closed together."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypedDict, Unpack
from urllib.parse import urlsplit

from payclient.auth import TokenSource, service_from_env
from payclient.clock import Clock, Timeouts, outlive, start
from payclient.errors import ConfigurationError
from payclient.ledger import open_ledger
from payclient.logs import tracker_log as log
from payclient.profile import DOCUMENT, ServiceProfile
from payclient.schedule import Schedule
from payclient.secret import Secret
from payclient.session import Exchange, PaySession
from payclient.tracking.followup import StatusSource
from payclient.tracking.tracker import Tracker
from payclient.transport import Connector
from payclient.validation import check_setting, is_loopback
from payclient.wire import Transport

__all__ = ["open_tracker", "open_tracker_from_env"]


@asynccontextmanager
async def open_tracker(
    base_url: str | None,
    token: TokenSource | Secret[TokenSource],
    *,
    ledger: str | Secret[str] = "memory:",
    create: bool = True,
    status: StatusSource | None = None,
    schedule: Schedule | None = None,
    clock: Clock | None = None,
    profile: ServiceProfile | str | os.PathLike[str] | None = DOCUMENT,
    timeouts: Timeouts | None = None,
    connector: Connector | None = None,
    proxy: str | Secret[str] | None = None,
    transport: Transport | None = None,
    on_exchange: Callable[[Exchange], object] | None = None,
    keep_links: bool = True,
    drain: float | None = None,
) -> AsyncIterator[Tracker]:
    """Open a session, a ledger and a tracker over them, and close all three.

    `base_url` None is the profile's. `ledger` is `memory:`, `sqlite:PATH` or `postgresql://USER@HOST/DATABASE`,
    which many processes may share. A ledger that is not there is made, with a warning in the log; with `create` False
    `LedgerMissingError` is raised instead. The other keywords are those of `PaySession` and `Tracker`.
    """
    # Error trackers record the local variables of a frame that raises.
    token, ledger = Secret.of(token), Secret.of(ledger)
    proxy = None if proxy is None else Secret.of(proxy)
    check_setting("create", create, bool, "True or False")
    session = PaySession(
        base_url,
        token,
        profile=profile,
        timeouts=timeouts,
        connector=connector,
        proxy=proxy,
        transport=transport,
        on_exchange=on_exchange,
    )
    if ledger.reveal() == "memory:" and not is_loopback(urlsplit(session.base_url).hostname or ""):
        words = (
            "the ledger is memory: and ends with this process: what it charged is forgotten, and the same request "
            'is charged again; use ledger="sqlite:PATH"'
        )
        log("warning", "ledger_in_memory", "", words)
    opened = AsyncExitStack()
    try:
        await opened.enter_async_context(session)
        book = await open_ledger(ledger, create=create)
        opened.push_async_callback(book.aclose)
        tracker = Tracker(
            session, book, status=status, schedule=schedule, clock=clock, keep_links=keep_links, drain=drain
        )
        yield await opened.enter_async_context(tracker)
    finally:
        # Closing goes on where its caller is cancelled meanwhile, as anyio cancels whatever is awaited.
        await outlive(start(opened.aclose()))


class TrackerOptions(TypedDict, total=False):
    """The keywords of `open_tracker` that no environment variable stands for."""

    create: bool
    status: StatusSource | None
    schedule: Schedule | None
    clock: Clock | None
    timeouts: Timeouts | None
    connector: Connector | None
    proxy: str | Secret[str] | None
    transport: Transport | None
    on_exchange: Callable[[Exchange], object] | None
    keep_links: bool
    drain: float | None


def open_tracker_from_env(
    environ: Mapping[str, str] | None = None,
    *,
    ledger: str | Secret[str] | None = None,
    profile: ServiceProfile | str | os.PathLike[str] | None = None,
    **options: Unpack[TrackerOptions],
) -> AbstractAsyncContextManager[Tracker]:
    """Do what `open_tracker` does, by `PAYCLIENT_BASE_URL`, `PAYCLIENT_TOKEN`, `PAYCLIENT_PROFILE`, `PAYCLIENT_LEDGER`.

    `environ` None is the process's own. `PAYCLIENT_TOKEN_FILE` names a file that holds the token, and is read again
    after a 401. A profile that names its service's address needs no `PAYCLIENT_BASE_URL`; without a profile it is
    `DOCUMENT`. An empty variable is not set. `ledger` and `profile` go before their variables. There is no default
    ledger: `memory:` must be written.

    Raises `ConfigurationError` that names the variable that is not set.
    """
    variables = Secret(os.environ if environ is None else environ)
    del environ  # as above: they are all that the process was given
    if (proxy := options.get("proxy")) is not None:
        options["proxy"] = proxy = Secret.of(proxy)
    ledger = Secret.of(ledger or variables.reveal().get("PAYCLIENT_LEDGER") or "")
    if not ledger.reveal():
        raise ConfigurationError(
            "PAYCLIENT_LEDGER is not set; set it to sqlite:PATH or postgresql://USER@HOST/DATABASE"
        )
    base_url, token, found = service_from_env(variables, profile)
    return open_tracker(base_url, token, ledger=ledger, profile=found, **options)
