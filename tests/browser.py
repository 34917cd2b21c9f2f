"""A real Chromium for tests of pages: skipped where it is missing, unless PAYCLIENT_TESTS_MUST_RUN is set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import required

if TYPE_CHECKING:
    from playwright.async_api import Browser

#: Root, as in CI, has no sandbox; the names of tests are this machine's; and it calls nobody at home.
ARGUMENTS = (
    "--no-sandbox", "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-gpu", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    # One process for all sites: each other one costs half a second. And no time goes into quicker scripts.
    "--disable-site-isolation-trials", "--renderer-process-limit=1", "--js-flags=--no-opt",
)  # fmt: skip


def chromium() -> str:
    """Where Chromium is; skips the test where it or its driver is missing."""
    required.module("playwright.async_api")
    return required.program("chromium", "chromium-browser", "google-chrome")


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
