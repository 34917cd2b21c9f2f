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

[max_lengths]
client_transaction_id = 50

[ranges]
amount = [100, 500_000]
time_zone = [-12, 14]

[phone_shapes]
593 = "0#########"

[status]
by_transaction_id = "/api/Sale/{transaction_id}"
by_client_transaction_id = "/api/Sale/client/{client_transaction_id}"
state_field = "transactionStatus"
code_field = "statusCode"

[status.states]
Pending = "Pendiente"
Approved = "Aceptado"
Canceled = "Cancelado"

[status.codes]
1 = "Pendiente"
2 = "Cancelado"
3 = "Aceptado"

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

STATUS: dict[str, Any] = {"by_transaction_id": "/s/{transaction_id}", "state_field": "state"}
CONFIRM: dict[str, Any] = {
    "path": "/c", "transaction_id_field": "id", "client_transaction_id_field": "clientTxId", "window": 300,
}  # fmt: skip
UNDO: dict[str, Any] = {"by_transaction_id": "/u", "transaction_id_field": "id"}
RETURNED: dict[str, Any] = {"transaction_id": "id", "client_transaction_id": "clientTransactionId"}

NO_SECONDS: list[Any] = [0, -1, float("nan"), float("inf"), True, "300", [300], {}, 10**400]
NO_NAMES: list[Any] = ["", "with blank", "a\n", "1a", 5, True, ["a"], "x" * 65, 'a"b']

BAD: list[tuple[dict[str, Any], str]] = [
    *(({"name": value}, "name") for value in ("", 5, None)),
    *(
        ({name: value}, name)
        for name in ("nick_name_flag", "language_field", "wallet_link_field", "response_url_field")
        for value in NO_NAMES
    ),
    ({"response_url_field": None}, "response_url_field"),
    *(
        ({name: value}, name)
        for name in ("sale_window", "form_window", "absent_after", "queries_per_minute")
        for value in NO_SECONDS
    ),
    ({"sale_window": None}, "sale_window"),
    *(
        ({name: value}, name)
        for name in ("duplicate_codes", "uncertain_codes", "not_found_codes", "refusing_statuses")
        for value in (23, "23", ["23"], [True], [2.0], [[23]], {"a": 1}, None)
    ),
    *(({"refusing_statuses": [value]}, "refusing_statuses") for value in (200, 204, 99, 600, -1, 408, 425, 499)),
    ({"absent_after": 299.9}, "absent_after"), ({"sale_window": 60, "absent_after": 59}, "absent_after"),
    *(({"max_lengths": value}, "max_lengths") for value in (5, "a", [50], {"a": 0}, {"a": "50"}, {"a": True}, {5: 5})),
    *(
        ({"ranges": value}, "ranges")
        for value in (5, "a", [1], {"a": 5}, {"a": [1]}, {"a": [2, 1]}, {"a": [1, 2.0]}, {"a": "12"}, {"a": [True] * 2})
    ),
    ({"max_lengths": {"phone": 9}}, "max_lengths"), ({"ranges": {"total": [1, 2]}}, "ranges"),
    *(({"phone_shapes": value}, "phone_shapes") for value in (5, {"593": "0"}, {"593": 9}, {"a": "####"})),
    *(({"link_hosts": value}, "link_hosts") for value in ("pay.example", 5, [5], [""], {"a": 1})),
    *(({"status": value}, "status") for value in (5, "x", [1], True)),
    ({"status": {"state_field": "state"}}, "status"),
    ({"status": {"by_transaction_id": "/s/{transaction_id}"}}, "status.state_field"),
    *(({"status": STATUS | {"state_field": value}}, "status.state_field") for value in ("", 5, None)),
    *(
        ({"status": STATUS | {"states": value}}, "status.states")
        for value in ({}, 5, "abc", ["Approved"], {"Approved": "Accepted"}, {"Approved": ["Aceptado"]}, {5: "Aceptado"})
    ),
    *(
        ({"status": STATUS | {"code_field": "code", "codes": value}}, "status.codes")
        for value in (5, ["Aceptado"], {"three": "Aceptado"}, {"3": "Accepted"}, {3.0: "Aceptado"}, {True: "Aceptado"})
    ),
    ({"status": STATUS | {"code_field": "code"}}, "status.code_field"),
    ({"status": STATUS | {"codes": {"3": "Aceptado"}}}, "status.codes"),
    *(({"status": STATUS | {"code_field": value, "codes": {1: "Aceptado"}}}, "status.code_field") for value in ("", 5)),
    *(
        ({"status": STATUS | {f"by_{key}": value}}, f"status.by_{key}")
        for key, other in (("transaction_id", "client_transaction_id"), ("client_transaction_id", "transaction_id"))
        for value in (
            "/s", f"s/{{{key}}}", f"/s/{{{other}}}", f"/s/{{{key}}}/{{{other}}}", f"/s/{{{key}}}?x=1", f"/s {{{key}}}",
            f"https://evil.example/{{{key}}}", f"/s/{{{key}}}#x", f"/s/{{{key}}}\n", 5, ["/s"], "",
        )
    ),
    *(({"base_url": value}, "base_url") for value in ("", 5, ["https://pay.example"])),
    *(({"message_language": value}, "message_language") for value in ("", 5, "es\r\nX: y", "a" * 200, "ñ")),
    *(
        ({table: value}, table)
        for table in ("confirm", "cancel", "reverse", "returned")
        for value in (5, "x", [1], True)
    ),
    *(
        ({table: {name: value for name, value in whole.items() if name != left_out}}, f"{table}.{left_out}")
        for table, whole in (("confirm", CONFIRM), ("returned", RETURNED))
        for left_out in whole
    ),
    *(
        ({"confirm": CONFIRM | {"path": value}}, "confirm.path")
        for value in (None, 5, "", "c", "/c?x=1", "/c/{transaction_id}", "https://evil.example/c", "/c\n")
    ),
    *(
        ({"confirm": CONFIRM | {name: value}}, f"confirm.{name}")
        for name in ("transaction_id_field", "client_transaction_id_field")
        for value in [None, *NO_NAMES]
    ),
    ({"confirm": CONFIRM}, "confirm"),
    *(({"confirm": CONFIRM | {"window": value}}, "confirm.window") for value in [None, *NO_SECONDS]),
    *(({table: {}}, table) for table in ("cancel", "reverse")),
    *(
        ({table: UNDO | {"by_transaction_id": value}}, f"{table}.by_transaction_id")
        for table in ("cancel", "reverse")
        for value in (5, "", "u", "/u/{transaction_id}")
    ),
    *(
        ({"cancel": UNDO | {"transaction_id_field": value}}, "cancel.transaction_id_field")
        for value in [None, *NO_NAMES]
    ),
    ({"cancel": UNDO | {"by_client_transaction_id": "/u"}}, "cancel.client_transaction_id_field"),
    *(
        ({"reverse": UNDO | {"too_late_codes": value}}, "reverse.too_late_codes")
        for value in (20, "20", ["20"], [True], None)
    ),
    *(
        ({"returned": RETURNED | {name: value}}, f"returned.{name}")
        for name in ("transaction_id", "client_transaction_id", "message")
        for value in NO_NAMES
    ),
]  # fmt: skip


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
    profile = ServiceProfile.load(write(tmp_path, COMPLETE))
    assert profile.status is not None
    assert attrs.asdict(profile.status, recurse=False) == {
        "by_transaction_id": "/api/Sale/{transaction_id}",
        "by_client_transaction_id": "/api/Sale/client/{client_transaction_id}",
        "state_field": "transactionStatus",
        "states": {"Pending": "Pendiente", "Approved": "Aceptado", "Canceled": "Cancelado"},
        "code_field": "statusCode",
        "codes": {1: "Pendiente", 2: "Cancelado", 3: "Aceptado"},
    }
    assert profile.confirm == ConfirmProfile(
        path="/api/button/V2/Confirm",
        transaction_id_field="id",
        client_transaction_id_field="clientTxId",
        window=300,
    )
    assert profile.cancel == UndoProfile(
        by_transaction_id="/api/Cancel",
        transaction_id_field="id",
        by_client_transaction_id="/api/Cancel/Client",
        client_transaction_id_field="clientId",
        too_late_codes=frozenset({25, 2029}),
    )
    assert profile.reverse == UndoProfile(by_transaction_id="/api/Reverse", transaction_id_field="id")
    assert profile.returned == ReturnProfile(
        transaction_id="id", client_transaction_id="clientTransactionId", message="msg"
    )
    flat = attrs.evolve(profile, status=None, confirm=None, cancel=None, reverse=None, returned=None)
    assert attrs.asdict(flat, recurse=False) == {
        "name": "shop", "base_url": "https://pay.example", "message_language": "es",
        "nick_name_flag": "byNickName", "phone_optional_with_nick_name": True, "language_field": "lang",
        "wallet_link_field": "payWithBrand", "response_url_field": "ResponseUrl", "duplicate_codes": {23},
        "uncertain_codes": {500, 501},
        "not_found_codes": {20}, "queries_per_minute": 30, "refusing_statuses": {429}, "sale_window": 300,
        "form_window": 600, "absent_after": 600.5, "link_hosts": {"pay.example"},
        "max_lengths": {"client_transaction_id": 50}, "ranges": {"amount": (100, 500_000), "time_zone": (-12, 14)},
        "receipt_fields": ("authorizationCode", "message"), "reason_fields": ("message",),
        "phone_shapes": {"593": "0#########"}, "status": None,
        "confirm": None, "cancel": None, "reverse": None, "returned": None,
    }  # fmt: skip


def test_the_complete_file_is_complete() -> None:
    """A new setting must be added to the example above."""
    for kind in (ServiceProfile, StatusProfile, ConfirmProfile, UndoProfile, ReturnProfile):
        for field in attrs.fields(kind):
            assert field.name in COMPLETE


@pytest.mark.parametrize(("settings", "named"), BAD)
def test_a_bad_setting_is_named(settings: dict[str, Any], named: str) -> None:
    """Nothing wrong gets in, and the error says which setting it was."""
    with pytest.raises(ConfigurationError, match=rf"^profile setting {named}: "):
        ServiceProfile.parse(settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [pair for pair in BAD if not {"status", "confirm", "cancel", "reverse", "returned"} & set(pair[0])],
)
def test_a_bad_setting_given_in_python_is_named_too(settings: dict[str, Any], named: str) -> None:
    """The constructor checks what `load` checks."""
    with pytest.raises(ConfigurationError, match=rf"^profile setting {named}: "):
        ServiceProfile(**settings)


def test_a_status_given_in_python_is_a_status_profile() -> None:
    """A dict is not quietly taken for one."""
    status: Any = STATUS
    with pytest.raises(ConfigurationError, match=r"^profile setting status: must be a StatusProfile$"):
        ServiceProfile(status=status)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_whether_the_phone_may_be_left_out_is_a_bool(value: object) -> None:
    """`"false"` is not quietly taken for true."""
    with pytest.raises(ConfigurationError, match=r"^profile setting phone_optional_with_nick_name: "):
        ServiceProfile.parse({"phone_optional_with_nick_name": value})


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
    """What is no TOML is said to be none."""
    with pytest.raises(ConfigurationError, match=r"must be TOML: "):
        ServiceProfile.load(write(tmp_path, text))
