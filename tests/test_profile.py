"""The profile: what a concrete service adds to the document, and every way to get it wrong."""

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import payclient
from fake_service import Scripted, answer, refusal
from payclient.cli.settings import ServiceOptions
from payclient.errors import ConfigurationError
from payclient.profile import (
    DOCUMENT,
    PAYPHONE,
    PRESETS,
    ConfirmProfile,
    ReturnProfile,
    ServiceProfile,
    StatusProfile,
    UndoProfile,
    find_profile,
)
from payclient.session import PaySession
from payclient.wire import encode_prepare, encode_sale

COMPLETE = """
name = "shop"
base_url = "https://pay.example"
message_language = "es"
nick_name_flag = "byNickName"
phone_optional_with_nick_name = true
language_field = "lang"
wallet_link_field = "payWithBrand"
response_url_field = "ResponseUrl"
duplicate_codes = [23]
uncertain_codes = [500, 501]
not_found_codes = [20]
receipt_fields = ["authorizationCode", "message"]
queries_per_minute = 30
refusing_statuses = [429]
sale_window = 300
form_window = 600
absent_after = 600.5
link_hosts = ["pay.example"]
max_lengths = { client_transaction_id = 50 }
ranges = { amount = [100, 500_000], time_zone = [-12, 14] }
phone_shapes = { 593 = "0#########" }

[status]
by_transaction_id = "/api/Sale/{transaction_id}"
by_client_transaction_id = "/api/Sale/client/{client_transaction_id}"
state_field = "transactionStatus"
states = { Pending = "Pendiente", Approved = "Aceptado", Canceled = "Cancelado" }
code_field = "statusCode"
codes = { 1 = "Pendiente", 2 = "Cancelado", 3 = "Aceptado", -1 = "Cancelado" }

[confirm]
path = "/api/button/V2/Confirm"
transaction_id_field = "id"
client_transaction_id_field = "clientTxId"
window = 300

[cancel]
by_transaction_id = "/api/Cancel"
transaction_id_field = "id"
by_client_transaction_id = "/api/Cancel/Client"
client_transaction_id_field = "clientId"
too_late_codes = [25, 2029]

[reverse]
by_transaction_id = "/api/Reverse"
transaction_id_field = "id"

[returned]
transaction_id = "id"
client_transaction_id = "clientTransactionId"
message = "msg"
"""

STATUS: dict[str, Any] = {
    "by_transaction_id": "/s/{transaction_id}", "state_field": "state", "code_field": "code", "codes": {1: "Aceptado"},
}  # fmt: skip
CONFIRM: dict[str, Any] = {
    "path": "/c", "transaction_id_field": "id", "client_transaction_id_field": "clientTxId", "window": 300,
}  # fmt: skip
UNDO: dict[str, Any] = {"by_transaction_id": "/u", "transaction_id_field": "id"}
RETURNED: dict[str, Any] = {"transaction_id": "id", "client_transaction_id": "clientTransactionId"}
TABLES = {"status": STATUS, "confirm": CONFIRM, "cancel": UNDO, "reverse": UNDO, "returned": RETURNED}

NO_TEXTS: list[Any] = ["", 5]
NO_SECONDS: list[Any] = [0, -1, float("nan"), float("inf"), True, "300", [300], {}, 10**400, 2e9]
NO_NAMES: list[Any] = ["", "with blank", "a\n", "1a", 5, True, ["a"], "x" * 65, 'a"b']
NO_CODES: list[Any] = [23, "23", ["23"], [True], [2.0], [[23]], {"a": 1}, None]
NO_PATHS: list[Any] = [5, "", "c", "/c?x=1", "/c/{transaction_id}", "https://evil.example/c", "/c\n"]


def no_patterns(key: str, other: str) -> list[Any]:
    """What is no path with this one id in it."""
    return [
        "/s", f"s/{{{key}}}", f"/s/{{{other}}}", f"/s/{{{key}}}/{{{other}}}", f"/s/{{{key}}}?x=1", f"/s {{{key}}}",
        f"https://evil.example/{{{key}}}", f"/s/{{{key}}}#x", f"/s/{{{key}}}\n", 5, ["/s"], "",
    ]  # fmt: skip


#: By the setting's name what it must not be; in a table it stands beside all that the table needs.
WRONG: dict[str, list[Any]] = {
    "name": [*NO_TEXTS, None],
    "base_url": [*NO_TEXTS, ["https://pay.example"]],
    "message_language": [*NO_TEXTS, "es\r\nX: y", "a" * 200, "ñ"],
    "phone_optional_with_nick_name": ["yes", 1, None],
    "wallet_link_field": [*NO_NAMES, "walletLink", "payWithCard"],
    # A field that has another meaning already: the flag would be lost, and the phone's owner charged.
    "nick_name_flag": [*NO_NAMES, "nickName", "NickName", "amount"],
    "language_field": [*NO_NAMES, "currency"],
    "response_url_field": [*NO_NAMES, None, "cancellationUrl"],
    **dict.fromkeys(["form_window", "absent_after", "queries_per_minute"], NO_SECONDS),
    "sale_window": [*NO_SECONDS, None],
    **dict.fromkeys(["duplicate_codes", "uncertain_codes", "not_found_codes"], NO_CODES),
    "refusing_statuses": [*NO_CODES, *([each] for each in (200, 204, 99, 600, -1, 408, 425, 499))],
    "max_lengths": [5, "a", [50], *({"reference": each} for each in (0, "50", True)), {5: 5}, {"phone": 9}, {"tip": 5}],
    "ranges": [5, "a", [1], *({"tip": each} for each in (5, [1], [2, 1], [1, 2.0], "12", [True] * 2, [1, 2, 3])),
               {"total": [1, 2]}, {"reference": [1, 2]}, {"by_nick_name": [0, 1]}],
    "phone_shapes": [5, {"593": "0"}, {"593": 9}, {"a": "####"}],
    "link_hosts": ["pay.example", 5, [5], [""], {"a": 1}, ["https://pay.example"], ["pay.example:443"], ["p.example/"]],
    **{name: [5, "x", [1], True] for name in TABLES},
    "status.state_field": [*NO_TEXTS, None],
    "status.states": [{}, 5, "abc", ["Approved"], {"Approved": "Accepted"}, {"Approved": ["Aceptado"]}, {5: "x"}],
    "status.code_field": NO_TEXTS,
    "status.codes": [5, ["Aceptado"], {"three": "Aceptado"}, {"3": "Accepted"}, {3.0: "Aceptado"}, {True: "Aceptado"}],
    "status.by_transaction_id": no_patterns("transaction_id", "client_transaction_id"),
    "status.by_client_transaction_id": no_patterns("client_transaction_id", "transaction_id"),
    "confirm.path": [*NO_PATHS, None],
    "confirm.transaction_id_field": [*NO_NAMES, None],
    # The field of the other id: one of the two would be lost, and what is paid never confirmed.
    "confirm.client_transaction_id_field": [*NO_NAMES, None, "id", "ID"],
    "confirm.window": [*NO_SECONDS, None],
    **dict.fromkeys(["cancel.by_transaction_id", "reverse.by_transaction_id"], NO_PATHS),
    "cancel.transaction_id_field": [*NO_NAMES, None],
    "reverse.too_late_codes": NO_CODES,
    **dict.fromkeys([f"returned.{name}" for name in (*RETURNED, "message")], NO_NAMES),
}  # fmt: skip

#: What is wrong with what stands, or is missing, beside it.
INCOMPLETE: list[tuple[str, dict[str, Any]]] = [
    ("absent_after", {"absent_after": 299.9}), ("absent_after", {"sale_window": 60, "absent_after": 59}),
    ("status", {"status": {"state_field": "state"}}),
    ("status.state_field", {"status": {"by_transaction_id": "/s/{transaction_id}"}}),
    ("status.code_field", {"status": STATUS | {"codes": {}}}),
    ("status.code_field", {"status": STATUS | {"code_field": "state"}}),
    ("status.codes", {"status": STATUS | {"code_field": None}}),
    ("confirm", {"confirm": CONFIRM}), ("cancel", {"cancel": {}}), ("reverse", {"reverse": {}}),
    ("cancel.client_transaction_id_field", {"cancel": UNDO | {"by_client_transaction_id": "/u"}}),
    *((f"{table}.{name}", {table: {key: value for key, value in TABLES[table].items() if key != name}})
      for table in ("confirm", "returned") for name in TABLES[table]),
]  # fmt: skip


def settings_of(name: str, value: object) -> dict[str, Any]:
    table, _, inner = name.partition(".")
    return {table: TABLES[table] | {inner: value}} if inner else {name: value}


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "shop.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_document_has_only_what_the_document_shows() -> None:
    """§2.2, §2.3, §2.6, §4, §7.8: no names, paths, codes or limits; §8: five and ten minutes."""
    assert attrs.asdict(DOCUMENT, recurse=False) == {
        "name": "document", "base_url": None, "message_language": None,
        "nick_name_flag": None, "phone_optional_with_nick_name": False, "language_field": None,
        "wallet_link_field": None, "response_url_field": "responseUrl", "duplicate_codes": frozenset(),
        "uncertain_codes": frozenset(), "not_found_codes": frozenset(), "queries_per_minute": None,
        "refusing_statuses": frozenset(), "receipt_fields": (),
        "sale_window": 300.0, "form_window": 600.0, "absent_after": 600.0, "link_hosts": None, "max_lengths": {},
        "ranges": {}, "phone_shapes": {}, "status": None,
        "confirm": None, "cancel": None, "reverse": None, "returned": None,
    }  # fmt: skip
    # §3: whoever answers with the document's words needs no map.
    states = StatusProfile(by_transaction_id="/s/{transaction_id}", state_field="state").states
    assert states == {"Pendiente": "Pendiente", "Aceptado": "Aceptado", "Cancelado": "Cancelado"}
    # Absence is proven after twice the window: five minutes and as much for late processing.
    for window in (1, 2.5, 300, 3600):
        assert ServiceProfile(sale_window=window).absent_after == 2 * window
        assert ServiceProfile.parse({"sale_window": window}).absent_after == 2 * window
        assert ServiceProfile(sale_window=window, absent_after=window).absent_after == window


def as_toml(value: Any) -> Any:
    """A profile as its TOML has it, without what is left out."""
    value = attrs.asdict(value, recurse=False) if attrs.has(type(value)) else value
    if isinstance(value, Mapping):
        return {str(name): as_toml(each) for name, each in value.items() if each not in (None, frozenset())}
    return [as_toml(each) for each in sorted(value)] if isinstance(value, (tuple, frozenset)) else value


def test_a_complete_file_is_read(tmp_path: Path) -> None:
    """Every setting has a TOML form; a new one must be added to the example above."""
    for kind in (ServiceProfile, StatusProfile, ConfirmProfile, UndoProfile, ReturnProfile):
        for field in attrs.fields(kind):
            assert field.name in COMPLETE
    profile = ServiceProfile.load(write(tmp_path, COMPLETE))
    assert as_toml(profile) == tomllib.loads(COMPLETE)
    assert profile.status is not None
    assert profile.status.codes[3] == "Aceptado", "numbers, which are no keys in TOML"
    assert profile.status.codes[-1] == "Cancelado"
    assert profile.reverse == UndoProfile(by_transaction_id="/api/Reverse", transaction_id_field="id")


@pytest.mark.parametrize("named", sorted(WRONG.keys() | {name for name, _ in INCOMPLETE}))
def test_a_bad_setting_is_named(named: str) -> None:
    """Of a file and in Python, where a dict is not quietly taken for a table."""
    wrong = [settings_of(named, value) for value in WRONG.get(named, [])]
    for settings in (*wrong, *(each for name, each in INCOMPLETE if name == named)):
        with pytest.raises(ConfigurationError, match=rf"^profile setting {named}: "):
            ServiceProfile.parse(settings)
        with pytest.raises(ConfigurationError, match=rf"^profile setting {named.partition('.')[0]}: "):
            ServiceProfile(**settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"nickname_flag": "x"}, "nickname_flag"), ({"b": 1, "a": 1}, "a, b"),
     ({"cancel": {"path": "/"}}, r"cancel\.path; \[cancel\] takes by_transaction_id, .*, too_late_codes")],
)  # fmt: skip
def test_an_unknown_setting_is_named(settings: dict[str, Any], named: str) -> None:
    """A misspelt setting is not quietly left out, and a table says which it takes."""
    with pytest.raises(ConfigurationError, match=rf"^unknown profile setting {named}$"):
        ServiceProfile.parse(settings)


@given(st.sampled_from([field.name for field in attrs.fields(ServiceProfile)]), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
))  # fmt: skip
def test_whatever_a_setting_is_it_is_taken_or_named(name: str, value: object) -> None:
    """No value of TOML's kinds raises anything but `ConfigurationError`."""
    try:
        profile = ServiceProfile.parse({name: value})
    except ConfigurationError as error:
        assert name in str(error)  # noqa: PT017 - most values are refused, some are not
    else:
        assert isinstance(profile, ServiceProfile)


def test_a_profile_is_frozen() -> None:
    """Nor can its tables be changed from outside."""
    lengths = {"reference": 5}
    profile = ServiceProfile(max_lengths=lengths)
    lengths["reference"] = 6
    tables: Any = profile.max_lengths
    with pytest.raises(TypeError):
        tables["reference"] = 7
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        profile.name = "x"  # type: ignore[misc]  # frozen
    assert profile.max_lengths == {"reference": 5}


# --- Files and presets


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A path that leads to no TOML is a setting that is wrong; a pipe is not waited for."""
    os.mkfifo(pipe := tmp_path / "pipe.toml")
    for path, why in (
        (tmp_path / "none.toml", r"none\.toml cannot be read: No such file or directory$"),
        (tmp_path, r"cannot be read: must be a regular file, "), ("a\0b", r"cannot be read: ValueError$"),
        (pipe, r"pipe\.toml cannot be read: must be a regular file, "), ("/dev/zero", r"must be a regular file, "),
        (write(tmp_path, b"name = '\xff'"), r"cannot be read: UnicodeDecodeError$"),
    ):  # fmt: skip
        with pytest.raises(ConfigurationError, match=why):
            ServiceProfile.load(path)
    for text in ("name", "name = ", "[status", "name = 'a'\nname = 'b'", "\ufeffname = 'a'"):
        with pytest.raises(ConfigurationError, match=r"must be TOML: "):
            ServiceProfile.load(write(tmp_path, text))


def test_a_profile_is_found_by_itself_by_name_and_by_path(tmp_path: Path) -> None:
    """Everywhere a profile is taken, a preset's name or a path does; a slip of the pen is told the presets."""
    path = write(tmp_path, 'name = "shop"\nnick_name_flag = "byNickName"\n')
    shop = ServiceProfile.load(path)
    assert find_profile(shop) is shop
    assert find_profile(path) == find_profile(os.fspath(path)) == shop
    assert list(PRESETS) == [profile.name for profile in PRESETS.values()] == ["document", "payphone"]
    for name, profile in PRESETS.items():
        assert find_profile(name) is profile
        assert PaySession("https://pay.example", "token", profile=name).profile is profile
    with pytest.raises(ConfigurationError, match=r"directory; the presets are document, payphone$"):
        find_profile("payfone")
    with pytest.raises(ConfigurationError, match=r"^profile setting name: must be a text$"):
        find_profile(write(tmp_path, "name = 5"))


def test_a_preset_needs_no_address() -> None:
    """It knows its service's; another one, such as a simulator's, may be given."""
    real = "https://pay.payphonetodoesposible.com"
    assert PaySession(None, "token", profile="payphone").base_url == real
    assert PaySession("http://127.0.0.1:1", "token", profile="payphone").base_url == "http://127.0.0.1:1"
    environ = {"PAYCLIENT_TOKEN": "token", "PAYCLIENT_PROFILE": "payphone"}
    assert PaySession.from_env(environ).base_url == real
    assert ServiceOptions(profile="payphone").address() == real
    with pytest.raises(ConfigurationError, match=r"^base_url must be given"):
        PaySession(None, "token")


def sale(**fields: Any) -> dict[str, Any]:
    good: dict[str, Any] = {
        "country_code": "593", "currency": "USD", "client_transaction_id": "order-1", "amount_without_tax": 100,
    }  # fmt: skip
    request = payclient.SaleRequest(**good | fields)
    return json.loads(encode_sale(request, PAYPHONE).body)  # type: ignore[no-any-return]  # an object


def test_names_are_the_services() -> None:
    """A nick name without a phone; the language of a form."""
    assert sale(by_nick_name=True, nick_name="ann") == {
        "countryCode": "593", "currency": "USD", "clientTransactionId": "order-1", "amount": 100,
        "amountWithoutTax": 100, "chargeByNickName": True, "nickName": "ann",
    }  # fmt: skip
    request = payclient.PrepareRequest(
        currency="USD", client_transaction_id="form-1", store_id="S1", response_url="https://shop.example/back",
        amount_without_tax=100, language="en",
    )  # fmt: skip
    body = json.loads(encode_prepare(request, PAYPHONE).body)
    assert (body["lang"], body["responseUrl"]) == ("en", "https://shop.example/back")


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"amount_without_tax": 100_000_000}, "Amount"), ({"amount_without_tax": 0}, "Amount"),
        ({"tip": 100_000_000}, "tip"), ({"time_zone": -13}, "timeZone"), ({"time_zone": 15}, "timeZone"),
        ({"client_transaction_id": "x" * 51}, "clientTransactionId"), ({"reference": "x" * 101}, "reference"),
    ],
)  # fmt: skip
def test_lengths_and_ranges_are_checked_before_anything_is_sent(fields: dict[str, Any], name: str) -> None:
    """In the shape of the service's own code 800."""
    with pytest.raises(payclient.InvalidRequestError) as caught:
        sale(phone_number="0984111222", **fields)
    assert name in [detail.message for detail in caught.value.errors]


@pytest.mark.parametrize(
    ("word", "number", "state"),
    [("Pending", 1, "Pendiente"), ("Canceled", 2, "Cancelado"), ("Approved", 3, "Aceptado")],
)
async def test_state_words_numbers_and_paths_are_the_services(word: str, number: int, state: str) -> None:
    """An object by transaction id, an array by client transaction id; a number that says otherwise makes no state."""
    said = {"transactionId": 7, "clientTransactionId": "order-1", "transactionStatus": word}
    service = Scripted(
        *(answer(200, said | {"statusCode": code}) for code in (1, 2, 3)),
        answer(200, [said | {"statusCode": number}]),
        refusal(20, status=404),
    )
    async with PaySession(None, "token", profile="payphone", transport=service) as session:
        for code in (1, 2, 3):
            report = await session.status(transaction_id=7)
            assert report is not None
            assert report.state == (state if code == number else None)
        report = await session.status(client_transaction_id="order 1")
        assert report is not None
        assert report.state == state
        assert await session.status(client_transaction_id="form-1") is None, "an unpaid form"
    paths = [request.path for request in service.requests]
    assert paths[2:4] == ["/api/Sale/7", "/api/Sale/client/order%201"]
    assert service.requests[0].headers == {"Authorization": "Bearer token", "Accept-Language": "es"}
