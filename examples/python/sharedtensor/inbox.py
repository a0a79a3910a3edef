"""The frames of one request's events on their way from the receive thread to an iterator."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from queue import Empty

from . import forks
from .errors import ClosedError, Error
from .frames import Frame
from .session import Pending, Session
from .waiting import Waiter


class Inbox:
    """A queue of events and, at their end, the request's outcome.

    The session refers to the inbox and not to the iterator that reads it. So an iterator that is dropped is collected,
    and its finalizer closes the inbox. Frames that arrive later are closed at once.
    """

    _lock: threading.Lock

    def __init__(self, on_item: Callable[[], None] | None = None, session: Session | None = None) -> None:
        """`on_item` is called after each item, by the thread that reads the socket of `session`."""
        self._session = session
        self._on_item = on_item
        forks.track(self, _lock=threading.Lock)
        self._closed = False
        self._error: Error | None = None
        self._items: deque[Frame | Pending] = deque()
        self._waiters: list[Waiter] = []
        if session is not None:
            session.inboxes.add(self)

    def put(self, item: Frame | Pending) -> None:
        """Adds an item. Takes the frame."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._items.append(item)
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()
        if closed:
            if isinstance(item, Frame):
                item.close()
        elif self._on_item is not None:
            self._on_item()

    def get(self, timeout: float | None = None) -> Frame | Pending | None:
        """Waits for the next item and returns it; None once the inbox is closed. The thread reads the socket meanwhile
        if no other does. Raises queue.Empty after `timeout` seconds, and the error that ended the session."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                if self._closed:
                    return None
                if self._error is not None:
                    raise type(self._error)(str(self._error))
                waiter = Waiter()
                self._waiters.append(waiter)
            left = None if until is None else until - time.monotonic()
            if (left is not None and left <= 0) or not self._wait(waiter, left):
                with self._lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
                    if not self._items and not self._closed and self._error is None:
                        raise Empty

    def _wait(self, waiter: Waiter, seconds: float | None) -> bool:
        """Waits for an item. Returns False after `seconds`."""
        until = None if seconds is None else time.monotonic() + seconds
        if self._session is not None and self._session.drive(waiter, seconds):
            return True
        left = None if until is None else max(until - time.monotonic(), 0)
        return waiter.pause(left) or waiter.done  # the session has ended, and another thread puts the outcome here

    def empty(self) -> bool:
        """Reports whether `get` would wait."""
        with self._lock:
            return not self._items and not self._closed and self._error is None

    def end(self, error: Error) -> None:
        """Records the end of the session: `get` raises the error when all items are taken."""
        with self._lock:
            self._error = error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set()
        if self._on_item is not None:
            self._on_item()

    def close(self) -> None:
        """Closes the frames that were not read and wakes the readers. Safe to call twice."""
        with self._lock:
            self._closed = True
            items = [*self._items]
            self._items.clear()
            waiters, self._waiters = self._waiters, []
        for item in items:
            if isinstance(item, Frame):
                item.close()
        for waiter in waiters:
            waiter.set()


def finalize_later(owner: object, session: Session, end: Callable[[], None]) -> weakref.finalize[..., object]:
    """Queues `end` for the session's worker when `owner` is collected. The finalizer itself only queues: it may run in
    any thread, within any lock. `end` must not refer to `owner`."""
    finalizer = weakref.finalize(owner, session.later, end)
    finalizer.atexit = False
    return finalizer


def stop_stream(session: Session, pending: Pending, inbox: Inbox) -> Callable[[], None]:
    """Returns what stops a stream's function and releases the results that were not read."""

    def stop() -> None:
        session.cancel(pending, ClosedError("the stream is closed"))
        inbox.close()

    return stop


def stop_watch(session: Session, id: int, inbox: Inbox) -> Callable[[], None]:
    """Returns what ends a watch and releases the events that were not read."""

    def stop() -> None:
        session.unwatch(id)
        inbox.close()

    return stop
