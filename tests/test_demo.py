"""`payclient demo`, as a newcomer runs it."""

import csv
import os
import re
from collections import Counter
from pathlib import Path

import attrs
import pytest

from cli_runs import Said
from payclient import PAYPHONE, simulator
from payclient.cli import main
from payclient.cli.simulate import settings_of
from payclient.profile import ServiceProfile, StatusProfile

ROOT = Path(__file__).parents[1]


def test_the_demo_agrees_with_what_the_simulator_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """Without any settings: exit 0, all four outcomes, and every count equal."""
    for name in [name for name in os.environ if name.startswith("PAYCLIENT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["demo"]) == 0
    (directory,) = tmp_path.glob("payclient-demo-*")
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


def test_a_simulated_service_has_what_a_profile_confirms_and_gives_back() -> None:
    """A copy of the preset, as somebody has who changed a line of it, is served as the preset is."""
    served, preset = settings_of(attrs.evolve(PAYPHONE, name="copy")), simulator.PAYPHONE
    assert (served.confirm_window, served.redirect_names) == (preset.confirm_window, preset.redirect_names)
    assert served.returns_without_payment
    for operation in ("confirm", "cancel", "cancel_by_client_id", "reverse", "reverse_by_client_id"):
        assert served.paths[operation] == preset.paths[operation][:1]
