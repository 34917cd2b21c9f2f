"""`payclient simulate`: the simulated service, until it is stopped."""

import asyncio
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from payclient.cli import terminal
from payclient.cli.files import check_output, write_file
from payclient.cli.settings import Number, Profile, Whole
from payclient.cli.signals import handled
from payclient.cli.texts import text
from payclient.errors import ConfigurationError
from payclient.profile import DOCUMENT, ServiceProfile, StatusProfile, find_profile
from payclient.rows.format import pair_of
from payclient.simulator import PAYPHONE, SCENARIOS, Answers, Settings, Simulator
from payclient.validation import is_loopback

#: The token in the ready file, where the simulator takes any.
ANY_TOKEN = "any"  # noqa: S105 - no secret

#: The status queries that are served where no profile is given.
STATUS = StatusProfile(
    by_transaction_id="/api/Sale/{transaction_id}",
    by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
    state_field="transactionStatus",
)
_SCENARIOS = "\n".join(f"- {name}: {one.meaning}" for name, one in SCENARIOS.items())


def simulate(
    *,
    port: Annotated[int, Whole] = 8700,
    host: str = "127.0.0.1",
    token: str | None = None,
    account: tuple[str, ...] = (),
    profile: Profile = None,
    scenario: Annotated[
        str, Parameter(help=f"What the customers do and what goes wrong:\n\n{_SCENARIOS}")
    ] = "everyday",
    answers: str | None = None,
    seed: Annotated[int, Whole] = 0,
    sale_window: Annotated[float | None, Number] = None,
    form_window: Annotated[float | None, Number] = None,
    set_: tuple[str, ...] = (),
    time_of_day: str | None = None,
    ready_file: Path | None = None,
) -> None:
    """Simulate the service on this machine, with a page to play with at its address. No real money moves.

    :param port: 0 takes a free one.
    :param host: Address to listen at. Whoever reaches it can answer for the customers.
    :param token: The only token to take; without one any is taken.
    :param account: NAME=TOKEN, for each account: each token finds its own account's sales only.
    :param answers: The customers' answers, instead of the scenario's: approve=0.8,reject=0.1,ignore=0.1.
    :param seed: Another seed, other answers and other faults.
    :param sale_window: Seconds until a push expires. Default: the profile's.
    :param form_window: Seconds that a form link lives. Default: the profile's.
    :param set_: NAME=VALUE, for each setting of payclient.simulator.Settings: stores=S1,S2, application=WEB,
        registered_domains=shop.localhost, external_notification_url=http://shop.localhost:8000/told, least_amount=100,
        notification_names=id,clientTransactionId, cors=true, sale_window=30.
    :param time_of_day: The service's time when it starts, such as 19:59; noon unless given.
    :param ready_file: Where to write url, token and pid as JSON once it listens; removed at the end.
    """
    if not 0 <= port <= 65535:
        raise ConfigurationError("--port: must be 0 to 65535")
    if ready_file is not None:
        # One of its own may be left of a process that was killed; `mktemp` leaves an empty one.
        check_output("--ready-file", ready_file, mark=b'{"url": ')
    pairs = (pair_of("--account", each, "must be NAME=TOKEN, such as test=token-1") for each in account)
    accounts = {secret: name for name, secret in pairs}
    if accounts and token is not None:
        raise ConfigurationError("--token: must not be given with --account, which gives the tokens")
    try:
        simulator = Simulator.scenario(
            scenario, host=host, port=port, token=token, accounts=accounts or None, control=True,
            settings=_settings(profile, set_, sale_window=sale_window, form_window=form_window),
        )  # fmt: skip
        if answers is not None:
            simulator.answers = Answers.parse(answers)
        if time_of_day is not None:
            simulator.set_time_of_day(time_of_day)
        if simulator.answers is not None:
            simulator.answers = attrs.evolve(simulator.answers, seed=seed)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    simulator.faults.seed = seed
    asyncio.run(_serve(simulator, host, ready_file, token or next(iter(accounts), ANY_TOKEN)))


def _settings(profile: str | None, changes: tuple[str, ...], **windows: float | None) -> Settings:
    """Return the simulator's settings of a profile, with what the options change. Raises `ValueError`."""
    # The simulator has settings of its own for this service; a profile holds only a part of them.
    settings = PAYPHONE if profile == "payphone" else settings_of(find_profile(profile))
    # No id may occur again in a ledger that is used with a later simulator.
    settings = attrs.evolve(settings, first_id=time.time_ns() // 1000)
    given: dict[str, object] = {name: seconds for name, seconds in windows.items() if seconds is not None}
    for change in changes:
        name, value = pair_of("--set", change, "must be NAME=VALUE, such as stores=S1,S2")
        try:
            given[name] = json.loads(value)
        except ValueError:
            given[name] = value
    return settings.changed(given)


async def _serve(simulator: Simulator, host: str, ready_file: Path | None, token: str) -> None:
    stopped = asyncio.Event()
    try:
        with handled(stopped.set, stopped.set):
            async with simulator:
                ready = json.dumps({"url": simulator.url, "token": token, "pid": os.getpid()})
                terminal.print_result(text("simulate.listening", url=simulator.url))
                terminal.say(text("simulate.play", url=simulator.url))
                if not is_loopback(host):
                    terminal.complain(text("simulate.exposed"))
                with ExitStack() as stack:
                    if ready_file is not None:
                        write_file("--ready-file", ready_file, ready.encode())
                        stack.callback(ready_file.unlink, missing_ok=True)
                    await stopped.wait()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", "Invalid argument")
        raise ConfigurationError(f"--host, --port: cannot listen: {why}") from None


def settings_of(profile: ServiceProfile) -> Settings:
    """Return the settings of a simulated service that behaves as the profile describes."""
    alike = ("sale_window", "form_window", "nick_name_flag", "language_field")
    given: dict[str, Any] = {name: getattr(profile, name) for name in alike}
    if status := profile.status or (STATUS if profile is DOCUMENT else None):
        given |= {
            "status_by_transaction_id": status.by_transaction_id,
            "status_by_client_transaction_id": status.by_client_transaction_id,
            "state_field": status.state_field,
            "state_words": {state: word for word, state in status.states.items()},
        }
    paths: dict[str, str | None] = {}
    if confirm := profile.confirm:
        paths["confirm"] = confirm.path
        given["confirm_window"] = confirm.window
    for name, undo in (("cancel", profile.cancel), ("reverse", profile.reverse)):
        if undo is not None:
            paths |= {name: undo.by_transaction_id, f"{name}_by_client_id": undo.by_client_transaction_id}
    if back := profile.returned:
        given |= {
            "redirect_names": (back.transaction_id, back.client_transaction_id),
            "returns_without_payment": True,
        }
    return Settings(
        **given,
        paths={name: (path,) for name, path in paths.items() if path is not None},
        wallet_link_field=profile.wallet_link_field or "payWithWallet",
        optional_fields=frozenset({"phoneNumber"} if profile.phone_optional_with_nick_name else ()),
        duplicate_code=min(profile.duplicate_codes, default=None),
        not_found=(404, min(profile.not_found_codes, default=20)),
    )
