"""A real Chromium for tests of pages: skipped where it is missing, unless PAYCLIENT_TESTS_MUST_RUN is set."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser

#: Root, as in CI, has no sandbox; the names of tests are this machine's; and it calls nobody at home.
ARGUMENTS = (
    "--no-sandbox",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def chromium() -> str:
    """Where Chromium is; skips the test where it or its driver is missing."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    missing = None if found else "Chromium is not installed"
    try:
        import playwright.async_api  # noqa: F401 - only whether it is there
    except ImportError:
        missing = "playwright is not installed"
    if missing:
        if os.environ.get("PAYCLIENT_TESTS_MUST_RUN"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found or ""


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A headless Chromium."""
    path = chromium()
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()
