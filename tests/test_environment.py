"""Sessions and trackers by the environment's variables."""

import inspect
from pathlib import Path

import pytest

import payclient
import payclient.sync
from fake_service import sale
from payclient.simulator import PAYPHONE, Simulator
from payclient.tracking.context import TrackerOptions

TOKEN = "secret-of-the-environment"
ENVIRON = {
    "PAYCLIENT_BASE_URL": "https://pay.example",
    "PAYCLIENT_TOKEN": TOKEN,
    "PAYCLIENT_PROFILE": "payphone",
    "PAYCLIENT_LEDGER": "memory:",
}


async def test_a_tracker_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Address, token, profile and ledger are those of the process's environment."""
    async with Simulator(token=TOKEN, settings=PAYPHONE) as service:
        for name, value in (ENVIRON | {"PAYCLIENT_LEDGER": f"sqlite:{tmp_path}/a.db"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PAYCLIENT_BASE_URL", service.url)
        async with payclient.open_tracker_from_env() as tracker:
            assert tracker.profile is payclient.PAYPHONE
            assert (await tracker.sale(sale("order-1"))).state is payclient.State.PENDING
        assert (tmp_path / "a.db").exists()


async def test_the_token_of_a_file_is_read_again(tmp_path: Path) -> None:
    """After a 401 of a status query; it goes before PAYCLIENT_TOKEN."""
    file = tmp_path / "token"
    file.write_text("the-first\n", encoding="utf-8")
    async with Simulator(token="the-first", settings=PAYPHONE) as service:
        environ = ENVIRON | {"PAYCLIENT_BASE_URL": service.url, "PAYCLIENT_TOKEN_FILE": str(file)}
        async with payclient.open_tracker_from_env(environ) as tracker:
            pending = await tracker.sale(sale("order-1"))
            service.token = "the-second"
            file.write_text("the-second\n", encoding="utf-8")
            assert (await pending.check()).state is payclient.State.PENDING
            assert (await tracker.sale(sale("order-2", "0984111223"))).state is payclient.State.PENDING


def test_blocking_code_has_it_too() -> None:
    """The same settings without `await`; a fault comes when it is opened."""
    with (
        pytest.raises(payclient.ConfigurationError, match=r"^PAYCLIENT_TOKEN is not set"),
        payclient.sync.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN": ""}),
    ):
        pass


@pytest.mark.parametrize("name", ["PAYCLIENT_BASE_URL", "PAYCLIENT_TOKEN", "PAYCLIENT_LEDGER"])
@pytest.mark.parametrize("value", ["", None])
def test_a_variable_that_lacks_is_named(name: str, value: str | None) -> None:
    """Missing or empty, with no other's value shown; a ledger in memory must be written."""
    environ = {key: text for key, text in ENVIRON.items() if key != name} | (
        {} if value is None else {name: value}
    )
    environ["PAYCLIENT_PROFILE"] = "document"  # the preset has an address
    with pytest.raises(payclient.ConfigurationError, match=f"^{name} is not set") as caught:
        payclient.open_tracker_from_env(environ)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "Bearer x y"])
def test_a_token_file_that_holds_none(tmp_path: Path, content: str | None) -> None:
    """The file is named, its content is not shown."""
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(payclient.ConfigurationError, match=f"the token file {file}"):
        payclient.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN_FILE": str(file)})


@pytest.mark.parametrize("token", ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "c2Vj/cmV0", "x" * 300])
def test_a_token_in_the_place_of_its_file_is_not_shown(token: str) -> None:
    """Nobody has a file of that name."""
    with pytest.raises(
        payclient.ConfigurationError, match=r"^the token file \*\*\* cannot be read: "
    ) as caught:
        payclient.open_tracker_from_env(ENVIRON | {"PAYCLIENT_TOKEN_FILE": token})
    assert token[:4] not in str(caught.value)


async def test_options_go_before_the_variables() -> None:
    """A ledger and a profile that are given need no variable."""
    environ = {name: ENVIRON[name] for name in ("PAYCLIENT_BASE_URL", "PAYCLIENT_TOKEN")}
    async with payclient.open_tracker_from_env(environ, ledger="memory:", profile="payphone") as tracker:
        assert tracker.profile is payclient.PAYPHONE


def test_its_keywords_are_those_of_open_tracker() -> None:
    """And a misspelt one is refused."""
    theirs = list(inspect.signature(payclient.open_tracker).parameters)
    ours = [
        name for name in inspect.signature(payclient.open_tracker_from_env).parameters if name != "options"
    ]
    assert sorted([*TrackerOptions.__annotations__, *ours, "base_url", "token"]) == sorted(
        [*theirs, "environ"]
    )
    with pytest.raises(TypeError, match="ledgr"):
        payclient.open_tracker_from_env(ENVIRON, ledgr="memory:")  # type: ignore[call-arg]  # that is the point
