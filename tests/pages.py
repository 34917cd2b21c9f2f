"""A page of HTML as it is read: its elements, its texts, and the digests of what stands inline."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

__all__ = ["Read", "digest_of"]

VOID = frozenset({"meta", "br", "link", "input"})


class Read(HTMLParser):
    """A page's tags with their attributes, its text, and the text inside `<style>` and `<script>`."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, str] = {}
        self.text = ""
        #: Whether every element is closed, in order.
        self.is_whole = True
        self._open: list[str] = []
        self.feed(page)
        self.close()
        self.is_whole &= not self._open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        assert len(names) == len(attributes)
        assert not [name for name in names if name == "style" or name.startswith("on")], (
            "the policy forbids it"
        )
        self.tags.append((tag, names))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.is_whole &= self._open[-1:] == [tag]
        del self._open[-1:]

    def handle_data(self, data: str) -> None:
        if self._open[-1:] in (["style"], ["script"]):
            self.inline.setdefault(self._open[-1], data)
        else:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def digest_of(text: str) -> str:
    """The source of a policy that allows this inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
