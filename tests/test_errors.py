"""The error tree: its shape, what its members carry, and that they survive pickling."""

import copy
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest

from payclient import errors
from payclient.errors import (
    ErrorDetail,
    InvalidRequestError,
    LedgerError,
    NotCreatedError,
    OutcomeUnknownError,
    PayError,
    RateLimitedError,
    RefusedError,
    ValidationFailedError,
)

BUSY = ErrorDetail("El cliente tiene transacciones pendientes con su local", 2061)
AMOUNT = ErrorDetail("Amount", 0, ("is not the sum", "is negative"))
PHONE = ErrorDetail("phoneNumber", 0, ("is empty",))


def every_error(base: type[PayError] = PayError) -> Iterator[type[PayError]]:
    yield base
    for subclass in base.__subclasses__():
        if subclass.__module__ == "payclient.errors":
            yield from every_error(subclass)


def filled(kind: type[PayError]) -> PayError:
    """One of the class with all that it can carry."""
    options: dict[str, Any] = {"client_transaction_id": "order-17"}
    if issubclass(kind, (InvalidRequestError, RefusedError)):
        options["errors"] = [AMOUNT, BUSY]
    if issubclass(kind, RefusedError):
        options |= {"error_code": 22, "http_status": 400}
    if issubclass(kind, OutcomeUnknownError):
        options["http_status"] = 502
    error = kind("se cortó", **options)
    if isinstance(error, RateLimitedError):
        error.retry_after = 1.5
    if isinstance(error, OutcomeUnknownError):
        error.candidate_id = 23178284
    return error


def pickled(error: PayError) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes


def drawn_tree() -> dict[str, str | None]:
    """The name of each class in the module's docstring -> the name of its parent."""
    assert errors.__doc__ is not None
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        if found := re.match(r"((?:│   |    )*)(?:├── |└── )?(\w+Error)\b", line):
            branch = "── " in line[: found.start(2)]
            depth = len(found[1]) // 4 + branch
            assert depth <= len(path)
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_drawn_in_the_docstring_is_the_real_one() -> None:
    """Names and parents of the drawing equal those of the classes; a second base, such as TimeoutError, is said."""
    real = {
        kind.__name__: next((base.__name__ for base in kind.__bases__ if issubclass(base, PayError)), None)
        for kind in every_error()
    }
    assert drawn_tree() == real
    for kind in every_error():
        for base in kind.__bases__:
            if not issubclass(base, PayError) and base is not Exception:
                assert re.search(rf"{kind.__name__} +also a {base.__name__}", errors.__doc__ or "")


@pytest.mark.parametrize("clone", [pickled, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", list(every_error()))
def test_everything_survives_pickling_and_copying(kind: type[PayError], clone: Any) -> None:
    """A clone has the class, the text and every attribute; no class demands an argument, what is not known is None."""
    for error in (filled(kind), kind()):
        twin = clone(error)
        assert type(twin) is kind
        assert vars(twin) == vars(error)
        assert (str(twin), twin.args) == (str(error), error.args)
    assert filled(kind).client_transaction_id == "order-17"
    assert kind().client_transaction_id is None


def test_an_error_that_is_named_keeps_where_it_came_from() -> None:
    """It is a copy, since others may be given the error, too."""
    with pytest.raises(LedgerError) as caught:
        raise LedgerError("gone")
    named = errors.named_error(caught.value, "order-17")
    assert (named.client_transaction_id, caught.value.client_transaction_id) == ("order-17", None)
    assert named.__traceback__ is caught.value.__traceback__ is not None


def test_an_open_purchase_is_pickled_without_its_sale() -> None:
    """That has a tracker, which does not pickle."""
    error = errors.PurchaseOpenError("open", client_transaction_id="order-17")
    error.pending, error.until = lambda: None, 5.0
    twin = pickled(error)
    assert (twin.pending, twin.until, twin.client_transaction_id) == (None, 5.0, "order-17")


def test_the_user_sees_the_specific_messages() -> None:
    """§7.1: the messages of `errors`, each with its field and what is wrong (§7.5); the general one if none."""
    shown = {
        ErrorDetail("no se pudo"): "no se pudo", AMOUNT: "Amount: is not the sum; is negative",
        ErrorDetail("", 0, ("is empty",)): "is empty", ErrorDetail(""): "",
    }  # fmt: skip
    assert {detail: detail.user_message() for detail in shown} == shown
    error = NotCreatedError("general", error_code=22, errors=[BUSY, ErrorDetail("otro")])
    assert error.user_messages == (BUSY.message, "otro")
    assert str(error) == f"[22] {BUSY.message}; otro"
    failed = ValidationFailedError("general", error_code=800, errors=[AMOUNT])
    assert failed.user_messages == ("Amount: is not the sum; is negative",)
    for details in ((), (ErrorDetail(""), ErrorDetail("", 2061))):
        general = RefusedError("general", errors=details)
        assert (general.user_messages, str(general)) == (("general",), "general")


def test_fields_gathers_descriptions_by_field() -> None:
    """§7.5: one entry for each failing field, which may come more than once."""
    again = ErrorDetail("Amount", 0, ("is odd",))
    error = ValidationFailedError(
        "general", error_code=800, errors=[AMOUNT, PHONE, again, ErrorDetail("tax")]
    )
    assert error.fields == {
        "Amount": ["is not the sum", "is negative", "is odd"],
        "phoneNumber": ["is empty"],
        "tax": [],
    }


def test_an_invalid_request_looks_like_a_failed_validation() -> None:
    """Its text is that of its faults, unless given."""
    error = InvalidRequestError(errors=iter([AMOUNT, PHONE]))
    assert error.errors == (AMOUNT, PHONE)
    assert str(error) == "; ".join(error.user_messages)
    assert error.user_messages == ("Amount: is not the sum; is negative", "phoneNumber: is empty")
    assert str(InvalidRequestError("given", errors=[AMOUNT])) == "given"
