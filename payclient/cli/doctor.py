"""`payclient doctor`: what would go wrong, said before it does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from payclient.cli import terminal
from payclient.cli.checkup import (
    Line,
    check_ledger,
    check_profile,
    check_reach,
    check_settings,
    check_site,
)
from payclient.cli.settings import BaseUrl, LedgerUrl, Profile, profile_of
from payclient.errors import ConfigurationError

__all__: list[str] = []

_COLOURS = {"ok": "green", "note": "dim", "gap": "yellow", "wrong": "bold red"}


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
    token = os.environ.get("PAYCLIENT_TOKEN")
    if site is None or base_url or token or ledger:
        settings = list(check_settings(base_url, token))
        levels += _show("settings", settings)
        if base_url and not any(
            line.text.startswith("base_url:") and line.level == "wrong" for line in settings
        ):
            levels += _show("network", check_reach(base_url))
        levels += _show("ledger", asyncio.run(check_ledger(ledger, base_url)))
        levels += _show("profile", _profile_lines(profile))
    if site is not None:
        levels += _show("site", check_site(site))
    return 4 if "wrong" in levels else 3 if "gap" in levels else 0


def _profile_lines(profile: str | None) -> list[Line]:
    try:
        found = profile_of(profile)
    except ConfigurationError as error:
        return [Line("wrong", str(error))]
    return [Line("ok", f"profile: {found.name}"), *check_profile(found)]


def _show(title: str, lines: Iterable[Line]) -> list[str]:
    """Print a section and give its levels."""
    out = terminal.out()
    out.print(f"[bold]{title}[/]")
    levels: list[str] = []
    for line in lines:
        out.print(f"  [{_COLOURS[line.level]}]{line.level:<5}[/] {escape(line.text)}")
        levels.append(line.level)
    return levels
