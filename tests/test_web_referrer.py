"""Whether a page would send its referrer, by its headers and its HTML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payclient.web.referrer import check_page, effective_policy, sends_origin


def faults(html: str = "", *policies: str) -> list[str]:
    headers = [("Content-Type", "text/html"), *(("referrer-POLICY", policy) for policy in policies)]
    return [finding.text for finding in check_page(headers, html) if not finding.good]


@pytest.mark.parametrize(
    ("policy", "sends"),
    [
        ("origin", True), ("origin-when-cross-origin", True), ("strict-origin", True),
        ("strict-origin-when-cross-origin", True), ("no-referrer-when-downgrade", True),
        ("unsafe-url", True), ("Origin", True), ("same-origin", False), ("no-referrer", False),
        ("origin, no-referrer", False), ("no-referrer, something-new", False),
        ("same-origin,strict-origin", True),
    ],
)  # fmt: skip
def test_the_header_decides(policy: str, sends: bool) -> None:
    """The last word that browsers know; the advice names the header and what to write."""
    assert sends_origin(effective_policy([policy])) is sends
    found = faults("", policy)
    assert (found == []) is sends
    if not sends:
        assert "Set the header Referrer-Policy to 'origin'" in found[0]
        assert "Django" in found[1]


def test_nothing_said_is_the_browsers_default() -> None:
    """Which sends the origin."""
    assert faults() == faults("", "nonsense") == []
    (finding,) = check_page([], "")
    assert "strict-origin-when-cross-origin" in finding.text


def test_a_meta_comes_after_the_header() -> None:
    """It spoils a good header and mends a bad one; words from before the standard count."""
    assert "<meta name=referrer>" in faults('<META NAME="Referrer" content="no-referrer">', "origin")[0]
    assert "<meta name=referrer>" in faults('<meta name="referrer" content="never">')[0]
    for word in ("origin", "always", "default", "origin-when-crossorigin"):
        assert faults(f'<meta name="referrer" content="{word}">', "same-origin") == []
    assert faults('<meta name="referrer" content="nonsense">', "origin") == []


def test_a_link_that_hides_its_page_is_no_fault() -> None:
    """Many a site has `noreferrer` on all links to others, and a form is opened from another page."""
    assert faults('<a href="https://other.example/" rel="noopener noreferrer">', "origin") == []


def test_attributes_count_as_in_a_browser() -> None:
    """Measured in Chromium: blanks in a policy make it none, and of two attributes the first counts."""
    assert faults('<meta name="referrer" content=" origin ">', "no-referrer")
    assert faults('<meta name="referrer" content="no-referrer" content="origin">', "origin")


@given(st.text(), st.lists(st.text(max_size=30), max_size=3))
def test_no_page_breaks_it(html: str, policies: list[str]) -> None:
    """Whatever a page holds, it is judged."""
    assert check_page([("Referrer-Policy", policy) for policy in policies], html)
