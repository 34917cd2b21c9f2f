"""What a test needs of the machine: without it the test is skipped, or fails where PAYCLIENT_TESTS_MUST_RUN is set."""

from __future__ import annotations

import importlib
import os
import shutil
from typing import Any, NoReturn

import pytest

__all__ = ["module", "program", "without"]


def without(what: str) -> NoReturn:
    """Skip for want of it; fail where the tests are to be complete."""
    if os.environ.get("PAYCLIENT_TESTS_MUST_RUN"):
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


def module(name: str) -> Any:
    """An installed module."""
    try:
        return importlib.import_module(name)
    except ImportError:
        without(name)


def program(*names: str) -> str:
    """Where the first of these programs is that there is."""
    return next(filter(None, map(shutil.which, names)), None) or without(names[0])
