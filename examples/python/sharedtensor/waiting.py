"""Time limits, and threads that wait for each other."""

from __future__ import annotations

import math
import os
import threading

from . import forks
from .errors import InvalidArgumentError

NO_LIMIT = math.inf
"""A `timeout` without a limit, for clients that were given a default: ``c.call("train", timeout=st.NO_LIMIT)``."""

_LONGEST = 9e9
"""Seconds. The protocol counts nanoseconds in 63 bits."""


def seconds(timeout: float | None, default: float | None = None) -> float | None:
    """Returns a time limit in seconds; None for no limit, which `NO_LIMIT` is too.

    :param default: what a `timeout` of None stands for.
    """
    if timeout is None:
        timeout = default
    if timeout is None or timeout > _LONGEST:
        return None
    if timeout != timeout:
        raise InvalidArgumentError("a timeout is a number of seconds, not NaN")
    return max(timeout, 0.0)


class Bell:
    """Wakes a thread that polls descriptors."""

    _lock: threading.Lock

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        forks.track(self, _lock=threading.Lock)

    def ring(self) -> None:
        """Makes the descriptor readable. Does nothing once closed."""
        with self._lock:  # the kernel may give the number of a closed descriptor to another file
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def hush(self) -> None:
        """Makes the descriptor unreadable again."""
        try:
            os.eventfd_read(self.fd)
        except OSError:
            pass  # it was not rung

    def close(self) -> None:
        """Closes the descriptor. Safe to call twice."""
        with self._lock:
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Waiter:
    """Something that one thread waits for. Any thread may wake it.

    :ivar done: whether it has happened.
    :ivar bell: what to ring if the thread polls the socket, else None.
    """

    __slots__ = ("_gate", "bell", "done")

    def __init__(self) -> None:
        self.done = False
        self.bell: Bell | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        """Has the thread that waits look again, or the next one that waits."""
        try:
            self._gate.release()
        except RuntimeError:
            pass  # it was woken before
        bell = self.bell
        if bell is not None:
            bell.ring()

    def set(self) -> None:
        """Marks it as done. Safe to call twice."""
        self.done = True
        self.wake()

    def pause(self, seconds: float | None) -> bool:
        """Waits until it is woken. Returns False after `seconds`."""
        return self._gate.acquire(timeout=-1 if seconds is None else max(seconds, 0))


class Monitor:
    """A lock and the condition that goes with it.

    ``with monitor.lock`` is C code. ``with`` on a `threading.Condition` is not: the exception of a signal's handler
    there leaves it locked.
    """

    __slots__ = ("changed", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
