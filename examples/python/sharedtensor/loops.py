"""What connects requests with event loops of asyncio: a loop reads the socket while its coroutines wait for answers."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from . import forks
from .errors import CanceledError, DeadlineExceededError, Error
from .frames import Frame
from .session import GRACE, Pending, Session

T = TypeVar("T")
_LINGER = 0.05
"""Seconds that a loop goes on reading when no coroutine waits: the next request is often close."""


class _Reader:
    """Has an event loop read the socket of a session, while coroutines wait for answers. All methods but `_forked` are
    called by the loop's thread.

    It has a duplicate of the descriptor: the session closes its own from another thread, and the kernel may give the
    number to another file while the loop still has it registered.
    """

    def __init__(self, session: Session, loop: asyncio.AbstractEventLoop) -> None:
        self._session = session
        self._loop = loop
        self._fd = -1
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        forks.track(self, forked=_Reader._forked)

    def enter(self) -> None:
        """Begins a wait."""
        self._waiting += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._fd < 0:
            try:
                self._fd = self._session.share_reading(1)
            except OSError:
                return  # without a descriptor the receive thread reads
            self._loop.add_reader(self._fd, self._readable)

    def leave(self) -> None:
        """Ends a wait."""
        self._waiting -= 1
        if not self._waiting and self._fd >= 0:
            if self._session.closed is not None:
                self._stop()
            else:
                self._timer = self._loop.call_later(_LINGER, self._stop)

    def _readable(self) -> None:
        if not self._session.read_now():
            self._stop()

    def _stop(self) -> None:
        self._timer = None
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._session.share_reading(-1)

    def __del__(self) -> None:
        self._close()  # the loop was closed while coroutines waited

    def _forked(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_readers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.WeakKeyDictionary[Session, _Reader]] = (
    weakref.WeakKeyDictionary()
)


def _reader(session: Session, loop: asyncio.AbstractEventLoop) -> _Reader:
    of_loop = _readers.get(loop)
    if of_loop is None:
        of_loop = _readers[loop] = weakref.WeakKeyDictionary()
    found = of_loop.get(session)
    if found is None:
        found = of_loop[session] = _Reader(session, loop)
    return found


async def answer(session: Session, pending: Pending, timeout: float | None) -> Frame:
    """Waits for the answer of a request; cancels that when the wait is cancelled."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    thread = threading.get_ident()

    def set_done() -> None:
        if not done.done():
            done.set_result(None)

    def wake(_: Pending) -> None:
        if threading.get_ident() == thread:
            set_done()
            return
        try:
            loop.call_soon_threadsafe(set_done)
        except RuntimeError:
            pass  # the loop is closed: no coroutine waits

    pending.when_done(wake)
    if not done.done():
        reader = _reader(session, loop)
        reader.enter()
        timer = None if timeout is None else loop.call_later(timeout + GRACE, set_done)
        try:
            await done
        except BaseException:
            drop(session, pending, CanceledError("the caller stopped waiting"))
            raise
        finally:
            reader.leave()
            if timer is not None:
                timer.cancel()
    if not pending.done:
        drop(session, pending, DeadlineExceededError(f"no answer within {timeout:g} s"))
    return pending.result()


def drop(session: Session, pending: Pending, error: Error) -> None:
    """Ends a request with an error, and has the server stop it. Does not wait."""
    pending.abandon(error)
    session.later(partial(session.cancel, pending, error))


async def uncut(work: Awaitable[T], drop: Callable[[T], object]) -> T:
    """Awaits work in a thread. When the wait is cancelled, what the work makes all the same is given to `drop`."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda t: None if t.cancelled() or t.exception() else drop(t.result()))
        raise


class Signal:
    """Wakes a coroutine from any thread. Waiting takes no thread, so that any number may wait."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes the coroutine that waits, or the next one."""
        if threading.get_ident() == self._thread:
            self._event.set()
            return
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            pass  # the loop is closed: no coroutine waits

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for `set`. Returns False after `seconds`. What it stands for is looked at again afterwards."""
        if seconds is None:
            await self._event.wait()
        else:
            try:
                await asyncio.wait_for(self._event.wait(), seconds)
            except asyncio.TimeoutError:
                return False
        self._event.clear()
        return True
