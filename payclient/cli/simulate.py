"""`payclient simulate`: the simulated service, until it is stopped."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.settings import Number, Profile, Whole, profile_of
from payclient.errors import ConfigurationError
from payclient.profile import DOCUMENT, ServiceProfile, StatusProfile
from payclient.simulator import PAYPHONE, Answers, Settings, Simulator

__all__: list[str] = []

#: The profile that names a whole service of the simulator's, which is more than a profile says of one.
PAYPHONE_NAME = "payphone"

#: What is served for a profile that names no status query, and what the demo's own profile names.
STATUS = StatusProfile(
    by_transaction_id="/api/Sale/{transaction_id}",
    by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    state_field="transactionStatus",
)


def simulate(
    *,
    port: Annotated[int, Whole, Parameter(help="0 takes a free one.")],
    token: Annotated[str | None, Parameter(help="The only token to take; without one any is taken.")] = None,
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
    answers: Annotated[
        str, Parameter(help="What the customers do, and how likely.")
    ] = "approve=0.8,reject=0.1,ignore=0.1",
    seed: Annotated[int, Whole, Parameter(help="Another seed, other answers.")] = 0,
    delay: Annotated[
        float, Number, Parameter(help="Seconds that half of the customers need, or less.")
    ] = 20.0,
) -> int:
    """Simulate the service on this machine. No real money moves."""
    try:
        crowd = Answers.parse(answers, delay=(delay, 0.6), seed=seed)
        settings = _settings(profile, sale_window, form_window, confirm_window)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    if not 0 <= port <= 65535:
        raise ConfigurationError("--port: must be 0 to 65535")
    return asyncio.run(_serve(Simulator(port=port, token=token, settings=settings, answers=crowd)))


async def _serve(simulator: Simulator) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with simulator:
            print(f"listening on {simulator.url}", flush=True)
            terminal.say("this simulates the service: no real money moves; Ctrl-C stops it")
            await stopped.wait()
    except OSError as error:
        raise ConfigurationError(f"--port: cannot listen: {error.strerror}") from None
    counts = simulator.counts
    terminal.say(
        f"{counts.created} sales: {counts.approved} approved, {counts.rejected} rejected, "
        f"{counts.expired} expired, {counts.pending} pending; {counts.refused} refused"
    )
    return 0


def _settings(
    profile: str | None, sale_window: float | None, form_window: float | None, confirm_window: float | None
) -> Settings:
    if profile != PAYPHONE_NAME:
        if confirm_window is not None:
            raise ConfigurationError(f"--confirm-window: only with --profile {PAYPHONE_NAME}")
        return settings_of(profile_of(profile), sale_window=sale_window, form_window=form_window)
    return attrs.evolve(
        PAYPHONE,
        sale_window=PAYPHONE.sale_window if sale_window is None else sale_window,
        form_window=PAYPHONE.form_window if form_window is None else form_window,
        confirm_window=PAYPHONE.confirm_window if confirm_window is None else confirm_window,
    )


def settings_of(
    profile: ServiceProfile, *, sale_window: float | None = None, form_window: float | None = None
) -> Settings:
    """A simulated service that is what the profile says of it."""
    status = profile.status or (STATUS if profile is DOCUMENT else None)
    names = {state: word for word, state in (status.states if status else {}).items()}
    settings = Settings(
        sale_window=profile.sale_window if sale_window is None else sale_window,
        form_window=profile.form_window if form_window is None else form_window,
        nick_name_flag=profile.nick_name_flag,
        language_field=profile.language_field,
        wallet_link_field=profile.wallet_link_field or "payWithWallet",
        phone_optional_by_nick_name=profile.phone_optional_with_nick_name,
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
