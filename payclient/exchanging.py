"""One exchange with the service: signed, within its time, repeated only where that is safe, and judged.

What was sent is judged here, for any transport: by whether the `before_send` that it was given was passed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import attrs

from payclient.access import SIGNED_WITH, Token
from payclient.deadlines import Deadlines, Timeouts
from payclient.errors import NotSentError, OutcomeUnknownError, PayError, TransportError, UsageError
from payclient.profile import ServiceProfile
from payclient.wire import BeforeSend, HttpRequest, HttpResponse, Transport

__all__ = ["Exchange"]

#: Seconds before a second and a third try; jittered.
RETRY_DELAYS = (0.1, 0.5)

logger = logging.getLogger("payclient.session")

#: Forks of this process so far, counted in the child: cheaper than asking the system for the process id at each call.
_generation = 0


def _after_fork() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork)

_T = TypeVar("_T")

#: Reads an answer to a request with this client transaction id, by the profile, or raises.
Decode = Callable[[HttpResponse, ServiceProfile, str | None], _T]


@attrs.frozen(kw_only=True)
class Exchange:
    """One exchange with the service, for metrics and traces. No personal data, no token."""

    #: `sale`, `prepare`, `status`, `confirm`, `cancel` or `reverse`.
    operation: str
    #: None where no answer came.
    http_status: int | None
    seconds: float
    #: False: proven that no byte of it reached the service.
    sent: bool
    #: The error's class name; None where the call succeeded.
    error: str | None
    client_transaction_id: str | None
    transaction_id: int | None = None


class _Gate:
    """The `before_send` handed to the transport: whether it was passed is the proof of what was sent."""

    entered = False
    passed = False
    error: BaseException | None = None
    trace: TracebackType | None = None

    def __init__(self, before_send: BeforeSend | None) -> None:
        self._before_send = before_send

    async def __call__(self) -> None:
        self.entered = True
        if self._before_send is not None:
            try:
                await self._before_send()
            except BaseException as error:
                # As it is here: on its way up it would gather the network library's frames, which hold the token.
                self.error, self.trace = error, error.__traceback__
                raise
        self.passed = True


class Exchanges:
    """The exchanges of one session, for one event loop of one process. `on_exchange` is told of each."""

    def __init__(
        self,
        transport: Transport,
        profile: ServiceProfile,
        token: Token,
        timeouts: Timeouts,
        on_exchange: Callable[[Exchange], object] | None,
    ) -> None:
        self._transport = transport
        self._profile = profile
        self._token = token
        self._timeouts = timeouts
        self._on_exchange = on_exchange
        self._deadlines: Deadlines | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._generation = _generation
        self._closed = False

    def enter(self) -> Deadlines:
        """Bind to the running loop, or say clearly why this session cannot be used here."""
        if self._closed:
            raise UsageError("this session is closed")
        if self._generation != _generation:
            raise UsageError("this session was made before a fork; make one in each process")
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            assert self._deadlines is not None  # noqa: S101 - made with the loop
            return self._deadlines
        if self._loop is not None:
            raise UsageError("this session belongs to another event loop; make one in each")
        self._loop = loop
        self._deadlines = Deadlines(loop, self._timeouts.total)
        return self._deadlines

    def close(self) -> bool:
        """Take no more. False: closed before, or in a fork, whose parent has the connections."""
        if self._closed:
            return False
        self._closed = True
        if self._generation != _generation:
            return False
        self._token.close()
        if self._deadlines is not None:
            self._deadlines.close()
        return True

    async def make(
        self,
        operation: str,
        request: HttpRequest,
        decode: Decode[_T],
        before_send: BeforeSend | None = None,
        timeouts: Timeouts | None = None,
        *,
        repeat: bool = False,
    ) -> _T:
        """Send within the total time-out and read the answer; try again what provably was not sent.

        `repeat`: the operation is safe to repeat, so that it is also tried again after a 5xx or a reset.
        """
        deadline = self.enter().start(None if timeouts is None else timeouts.total)
        hook = self._on_exchange
        began = 0.0 if hook is None else time.perf_counter()
        tries = 0
        sent = False
        gate = _Gate(before_send)
        response: HttpResponse | None = None
        result: _T | None = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    response = None
                    response = await self._send(request, gate)
                    result = decode(response, self._profile, request.client_transaction_id)
                except NotSentError:
                    # Once `before_send` was entered its permit may be spent.
                    if tries == len(RETRY_DELAYS) or (gate.entered and before_send is not None):
                        raise
                except OutcomeUnknownError as unknown:
                    if not repeat or tries == len(RETRY_DELAYS) or (unknown.http_status or 500) < 500:
                        raise
                else:
                    return result
                sent = sent or gate.passed
                await self._sleep(RETRY_DELAYS[tries] * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
                tries += 1
                gate = _Gate(before_send)
        except asyncio.CancelledError as cancelled:
            error = cancelled
            if not deadline.overran():
                cancelled.__traceback__ = None  # its frames are the network library's, which hold the token
                raise
            total = (timeouts or self._timeouts).total
            error = _judge(gate, request, f"no answer within {total:g} s")
        except BaseException as raised:
            error = raised
            raise
        finally:
            deadline.end()
            if hook is not None:
                exchange = Exchange(
                    operation=operation,
                    http_status=None if response is None else response.status,
                    seconds=time.perf_counter() - began,
                    sent=sent or gate.passed,
                    error=None if error is None else type(error).__name__,
                    client_transaction_id=request.client_transaction_id,
                    transaction_id=getattr(result, "transaction_id", None),
                )
                _tell(hook, exchange)
        # Outside the `except`, so that no `__context__` keeps what aiohttp raised.
        raise error

    async def _send(self, request: HttpRequest, gate: _Gate) -> HttpResponse:
        """One try. Raises what `before_send` raised, or our own errors, never aiohttp's: those hold the token."""
        headers = self._token.headers or await self._token.ask()
        SIGNED_WITH.set(headers.digest)
        signed = HttpRequest(
            request.method, request.path, request.body, headers, request.client_transaction_id
        )
        try:
            response = await self._transport(signed, gate)
        except NotSentError as error:
            failure = str(error)
            gate.passed = False
        except Exception as error:
            failure = _describe(error)
        else:
            if response.status == 401:
                self._token.refused(headers)
            return response
        if gate.error is not None:
            raise gate.error.with_traceback(gate.trace)
        raise _judge(gate, request, failure)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _judge(gate: _Gate, request: HttpRequest, failure: str) -> TransportError:
    kind = OutcomeUnknownError if gate.passed else NotSentError
    return kind(failure, client_transaction_id=request.client_transaction_id)


def _tell(hook: Callable[[Exchange], object], exchange: Exchange) -> None:
    try:
        hook(exchange)
    except Exception as raised:
        logger.error("on_exchange raised %s", type(raised).__name__)


def _describe(error: Exception) -> str:
    """An exception in words that hold nothing of the request: its class, and the system's error name."""
    number = getattr(error, "errno", None)
    name = errno.errorcode.get(number) if isinstance(number, int) else None
    kind = type(error).__name__
    if isinstance(error, PayError):
        return kind
    return f"{kind} ({name})" if name else kind
