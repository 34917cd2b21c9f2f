"""A port of a test's own, before and between the lives of the server that listens there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["kept_port"]


@contextmanager
def kept_port() -> Iterator[int]:
    """A port that nobody else is given until the end of the block, where connections are refused.

    A server that sets SO_REUSEADDR, as they do, may listen there meanwhile, and again after its end. A number that was
    merely free a moment ago may be another process's by now: many servers start while the tests run.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))  # and does not listen
        yield keeper.getsockname()[1]
