"""The calls of an offer on their way from the thread that reads the socket to the threads that run them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from . import forks
from .session import Session
from .waiting import Waiter

if TYPE_CHECKING:
    from .workers import Job


class _Idle(Waiter):
    """A thread that waits for a call. Its job is None at the end of the queue."""

    __slots__ = ("job",)

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None


class Jobs:
    """A queue of calls. A thread that waits for the next one reads the socket meanwhile, if no other thread does, so
    that it runs the call that it receives."""

    _lock: threading.Lock

    def __init__(self) -> None:
        forks.track(self, _lock=threading.Lock)
        self._jobs: deque[Job] = deque()
        self._idle: list[_Idle] = []  # the thread that waits longest first
        self._session: Session | None = None
        self._closed = False

    def put(self, job: Job) -> None:
        """Adds a call. If the thread that reads the socket waits for calls, it gets this one."""
        with self._lock:
            leader = job.session.leader
            if isinstance(leader, _Idle) and leader in self._idle:
                self._idle.remove(leader)
                idle: _Idle | None = leader
            else:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                self._jobs.append(job)
            else:
                idle.job = job
        if idle is not None:
            idle.set()

    def get(self) -> Job | None:
        """Waits for the next call and returns it; None at the end."""
        me = _Idle()
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            if self._closed:
                return None
            self._idle.append(me)
        try:
            while not me.done:
                session = self._session
                if session is None:
                    me.pause(None)
                elif not session.drive(me, None):
                    me.pause(0.01)  # the session has ended, and another thread is about to record that
        finally:
            with self._lock:
                if me in self._idle:
                    self._idle.remove(me)
        return me.job

    def read(self, session: Session | None) -> None:
        """Sets the session whose socket waiting threads read; None while there is none."""
        self._session = session
        with self._lock:
            idle = [*self._idle]
        for each in idle:
            each.wake()

    def close(self) -> None:
        """Ends the queue: `get` returns None when all calls are taken."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for each in idle:
            each.set()
