"""The public face: what modules declare, and nothing else."""

import ast
import importlib
import inspect
import pkgutil
import typing
from pathlib import Path

import pytest

import payclient

#: Written down: a name that comes or goes is a decision.
NAMES = [
    "DOCUMENT",
    "PAYPHONE",
    "TRANSITIONS",
    "AlreadyPaidError",
    "Attentive",
    "BeforeSend",
    "BillTo",
    "Change",
    "ChargeResult",
    "Charges",
    "Clock",
    "ConfigurationError",
    "ConfirmProfile",
    "CustomerBusyError",
    "DifferentRequestError",
    "ErrorDetail",
    "Event",
    "Evidence",
    "Exchange",
    "Fixed",
    "FormLink",
    "FormLinks",
    "HttpRequest",
    "HttpResponse",
    "InvalidNotificationError",
    "InvalidRequestError",
    "Ledger",
    "LedgerError",
    "LedgerInUseError",
    "LedgerMissingError",
    "LedgerUnavailableError",
    "LineItem",
    "NotCancellableError",
    "NotCreatedError",
    "NotReversibleError",
    "NotSentError",
    "Notification",
    "Order",
    "Outcome",
    "OutcomeUnknownError",
    "PayError",
    "PaySession",
    "PaymentForm",
    "PendingSale",
    "PrepareRequest",
    "PrepareResult",
    "PurchaseOpenError",
    "RateLimitedError",
    "Receipt",
    "Record",
    "RefusedError",
    "ReturnProfile",
    "SaleRequest",
    "SaleResult",
    "Schedule",
    "ServiceProfile",
    "State",
    "StatusProfile",
    "StatusReport",
    "StatusSource",
    "Steps",
    "StillPendingError",
    "SystemClock",
    "TaxSplit",
    "Timeouts",
    "Tracker",
    "TrackerClosedError",
    "TransactionRef",
    "TransitionError",
    "Transport",
    "TransportError",
    "UnauthorizedError",
    "UndoProfile",
    "UsageError",
    "ValidationFailedError",
    "acknowledgement",
    "advance",
    "as_decided",
    "charge_all",
    "derive_id",
    "notification_url",
    "backup_ledger",
    "open_ledger",
    "open_tracker",
    "parse_external_notification",
    "parse_notification",
    "split_tax",
    "to_cents",
]

#: `sync`, `web` and `cli` are imported by who needs them; the simulator stands aside.
NOT_IN_THE_FACE = {"sync", "web", "cli", "simulator", "pytest_plugin", "__main__"}


def declared() -> dict[str, list[str]]:
    """The `__all__` of each module of the face; a package speaks by its `__init__`."""
    return {
        module.name: importlib.import_module(f"payclient.{module.name}").__all__
        for module in pkgutil.iter_modules(payclient.__path__)
        if module.name not in NOT_IN_THE_FACE
    }


def test_the_face_is_what_its_modules_declare() -> None:
    """`payclient.__all__` is their sorted union, and each name has one home."""
    names = [name for names in declared().values() for name in names]
    assert len(names) == len(set(names))
    assert sorted(payclient.__all__) == sorted(names)


def test_the_face_is_pinned() -> None:
    """Nobody adds or drops a public name by accident."""
    assert sorted(payclient.__all__) == sorted(NAMES)


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in declared().items() for n in names])
def test_every_name_is_its_modules(module: str, name: str) -> None:
    """What the face gives is the module's own object."""
    assert getattr(payclient, name) is getattr(importlib.import_module(f"payclient.{module}"), name)


def test_nothing_is_loaded_that_is_not_declared() -> None:
    """The face imports no public name beside those; submodules aside."""
    tree = ast.parse(Path(payclient.__file__).read_bytes())
    imported = [alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(payclient.__all__)


@pytest.mark.parametrize("name", payclient.__all__)
def test_every_public_thing_has_a_docstring(name: str) -> None:
    """And so has every public method and property of a class of ours."""
    thing = getattr(payclient, name)
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for key, member in vars(thing).items():
            member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{key}"


@pytest.mark.parametrize("name", payclient.__all__)
def test_every_annotation_of_a_public_function_is_real(name: str) -> None:
    """Whoever inspects a function finds its types."""
    thing = getattr(payclient, name)
    if inspect.isfunction(thing):
        assert "return" in typing.get_type_hints(thing)
