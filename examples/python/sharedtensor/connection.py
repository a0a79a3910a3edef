"""A client's connection to its owner: requests, reconnection, and what is renewed after it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from . import catalog, forks, messages, reconnect
from .calls import References
from .errors import ClosedError, ConnectionLostError, Error, ForkError, LeavingError, UnavailableError
from .frames import Frame
from .groups import WeakGroup
from .memory import SlabPools
from .operations import Operation
from .session import Pending, Session
from .watching import Watch
from .workers import Function, Offer

T = TypeVar("T")


class Connection:
    """The part of `Client` that has the session. When it is lost, the next request connects again."""

    _lock: threading.RLock

    def __init__(
        self,
        path: str,
        *,
        framework: str | None,
        timeout: float | None,
        reconnect: float,
        wait: float,
        uid: int | None,
        keep: int,
    ) -> None:
        self.path = path
        self._framework = framework
        self._timeout = timeout
        self._reconnect = reconnect
        self._uid = uid
        self._keep = keep
        self._current: Session | None = None
        self._closed = False
        self._pool = SlabPools(keep)
        self._leases = catalog.Leases()
        self._references = References()
        self._watchers: WeakGroup[Watch] = WeakGroup()
        self._offers: list[Offer] = []
        self._functions: dict[str, Function] = {}
        self._box: list[Session] = []
        self._finalizer = weakref.finalize(self, _close_later, self._box)
        self._pid = os.getpid()
        forks.track(self, _lock=threading.RLock, forked=Connection._forked)
        self._open(wait)

    # ---- the connection

    def _session(self) -> Session:
        """Returns the session, a new one if the last was lost. Raises UnavailableError where none can be had."""
        session = self._current
        if session is not None and (session.closed is None or os.getpid() != self._pid):
            session.check()
            return session
        if self._closed:
            raise ClosedError("the client is closed")
        return self._open(self._reconnect)

    def _open(self, patience: float) -> Session:
        until = time.monotonic() + patience
        pause = 0.01
        while True:
            with self._lock:
                if self._closed:
                    raise ClosedError("the client is closed")
                current = self._current
                if current is not None and current.closed is None:
                    return current
                if current is not None and not self._reconnect:
                    raise ConnectionLostError(str(current.closed))
                try:
                    return self._adopt()
                except (UnavailableError, ConnectionLostError):
                    if time.monotonic() + pause > until:
                        raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.5)

    def _adopt(self) -> Session:
        me = weakref.ref(self)

        def ended(session: Session) -> None:
            client = me()
            if client is not None:
                client._lost(session)

        again = self._current is not None
        session = Session(self.path, on_end=ended, uid=self._uid)
        self._current = session
        self._box[:] = [session]
        session.run()  # its end finds it as the current one
        if again:
            session.later(lambda: reconnect.resume(me, session))
        return session

    def _lost(self, session: Session) -> None:
        """Called by the session that has ended: connects again in the background if there is something to take
        again."""
        if self._closed or session is not self._current:
            return
        watchers = self._watchers.members()
        for watcher in watchers:
            watcher.lost()
        offers = [*self._offers]
        for offer in offers:
            offer.lost()
        if self._reconnect and (watchers or offers or len(self._leases) or len(self._references)):
            threading.Thread(
                target=reconnect.look_again, args=(weakref.ref(self),), name="sharedtensor reconnect", daemon=True
            ).start()

    def close(self) -> None:
        """Ends the connection. Tensors stay valid while they are referenced. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for watcher in self._watchers.members():
            watcher.fail(ClosedError("the client is closed"))
        for offer in [*self._offers]:
            offer.fail(ClosedError("the client is closed"))
            offer.lost()
        if self._finalizer.detach() is not None:
            for session in self._box:
                session.close()
        self._pool.close()

    def _forked(self) -> None:
        """Ends what waits for the connection, in a forked child."""
        error = ForkError("this client was made before the fork: connect again in this process")
        for watcher in self._watchers.members():
            watcher.fail(error)
        for offer in [*self._offers]:
            offer.fail(error)

    def __reduce__(self) -> Any:
        from . import pickling

        return pickling.client, (
            self.path,
            self._framework,
            self._timeout,
            self._reconnect,
            self._uid,
            self._keep,
        )

    @property
    def server(self) -> messages.Hello:
        """The server's hello: its version, process and devices."""
        return self._session().hello

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        session = self._current
        return session is not None and session.closed is None

    def _start(self, operation: Operation[T], session: Session, timeout: float | None) -> Pending:
        discard = operation.discard

        def late(frame: Frame) -> None:
            if discard is not None:
                discard(frame, session)

        try:
            pending = session.start(operation.op, operation.body, files=operation.files, timeout=timeout, discard=late)
        except BaseException:
            operation.close()
            raise
        return pending

    def _run(self, operation: Operation[T], *, session: Session | None = None, timeout: float | None = None) -> T:
        """Sends an operation, waits, and makes its result. Repeats it over a new connection if it did not run because
        the server is leaving, and once where that is harmless."""
        timeout = self._timeout if timeout is None else timeout
        again = Again(operation.repeatable)
        try:
            while True:
                current = session or self._session()
                try:
                    frame = current.wait(self._start(operation, current, timeout), timeout)
                    break
                except (ConnectionLostError, UnavailableError) as err:
                    if session is not None or not self._repeats(again, err, current):
                        raise
        except Error as err:
            operation.explain(err)
            raise
        finally:
            operation.close()
        return operation.take(frame, current)

    def _run_made(self, make: Callable[[Session], Operation[T]], *, timeout: float | None = None) -> T:
        """Runs an operation that `make` makes for a session. Makes another one for the next session if the operation
        did not run because the server is leaving."""
        again = Again()
        while True:
            session = self._session()
            try:
                return self._run(make(session), session=session, timeout=timeout)
            except LeavingError as err:
                if not self._repeats(again, err, session):
                    raise

    def _repeats(self, again: Again, error: Error, session: Session) -> bool:
        """Returns whether a request that failed is to be sent over another connection."""
        return bool(self._reconnect) and session.closed is not None and not self._closed and again.after(error)


class Again:
    """Counts the attempts of one request."""

    def __init__(self, repeatable: bool = False) -> None:
        """`repeatable` allows one attempt after a failure that leaves open whether the request ran."""
        self._repeatable = repeatable
        self._left = 4

    def after(self, error: Error) -> bool:
        """Returns whether the request may be sent again after an error."""
        self._left -= 1
        if isinstance(error, LeavingError):
            return self._left > 0
        repeatable, self._repeatable = self._repeatable, False
        return repeatable


def _close_later(box: list[Session]) -> None:
    """Has sessions closed by their workers: a finalizer may run in a thread that has one of their locks."""
    for session in box:
        session.later(session.close)
