"""The profile: what a concrete service adds to the document, and every way to get it wrong."""

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.errors import ConfigurationError
from payclient.profile import (
    DOCUMENT,
    ConfirmProfile,
    ReturnProfile,
    ServiceProfile,
    StatusProfile,
    UndoProfile,
)

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
reason_fields = ["message"]
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
codes = { 1 = "Pendiente", 2 = "Cancelado", 3 = "Aceptado" }

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
NO_SECONDS: list[Any] = [0, -1, float("nan"), float("inf"), True, "300", [300], {}, 10**400]
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
    **dict.fromkeys(["nick_name_flag", "language_field", "wallet_link_field"], NO_NAMES),
    "response_url_field": [*NO_NAMES, None],
    **dict.fromkeys(["form_window", "absent_after", "queries_per_minute"], NO_SECONDS),
    "sale_window": [*NO_SECONDS, None],
    **dict.fromkeys(["duplicate_codes", "uncertain_codes", "not_found_codes"], NO_CODES),
    "refusing_statuses": [*NO_CODES, *([each] for each in (200, 204, 99, 600, -1, 408, 425, 499))],
    "max_lengths": [5, "a", [50], {"a": 0}, {"a": "50"}, {"a": True}, {5: 5}, {"phone": 9}],
    "ranges": [5, "a", [1], {"a": 5}, {"a": [1]}, {"a": [2, 1]}, {"a": [1, 2.0]}, {"a": "12"}, {"a": [True] * 2},
               {"total": [1, 2]}],
    "phone_shapes": [5, {"593": "0"}, {"593": 9}, {"a": "####"}],
    "link_hosts": ["pay.example", 5, [5], [""], {"a": 1}],
    **{name: [5, "x", [1], True] for name in TABLES},
    "status.state_field": [*NO_TEXTS, None],
    "status.states": [{}, 5, "abc", ["Approved"], {"Approved": "Accepted"}, {"Approved": ["Aceptado"]}, {5: "x"}],
    "status.code_field": NO_TEXTS,
    "status.codes": [5, ["Aceptado"], {"three": "Aceptado"}, {"3": "Accepted"}, {3.0: "Aceptado"}, {True: "Aceptado"}],
    "status.by_transaction_id": no_patterns("transaction_id", "client_transaction_id"),
    "status.by_client_transaction_id": no_patterns("client_transaction_id", "transaction_id"),
    "confirm.path": [*NO_PATHS, None],
    **{f"confirm.{name}": [*NO_NAMES, None] for name in ("transaction_id_field", "client_transaction_id_field")},
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
        "refusing_statuses": frozenset(), "receipt_fields": (), "reason_fields": (),
        "sale_window": 300.0, "form_window": 600.0, "absent_after": 600.0, "link_hosts": None, "max_lengths": {},
        "ranges": {}, "phone_shapes": {}, "status": None,
        "confirm": None, "cancel": None, "reverse": None, "returned": None,
    }  # fmt: skip


def test_a_complete_file_is_read(tmp_path: Path) -> None:
    """Every setting has a TOML form."""
    assert ServiceProfile.load(write(tmp_path, COMPLETE)) == ServiceProfile(
        name="shop", base_url="https://pay.example", message_language="es", nick_name_flag="byNickName",
        phone_optional_with_nick_name=True, language_field="lang", wallet_link_field="payWithBrand",
        response_url_field="ResponseUrl", duplicate_codes=frozenset({23}), uncertain_codes=frozenset({500, 501}),
        not_found_codes=frozenset({20}), receipt_fields=("authorizationCode", "message"), reason_fields=("message",),
        queries_per_minute=30, refusing_statuses=frozenset({429}), sale_window=300, form_window=600, absent_after=600.5,
        link_hosts=frozenset({"pay.example"}), max_lengths={"client_transaction_id": 50},
        ranges={"amount": (100, 500_000), "time_zone": (-12, 14)}, phone_shapes={"593": "0#########"},
        status=StatusProfile(
            by_transaction_id="/api/Sale/{transaction_id}",
            by_client_transaction_id="/api/Sale/client/{client_transaction_id}",
            state_field="transactionStatus", code_field="statusCode",
            states={"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"},
            codes={1: "Pendiente", 2: "Cancelado", 3: "Aceptado"},
        ),
        confirm=ConfirmProfile(
            path="/api/button/V2/Confirm", transaction_id_field="id", client_transaction_id_field="clientTxId",
            window=300,
        ),
        cancel=UndoProfile(
            by_transaction_id="/api/Cancel", transaction_id_field="id", by_client_transaction_id="/api/Cancel/Client",
            client_transaction_id_field="clientId", too_late_codes=frozenset({25, 2029}),
        ),
        reverse=UndoProfile(by_transaction_id="/api/Reverse", transaction_id_field="id"),
        returned=ReturnProfile(transaction_id="id", client_transaction_id="clientTransactionId", message="msg"),
    )  # fmt: skip


def test_the_complete_file_is_complete() -> None:
    """A new setting must be added to the example above."""
    for kind in (ServiceProfile, StatusProfile, ConfirmProfile, UndoProfile, ReturnProfile):
        for field in attrs.fields(kind):
            assert field.name in COMPLETE


@pytest.mark.parametrize("named", sorted(WRONG.keys() | {name for name, _ in INCOMPLETE}))
def test_a_bad_setting_is_named(named: str) -> None:
    """Of a file and in Python, where a dict is not quietly taken for a table."""
    wrong = [settings_of(named, value) for value in WRONG.get(named, [])]
    for settings in (*wrong, *(each for name, each in INCOMPLETE if name == named)):
        with pytest.raises(ConfigurationError, match=rf"^profile setting {named}: "):
            ServiceProfile.parse(settings)
        with pytest.raises(ConfigurationError, match=rf"^profile setting {named.partition('.')[0]}: "):
            ServiceProfile(**settings)


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


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"nickname_flag": "x"}, "nickname_flag"), ({"b": 1, "a": 1}, "a, b"),
    ({"status": STATUS | {"state": 1}}, "status.state")],
)  # fmt: skip
def test_an_unknown_setting_is_named(settings: dict[str, Any], named: str) -> None:
    """A misspelt setting is not quietly left out."""
    with pytest.raises(ConfigurationError, match=rf"^unknown profile setting {named}$"):
        ServiceProfile.parse(settings)


@pytest.mark.parametrize("window", [1, 2.5, 300, 3600])
def test_absence_is_proven_after_twice_the_sale_window(window: float) -> None:
    """Five minutes and as much for late processing, whatever the window is."""
    assert ServiceProfile(sale_window=window).absent_after == 2 * window
    assert ServiceProfile.parse({"sale_window": window}).absent_after == 2 * window
    assert ServiceProfile(sale_window=window, absent_after=window).absent_after == window


def test_states_default_to_the_documents_words() -> None:
    """§3: whoever answers with the document's words needs no map."""
    states = StatusProfile(by_transaction_id="/s/{transaction_id}", state_field="state").states
    assert states == {"Pendiente": "Pendiente", "Aceptado": "Aceptado", "Cancelado": "Cancelado"}


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


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """A path that cannot be read is a setting that is wrong."""
    with pytest.raises(ConfigurationError, match=r"none\.toml cannot be read: FileNotFoundError$"):
        ServiceProfile.load(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match=r"cannot be read: IsADirectoryError$"):
        ServiceProfile.load(tmp_path)
    with pytest.raises(ConfigurationError, match=r"cannot be read: ValueError$"):
        ServiceProfile.load("a\0b")
    with pytest.raises(ConfigurationError, match=r"cannot be read: UnicodeDecodeError$"):
        ServiceProfile.load(write(tmp_path, b"name = '\xff'"))


@pytest.mark.parametrize("text", ["name", "name = ", "[status", "name = 'a'\nname = 'b'", "\ufeffname = 'a'"])
def test_bad_toml_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be TOML: "):
        ServiceProfile.load(write(tmp_path, text))
