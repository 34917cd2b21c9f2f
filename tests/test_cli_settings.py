"""`payclient.toml`: where it is found, what wins over it, and what it must not hold."""

import codecs
import errno
import os
import re
from pathlib import Path

import attrs
import pytest

from cli_runs import TOKEN, Said, Service, rows_of, write_csv
from payclient import DOCUMENT, PAYPHONE
from payclient.cli import main
from payclient.cli.configuration import SETTINGS
from payclient.cli.settings import ChargeOptions, Limits, location_of
from payclient.schedule import FINAL_QUERY_DELAYS

pytestmark = pytest.mark.usefixtures("clean_environment")


@pytest.fixture
def shop(willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of settings and one of charges, the token in a file of its own."""
    monkeypatch.delenv("PAYCLIENT_TOKEN")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "token.txt").write_text(TOKEN)
    (shop / "payclient.toml").write_text(
        f'base_url = "{willing.url}"\nprofile = "{willing.profile}"\nledger = "sqlite:cobros.db"\n'
        'token_file = "token.txt"\namounts = "decimal"\n'
        '[batch.rent]\nkey = "clave"\nmap = { phone_number = "telefono", amount_with_tax = "valor" }\n'
        'set = { country_code = 593, currency = "USD" }\nignore_rest = true\n'
        '[batch.other]\nledger = "sqlite:other.db"\n'
    )
    (shop / "rent.csv").write_text("clave;telefono;valor;casa\nrent-1;0977000001;25,00;A\n")
    return shop


def test_a_file_beside_the_charges_has_all_settings(
    shop: Path, willing: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """Its paths are those beside it, wherever the command runs; every other command finds the same ledger."""
    monkeypatch.chdir(tmp_path)
    assert main(["charge", "shop/rent.csv", "--batch", "rent", "--yes", "--new-ledger"]) == 0
    assert (shop / "cobros.db").exists()
    assert "rent-1" in willing.truth("rent-")
    capfd.readouterr()
    monkeypatch.chdir(shop)
    assert main(["ledger", "list"]) == 0
    assert main(["status", "--client-transaction-id", "rent-1"]) == 0
    assert main(["--config", "payclient.toml", "--batch", "other", "doctor"]) == 0
    out = capfd.readouterr().out
    assert f"ledger: sqlite:{shop / 'other.db'}, from {Path('payclient.toml').absolute()}" in out
    assert f"amounts: decimal, from {Path('payclient.toml').absolute()}" in out
    assert TOKEN not in out


def test_files_may_begin_with_a_byte_order_mark(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """As an editor of Windows saves UTF-8: the settings, the token and the charges."""
    for path in shop.iterdir():
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    monkeypatch.chdir(shop)
    assert main(["doctor"]) == 0
    assert f"token: {len(TOKEN)} characters, from" in capfd.readouterr().out
    assert main(["charge", "rent.csv", "--batch", "rent", "--dry-run"]) == 0


def test_options_and_the_environment_win(shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """And doctor says where each value is from."""
    monkeypatch.chdir(shop)
    monkeypatch.setenv("PAYCLIENT_LEDGER", "memory:")
    assert main(["doctor", "--profile", "payphone"]) == 0
    out = capfd.readouterr().out
    assert "ledger: memory:, from PAYCLIENT_LEDGER" in out
    assert "profile: payphone, from --profile" in out
    assert f"from {shop / 'payclient.toml'}" in next(line for line in out.splitlines() if "base_url" in line)
    assert f"token: {len(TOKEN)} characters, from {shop / 'payclient.toml'}" in out


def test_an_empty_variable_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """As a container's settings leave it, where the token is in the other variable, or in none."""
    file = write_csv(tmp_path / "rent.csv", rows_of("rent", 1))
    monkeypatch.chdir(tmp_path)
    for name, value in (("TOKEN_FILE", ""), ("TOKEN", TOKEN)):
        monkeypatch.setenv(f"PAYCLIENT_{name}", value)
    main(["doctor", "--base-url", "http://127.0.0.1:1"])
    assert f"token: {len(TOKEN)} characters, from PAYCLIENT_TOKEN, " in " ".join(
        capfd.readouterr().out.split()
    )
    monkeypatch.setenv("PAYCLIENT_TOKEN", "")
    assert main(["charge", str(file), "--dry-run", "--profile", "payphone"]) == 0
    # As an option it is a script's variable that is not set: the preset's address is the real service's.
    assert main(["charge", str(file), "--dry-run", "--profile", "payphone", "--base-url", ""]) == 2
    assert "--base-url: must not be empty" in capfd.readouterr().err


def test_an_empty_profile_of_the_simulator(monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """A variable without a value is not set; an option without one is a fault."""
    monkeypatch.setenv("PAYCLIENT_PROFILE", "")
    assert main(["simulate", "--time-of-day", "99"]) == 2
    assert "must be HH:MM" in capfd.readouterr().err
    assert main(["simulate", "--profile="]) == 2
    assert "--profile: must not be empty" in capfd.readouterr().err


@pytest.mark.parametrize(
    "pairs",
    ['{ phone_number = "telefono", reference = "nota" }', '["phone_number=telefono", "reference=nota"]'],
)
def test_a_pair_replaces_its_own_field_only(
    shop: Path, pairs: str, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """An option over the file, and a section over what stands above it; in either spelling. What is kept is read."""
    monkeypatch.chdir(shop)
    settings = shop / "payclient.toml"
    above = f'map = {pairs}\nreport = "rent.xlsx"\nkeep = ["casa"]\n'
    settings.write_text(above + settings.read_text())
    (shop / "rent.csv").write_text("clave;celular;valor;nota;casa\npair-1;0977000001;25,00;A;B\n")
    arguments = ["charge", "rent.csv", "--batch", "rent", "--dry-run", "--map"]
    assert main([*arguments, "phoneNumber=celular", "--set", "store_id=S1"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert "USD 25.00" in out
    assert "not read" not in out
    assert main([*arguments, "phone_number=celular", "--map", "amount_with_tax=monto"]) == 2
    assert "--map amount_with_tax names the column monto" in capfd.readouterr().err


def test_home_comes_last(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """It is read where neither the charges nor the working directory have a file."""
    place = tmp_path / "config" / "payclient"
    place.mkdir(parents=True)
    (shop / "payclient.toml").rename(place / "payclient.toml")
    (shop / "token.txt").rename(place / "token.txt")
    monkeypatch.chdir(tmp_path)
    assert main(["charge", "shop/rent.csv", "--batch", "rent", "--dry-run"]) == 0
    assert str(place / "cobros.db") in capfd.readouterr().out.replace("\n", "").replace(" ", "")
    (shop / "payclient.toml").write_text('ledger = "sqlite:mine.db"\n')
    assert main(["charge", "shop/rent.csv", "--batch", "rent", "--dry-run"]) == 2
    assert "must have a section [batch.rent]" in capfd.readouterr().err


def test_a_place_that_cannot_be_looked_at_is_named(monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """As `~/.config` under `sudo -u shop`, where HOME is still root's."""

    def locked(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", locked)
    assert main(["ledger", "list", "--ledger", "sqlite:l.db"]) == 2
    assert "payclient.toml: PermissionError: Permission denied" in capfd.readouterr().err


def test_anothers_file_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """In a directory like /tmp anybody may name the address to which the token is sent. `--config` trusts it."""
    settings, file = tmp_path / "payclient.toml", write_csv(tmp_path / "charges.csv", rows_of("foreign", 1))
    settings.write_text('base_url = "https://evil.example"')
    if os.geteuid() == 0:
        os.chown(settings, 4711, -1)
    monkeypatch.setattr("os.geteuid", lambda: 4712)
    arguments = ["charge", str(file), "--dry-run"]
    assert main(arguments) == 2
    assert "belongs to another user" in capfd.readouterr().err
    assert main([*arguments, "--config", str(settings)]) == 0
    monkeypatch.setattr("os.geteuid", lambda: settings.stat().st_uid)
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('token = "geheim-17"', "a token must not stand here"),
        ('[batch.rent]\nPAYCLIENT_TOKEN = "geheim-17"', "a token must not"),
        ('leger = "sqlite:a.db"', "leger: a setting must be one of"), ("batch = 5", "must have a section [batch.NAME]"),
        ("batch.rent = 5", "must have a section [batch.NAME]"),
        ("map = [5]", "--map: must be FIELD=COLUMN"), ("map = 5", "--map: must be FIELD=COLUMN"),
        ("amounts = ", "must be TOML in UTF-8"), ('profile = ["a.toml"]', "cannot be read"),
        ('amounts = "euros"', "euros"), ("yes = true", "yes: a setting must be"),
        ("max_pending = 0", "[max_pending] provided by"), (None, "cannot be read: No such file"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(tmp_path: Path, content: str | None, said: str, capfd: Said) -> None:
    """In one line, and the token that stands there is not repeated."""
    settings = tmp_path / "settings.toml"
    if content is not None:
        settings.write_text(content)
    file = write_csv(tmp_path / "charges.csv", rows_of("bad", 1))
    more = ["--map", "reference=nota"] if said.startswith("--map") else []
    assert main(["charge", str(file), "--config", str(settings), "--dry-run", *more]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert "geheim" not in err
    assert err.count("\n") == 1


def test_every_setting_is_an_option_of_charge(capfd: Said) -> None:
    """What a person has to agree to each time is not one of them."""
    assert main(["charge", "--help"]) == 0
    options = set(re.findall(r"--([a-z-]+)", capfd.readouterr().out))
    assert {name.replace("_", "-") for name in SETTINGS} <= options
    assert {"yes", "new_ledger", "skip_bad", "config"}.isdisjoint(SETTINGS)


def test_the_file_beside_the_charges_comes_first(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """Another shop's may be in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "payclient.toml").write_text('ledger = "sqlite:other.db"\n')
    assert main(["charge", "shop/rent.csv", "--batch", "rent", "--dry-run"]) == 0
    assert str(shop / "cobros.db") in capfd.readouterr().out.replace("\n", "").replace(" ", "")


def test_a_batch_of_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Its columns, and its ledger, would be the usual ones."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = write_csv(tmp_path / "charges.csv", rows_of("batch", 1))
    assert main(["charge", str(file), "--batch", "rent", "--dry-run"]) == 2
    assert "--batch rent: no payclient.toml was found; nothing was sent" in capfd.readouterr().err


def test_a_rate_of_none_is_no_rate(tmp_path: Path, capfd: Said) -> None:
    """Nothing would ever be sent."""
    file = write_csv(tmp_path / "charges.csv", rows_of("rate", 1))
    for rate in ("0", "0." + "0" * 200 + "1", "1e9", "1_0", "nan"):
        assert main(["charge", str(file), "--dry-run", "--rate", rate]) == 2
        assert "--rate" in capfd.readouterr().err


def test_a_token_that_cannot_be_is_found_by_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said
) -> None:
    """It is given; that there is none is said in the plan. A file is read instead of the variable."""
    file = write_csv(tmp_path / "charges.csv", rows_of("token", 1))
    monkeypatch.setenv("PAYCLIENT_TOKEN", "<ACCESS_TOKEN>")
    assert main(["charge", str(file), "--dry-run"]) == 2
    assert "token must be your own" in capfd.readouterr().err
    (token := tmp_path / "token.txt").write_text("good")
    assert main(["charge", str(file), "--dry-run", "--token-file", str(token)]) == 0
    token.write_text("two words")
    monkeypatch.setenv("PAYCLIENT_TOKEN", "good")
    assert main(["charge", str(file), "--dry-run", "--token-file", str(token)]) == 2


@pytest.mark.parametrize(
    ("ledger", "shown"),
    [
        ("sqlite:charges.db", f"sqlite:{Path.cwd() / 'charges.db'}"),
        ("postgresql://shop:geheim@db/shop", "postgresql://shop:***@db/shop"),
        ("postgres:shop:geheim@db/shop", "***@db/shop"), ("postgresql:/shop:gehe@im@db/shop", "***@db/shop"),
        ("sqlite:/x/charges.db", "sqlite:/x/charges.db"), ("memory:", "memory:"), (None, ""),
    ],
)  # fmt: skip
def test_a_ledgers_address_is_shown_without_its_password(ledger: str | None, shown: str) -> None:
    """Also where it is misspelled, and not by the options either."""
    assert location_of(ledger) == shown
    assert "geheim" not in repr(ChargeOptions(ledger=ledger))


def test_the_simulator_is_no_shop(shop: Path, monkeypatch: pytest.MonkeyPatch, capfd: Said) -> None:
    """Its options of the same names mean something else."""
    monkeypatch.chdir(shop)
    (shop / "payclient.toml").write_text("set = { currency = 'USD' }\n")
    assert main(["simulate", "--port", "99999"]) == 2
    assert "--port: must be 0 to 65535" in capfd.readouterr().err


def test_a_run_lasts_as_long_as_its_customers_are_busy() -> None:
    """The next row of a customer is sent once the request before it has expired, however short the wait is."""
    assert Limits(wait=2.0).longest(DOCUMENT, 3, 3) > 600
    assert Limits(wait=2.0).longest(DOCUMENT, 3, 1) < 10
    assert Limits().longest(PAYPHONE, 1, 1) > 300 + sum(FINAL_QUERY_DELAYS)
    assert Limits().longest(attrs.evolve(PAYPHONE, sale_window=3.0), 1, 1) < 10
    assert Limits(wait=9e4).longest(DOCUMENT, 3, 3) == Limits().longest(DOCUMENT, 3, 3), (
        "a sale ends before that"
    )
