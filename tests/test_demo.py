"""`payclient demo`, as a newcomer runs it."""

import csv
import os
import re
from collections import Counter
from pathlib import Path

import attrs
import pytest

from cli_runs import Said
from manual_clock import ManualClock
from payclient.cli import main
from payclient.cli.simulate import STATUS, settings_of
from payclient.models import SaleRequest
from payclient.profile import DOCUMENT, ServiceProfile, StatusProfile
from payclient.session import PaySession
from payclient.simulator import Simulator

ROOT = Path(__file__).parents[1]


def test_the_demo_agrees_with_what_the_simulator_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """Without any settings: exit 0, all four outcomes, and every count equal."""
    for name in [name for name in os.environ if name.startswith("PAYCLIENT_")]:
        monkeypatch.delenv(name)
    directory = tmp_path / "demo"
    assert main(["demo", "--dir", str(directory)]) == 0
    out, err = capfd.readouterr()
    pairs = re.findall(r"(accepted|cancelled|expired|refused) +(\d+) +(\d+) \w+ +equal", out)
    said = {label: int(count) for label, count, _ in pairs}
    assert [count for _, count, _ in pairs] == [count for _, _, count in pairs]
    assert sum(said.values()) == 200
    assert all(said[label] > 0 for label in ("accepted", "cancelled", "expired", "refused"))
    assert "nobody was charged twice" in out
    with (directory / "report.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert Counter(line["state"] for line in lines) == said
    assert {(line["state"], line["paid"]) for line in lines} == {
        ("accepted", "true"), ("cancelled", "false"), ("refused", "false"), ("expired", ""),
    }  # fmt: skip
    assert not re.search("Traceback|warning", err)
    # Its simulator has ended: the same command begins anew.
    assert "payclient demo" not in out + err
    assert f"nothing is to do for the {said['expired']} rows expired" in err
    assert "0943464097" not in out + err
    assert main(["demo", "--dir", str(directory)]) == 2
    assert "is there already" in capfd.readouterr().err


async def test_a_service_may_forget_expired_transactions() -> None:
    """Then a query by either id answers the not-found error object, and others are found as ever."""
    clock = ManualClock()
    settings = attrs.evolve(settings_of(DOCUMENT), sale_window=3, forgets_expired=True)
    async with (
        Simulator(settings=settings, clock=clock) as simulator,
        PaySession(
            simulator.url, "any", profile=ServiceProfile(status=STATUS, not_found_codes={20})
        ) as session,
    ):
        ids = []
        for key in ("order-0", "order-1"):
            request = SaleRequest(
                phone_number=f"099{key[-1]}", country_code="593", currency="USD", amount_with_tax=100,
                client_transaction_id=key,
            )  # fmt: skip
            ids.append((await session.sale(request)).transaction_id)
        await simulator.approve(ids[0])
        await clock.advance(4)
        for number, found in ((0, True), (1, False)):
            by_id = await session.status(transaction_id=ids[number])
            by_client_id = await session.status(client_transaction_id=f"order-{number}")
            assert (by_id is not None) is (by_client_id is not None) is found


def test_a_simulated_service_speaks_a_profiles_words() -> None:
    """What `simulate --profile` serves: paths, field, words, codes and windows."""
    profile = ServiceProfile(
        name="shop", nick_name_flag="byUser", duplicate_codes={23}, not_found_codes={44}, sale_window=7, form_window=8,
        status=StatusProfile(
            by_transaction_id="/v1/{transaction_id}", state_field="status", states={"Paid": "Aceptado"},
        ),
    )  # fmt: skip
    settings = settings_of(profile)
    assert settings.status_by_transaction_id == "/v1/{transaction_id}"
    assert settings.status_by_client_transaction_id is None
    assert (settings.state_field, dict(settings.state_words)) == ("status", {"Aceptado": "Paid"})
    assert (settings.nick_name_flag, settings.duplicate_code, settings.not_found) == ("byUser", 23, (404, 44))
    assert (settings.sale_window, settings.form_window) == (7, 8)
    assert settings_of(ServiceProfile(name="other")).status_by_transaction_id is None
