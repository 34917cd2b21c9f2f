"""The public face is a chosen list, each name of it explained."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import payclient
from payclient.simulator import Answers, Fault, Settings
from test_imports import trees

#: Written down: a name that comes or goes is a decision. Plumbing is imported from its module.
NAMES = [
    "DOCUMENT", "PAYPHONE", "AlreadyPaidError", "Attentive", "BillTo", "ChargeResult", "ChargeRow",
    "ConfigurationError", "CustomerBusyError", "DifferentRequestError", "Exchange", "Fixed", "FormLink",
    "Health", "InvalidNotificationError", "InvalidRequestError", "LedgerError", "LedgerInUseError",
    "LedgerMissingError", "LedgerUnavailableError", "LineItem", "NotCancellableError", "NotCreatedError",
    "NotReversibleError", "NotSentError", "Notification", "Order", "Outcome", "OutcomeUnknownError",
    "PayError", "PaySession", "PaymentForm", "PendingSale", "PrepareRequest", "PrepareResult", "Purchase",
    "PurchaseOpenError", "RateLimitedError", "Receipt", "RefusedError", "SaleRequest", "SaleResult",
    "Schedule", "ServiceProfile", "State", "StatusReport", "StatusSource", "Steps", "StillPendingError",
    "Timeouts", "Tracker", "TrackerClosedError", "TransactionRef", "TransitionError", "TransportError",
    "UnauthorizedError", "UsageError", "ValidationFailedError", "acknowledgement", "as_decided",
    "charge_all", "derive_id", "notification_url", "open_ledger", "open_tracker", "open_tracker_from_env",
    "parse_external_notification", "parse_notification", "split_tax", "to_cents",
]  # fmt: skip


def test_the_face_is_pinned() -> None:
    """A public name is added or dropped by decision, and occurs once."""
    assert sorted(payclient.__all__) == sorted(NAMES)
    assert len(set(payclient.__all__)) == len(payclient.__all__)


def test_nothing_is_loaded_that_is_not_declared() -> None:
    """The face imports no public name beside those; submodules aside."""
    tree = ast.parse(Path(payclient.__file__).read_bytes())
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    imported = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(payclient.__all__)
    assert {*payclient.__all__} <= {*dir(payclient)}


def test_a_submodule_is_imported_where_it_is_first_used() -> None:
    """Not before: a plain `import payclient` loads none of them."""
    program = """
import sys, payclient
for name in ("web", "sync", "simulator"):
    assert f"payclient.{name}" not in sys.modules, name
    assert getattr(payclient, name).__name__ == f"payclient.{name}"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(AttributeError, match="module 'payclient' has no attribute 'webb'"):
        getattr(payclient, "web" + "b")


THINGS = {name: getattr(payclient, name) for name in payclient.__all__}
CLASSES = {name: thing for name, thing in THINGS.items() if inspect.isclass(thing)}
FUNCTIONS = {name: thing for name, thing in THINGS.items() if inspect.isroutine(thing)}


def test_every_public_thing_has_a_docstring() -> None:
    """And so has every public method and property of ours; each field is named in its class's, which `help()` shows."""
    for name, thing in (CLASSES | FUNCTIONS).items():
        assert inspect.getdoc(thing), name
    for name, thing in CLASSES.items():
        for key, member in vars(thing).items():
            member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if not key.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{key}"
        for field in attrs.fields(thing) if attrs.has(thing) else ():
            if not field.name.startswith("_"):
                assert f"`{field.name}`" in (inspect.getdoc(thing) or ""), f"{name}.{field.name}"


@pytest.mark.parametrize("thing", [Answers, Fault, Settings])
def test_what_can_be_set_of_the_simulator_is_explained_where_help_shows_it(thing: type) -> None:
    """Each field is named in its class's docstring."""
    for field in attrs.fields(thing):
        assert f"`{field.name}`" in (inspect.getdoc(thing) or ""), field.name


def test_a_class_name_occurs_once_and_no_module_is_a_gerund() -> None:
    """A name leads to one thing, but for the three twins of `sync`."""
    # On purpose: they mirror `payclient.Tracker` and its like, so that the guides hold for both faces, and a program
    # goes from one to the other by its import.
    twins = {f"sync.{name}" for name in ("Charges", "PendingSale", "Tracker")}
    seen: dict[str, Path] = {}
    for path, tree in trees().items():
        assert not path.stem.endswith("ing"), path
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and f"{path.stem}.{node.name}" not in twins:
                assert seen.setdefault(node.name, path) == path, node.name
