"""The frames of one request's events on their way from the receive thread to an iterator."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue

from . import forks
from .errors import ClosedError
from .frames import Frame
from .session import Pending, Session


class Inbox:
    """A queue of events and, at their end, the request's outcome.

    The receive thread refers to the inbox and not to the iterator that reads it. So an iterator that is dropped is
    collected, and its finalizer closes the inbox. Frames that arrive later are closed at once.
    """

    _lock: threading.Lock

    def __init__(self, on_item: Callable[[], None] | None = None) -> None:
        """`on_item` is called after each item, by the receive thread."""
        self._on_item = on_item
        forks.track(self, _lock=threading.Lock)
        self._closed = False
        self._queue: SimpleQueue[Frame | Pending | None] = SimpleQueue()

    def put(self, item: Frame | Pending) -> None:
        """Adds an item. Takes the frame."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.put(item)
        if closed:
            if isinstance(item, Frame):
                item.close()
        elif self._on_item is not None:
            self._on_item()

    def get(self, timeout: float | None = None) -> Frame | Pending | None:
        """Waits for the next item and returns it; None once the inbox is closed. Raises queue.Empty after `timeout`
        seconds."""
        item = self._queue.get(timeout=timeout)
        if item is None:
            self._queue.put(None)  # for other threads that wait
        return item

    def empty(self) -> bool:
        """Reports whether `get` would wait."""
        return self._queue.empty()

    def close(self) -> None:
        """Closes the frames that were not read and wakes the readers. Safe to call twice."""
        with self._lock:
            self._closed = True
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(item, Frame):
                item.close()
        self._queue.put(None)


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
