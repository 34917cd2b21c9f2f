"""What every test needs before it starts: hypothesis without a stopwatch, and aioresponses on today's aiohttp."""

import inspect
import os
from typing import Any
from unittest.mock import Mock

import aioresponses.core
from aiohttp import ClientResponse
from hypothesis import settings

from postgres_server import database, new_database, postgres

__all__ = ["database", "new_database", "postgres"]  # fixtures

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


class _MockedResponse(ClientResponse):
    """aioresponses 0.7.9 makes a `ClientResponse` without `stream_writer`, which aiohttp 3.14 requires.

    With `writer=None` the request counts as sent, and aiohttp reads no more of it than its `output_size`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, stream_writer=Mock(output_size=0), **options)


if "stream_writer" in inspect.signature(ClientResponse).parameters:
    aioresponses.core.ClientResponse = _MockedResponse  # type: ignore[attr-defined]  # it imports the name
