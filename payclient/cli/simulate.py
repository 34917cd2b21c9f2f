"""`payclient simulate`: the simulated service, until it is stopped."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.files import atomic_write
from payclient.cli.settings import Number, Profile, Whole, profile_of
from payclient.cli.signals import handled
from payclient.errors import ConfigurationError
from payclient.profile import DOCUMENT, ServiceProfile, StatusProfile
from payclient.simulator import PAYPHONE, SCENARIOS, Answers, Settings, Simulator
from payclient.simulator.scenarios import scenario as named
from payclient.validation import is_loopback

__all__: list[str] = []

#: The profile that names a whole service of the simulator's, which is more than a profile says of one.
PAYPHONE_NAME = "payphone"

#: Written for other programs where any token is taken.
ANY_TOKEN = "any"  # noqa: S105 - it is none

#: What is served for a profile that names no status query, and what the demo's own profile names.
STATUS = StatusProfile(
    by_transaction_id="/api/Sale/{transaction_id}",
    by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    state_field="transactionStatus",
)


def simulate(
    *,
    port: Annotated[int, Whole, Parameter(help="0 takes a free one.")] = 8700,
    host: Annotated[
        str, Parameter(help="Address to listen at. Whoever reaches it can answer for the customers.")
    ] = "127.0.0.1",
    token: Annotated[str | None, Parameter(help="The only token to take; without one any is taken.")] = None,
    account: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            help="NAME=TOKEN, as often as there are accounts: each token finds its own account's sales only.",
        ),
    ] = (),
    profile: Profile = None,
    sale_window: Annotated[
        float | None, Number, Parameter(help="Seconds until a push expires; the profile's, or 300.")
    ] = None,
    form_window: Annotated[
        float | None, Number, Parameter(help="Seconds that a form link lives; the profile's, or 600.")
    ] = None,
    confirm_window: Annotated[
        float | None,
        Number,
        Parameter(
            help="Seconds in which a paid form must be confirmed, where the service asks for it, or 300."
        ),
    ] = None,
    scenario: Annotated[
        str,
        Parameter(
            help="What the customers do and what goes wrong:\n\n"
            + "\n".join(f"- {name}: {one.says}" for name, one in SCENARIOS.items())
        ),
    ] = "everyday",
    answers: Annotated[
        str | None,
        Parameter(
            help="What the customers do instead, and how likely, such as approve=0.8,reject=0.1,ignore=0.1."
        ),
    ] = None,
    seed: Annotated[int, Whole, Parameter(help="Another seed, other answers and other faults.")] = 0,
    delay: Annotated[
        float | None, Number, Parameter(help="Seconds that half of the customers need, or less.")
    ] = None,
    ready_file: Annotated[
        Path | None,
        Parameter(help="Where to write url, token and pid as JSON once it listens; removed at the end."),
    ] = None,
) -> int:
    """Simulate the service on this machine, with a page to play with at its address. No real money moves."""
    try:
        chosen = named(scenario)
        crowd = chosen.answers
        if answers is not None:
            crowd = Answers.parse(answers, delay=(20.0, 0.6))
        if crowd is not None:
            crowd = attrs.evolve(crowd, seed=seed, delay=crowd.delay if delay is None else (delay, 0.6))
        settings = settings_for(
            profile, sale_window=sale_window, form_window=form_window, confirm_window=confirm_window
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if not 0 <= port <= 65535:
        raise ConfigurationError("--port: must be 0 to 65535")
    accounts = dict(_account(each) for each in account)
    if accounts and token is not None:
        raise ConfigurationError("--token: not with --account, which says the tokens")
    simulator = Simulator(
        host=host,
        port=port,
        token=token,
        accounts=accounts or None,
        settings=settings,
        answers=crowd,
        faults=attrs.evolve(chosen.faults, seed=seed),
        control=True,
    )
    return asyncio.run(_serve(simulator, host, ready_file, token or next(iter(accounts), ANY_TOKEN)))


def _account(text: str) -> tuple[str, str]:
    """Read `NAME=TOKEN` as a token and its account."""
    name, _, token = text.partition("=")
    if not name or not token.strip():
        raise ConfigurationError("--account: must be NAME=TOKEN, such as test=token-1")
    return token, name


@contextmanager
def _ready_file(path: Path | None, url: str, token: str) -> Iterator[None]:
    """While this lasts, a file tells another program where the service is. It is its owner's: it holds the token."""
    if path is None:
        yield
        return
    try:
        with atomic_write(path) as file:
            file.write(json.dumps({"url": url, "token": token, "pid": os.getpid()}).encode())
    except OSError as error:
        raise ConfigurationError(f"--ready-file: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


async def _serve(simulator: Simulator, host: str, ready_file: Path | None, token: str) -> int:
    stopped = asyncio.Event()
    ends = dict.fromkeys(("SIGINT", "SIGTERM", "SIGHUP"), stopped.set)
    try:
        with handled(ends):
            async with simulator:
                terminal.tell(f"listening on {simulator.url}")
                words = f"this simulates the service: no real money moves; play with it at {simulator.url}/"
                terminal.say(f"{words} ; Ctrl-C stops it")
                if not is_loopback(host):  # others than this machine may reach it
                    terminal.complain(
                        "--host: whoever reaches this address can answer for the customers and read the log"
                    )
                with _ready_file(ready_file, simulator.url, token):
                    await stopped.wait()
    except OSError as error:
        raise ConfigurationError(f"--host, --port: cannot listen: {error.strerror}") from None
    counts = simulator.counts
    terminal.say(
        f"{counts.created} sales: {counts.approved} approved, {counts.rejected} rejected, "
        f"{counts.expired} expired, {counts.pending} pending; {counts.refused} refused"
    )
    return 0


def settings_for(profile: str | None, **windows: float | None) -> Settings:
    """The simulated service of `--profile`, with what was told of its windows, in seconds."""
    given: dict[str, Any] = {name: seconds for name, seconds in windows.items() if seconds is not None}
    if profile == PAYPHONE_NAME:
        return attrs.evolve(PAYPHONE, **given)
    if "confirm_window" in given:
        raise ConfigurationError(f"--confirm-window: only with --profile {PAYPHONE_NAME}")
    return attrs.evolve(settings_of(profile_of(profile)), **given)


def settings_of(profile: ServiceProfile) -> Settings:
    """A simulated service that is what the profile says of it."""
    status = profile.status or (STATUS if profile is DOCUMENT else None)
    names = {state: word for word, state in (status.states if status else {}).items()}
    settings = Settings(
        sale_window=profile.sale_window,
        form_window=profile.form_window,
        nick_name_flag=profile.nick_name_flag,
        language_field=profile.language_field,
        wallet_link_field=profile.wallet_link_field or "payWithWallet",
        optional_fields=frozenset({"phoneNumber"} if profile.phone_optional_with_nick_name else ()),
        duplicate_code=min(profile.duplicate_codes, default=None),
        not_found=(404, min(profile.not_found_codes, default=20)),
    )
    if status is None:
        return settings
    return attrs.evolve(
        settings,
        status_by_transaction_id=status.by_transaction_id,
        status_by_client_transaction_id=status.by_client_transaction_id,
        state_field=status.state_field,
        state_words=names,
    )
