"""Runs coroutines of workers' functions for threads: in the event loop of the program, or in one of the thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncGenerator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any

from .errors import CanceledError

if TYPE_CHECKING:
    from .workers import Call

_own = threading.local()
Current = contextvars.ContextVar["Call | None"]


def run(awaitable: Awaitable[Any], loop: asyncio.AbstractEventLoop | None, call: Call, current: Current) -> Any:
    """Runs an awaitable for a call and returns its result. It is cancelled when the call is; CanceledError is raised
    then. `current` has the call meanwhile."""

    async def within() -> Any:
        current.set(call)
        return await awaitable

    try:
        return _in_own(within(), call) if loop is None else _in_loop(within(), loop, call)
    except (asyncio.CancelledError, concurrent.futures.CancelledError):
        raise CanceledError(call.reason or "the function was cancelled") from None
    finally:
        call._interrupt = None


def _in_loop(coroutine: Any, loop: asyncio.AbstractEventLoop, call: Call) -> Any:
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except BaseException:
        coroutine.close()
        raise
    call._interrupt = future.cancel
    if call.cancelled:
        future.cancel()
    return future.result()


def _in_own(coroutine: Any, call: Call) -> Any:
    loop: asyncio.AbstractEventLoop | None = getattr(_own, "loop", None)
    if loop is None:
        loop = _own.loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)

    def interrupt() -> None:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:
            pass  # the loop is closed, and with it the task

    call._interrupt = interrupt
    if call.cancelled:
        task.cancel()
    return loop.run_until_complete(task)


def iterate(
    results: AsyncGenerator[Any, None], loop: asyncio.AbstractEventLoop | None, call: Call, current: Current
) -> Iterator[Any]:
    """Yields the results of an asynchronous generator for a call."""
    try:
        while True:
            try:
                result = run(anext(results), loop, call, current)
            except StopAsyncIteration:
                return
            yield result
    finally:
        run(results.aclose(), loop, _at_its_end(call), current)


def _at_its_end(call: Call) -> Call:
    """Returns a call that is not cancelled, for what a generator does at its end."""
    return type(call)(call.endpoint, call.number)


def close_own() -> None:
    """Closes the event loop of this thread, if it has one."""
    loop: asyncio.AbstractEventLoop | None = getattr(_own, "loop", None)
    if loop is not None:
        _own.loop = None
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
