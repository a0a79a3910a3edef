"""A client's connection to its owner: requests, reconnection, and what is renewed after it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from . import catalog, forks, messages
from .again import Again
from .calls import References
from .errors import ClosedError, ConnectionLostError, Error, ForkError, NotFoundError, UnavailableError
from .frames import Frame
from .frameworks import Framework
from .groups import WeakGroup
from .memory import SlabPools
from .models import Model
from .operations import REPEATABLE, Operation, Steps
from .placing import Place
from .reconnect import look_again, renew_late, resume, start_to_look
from .session import Pending, Session
from .tensors import Choice
from .version_parts import RankPart
from .waiting import seconds
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
        self._timeout = seconds(timeout)
        self._reconnect = reconnect
        self._uid = uid
        self._keep = keep
        self._current: Session | None = None
        self._closed = False
        self._pool = SlabPools(keep)
        me = weakref.ref(self)
        self._leases = catalog.Leases(me, lambda: renew_late(me))
        self._references = References(lambda: renew_late(me))
        self._watchers: WeakGroup[Watch] = WeakGroup()
        self._offers: list[Offer] = []
        self._begun = 0.0  # when the last session began
        self._rest = 0.0  # seconds before the next attempt to connect in the background
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
                lost = client._lost
                del client
                lost(session)

        def leaving(session: Session) -> None:
            start_to_look(me)

        again = self._current is not None
        session = Session(self.path, on_end=ended, on_leave=leaving, uid=self._uid)
        try:
            self._begun = time.monotonic()
            self._current = session
            self._box[:] = [*(s for s in self._box if s.answers_tasks), session]
            session.run()  # its end finds it as the current one
        except BaseException as err:
            session.fail(ConnectionLostError(f"the connection is given up: {err!r}"))
            raise
        if again:
            session.later(lambda: resume(me, session))
        return session

    def _lost(self, session: Session) -> None:
        """Called by the receive thread of the session that has ended, as its last. Connects again if there is something
        to renew."""
        if self._closed or session is not self._current:
            return
        watchers = self._watchers.members()
        for watcher in watchers:
            watcher.lost()
        offers = [*self._offers]
        for offer in offers:
            offer.lost()
        if not self._reconnect:
            self._give_up(ConnectionLostError(str(session.closed)))
        elif self._renews():
            # A server that ends each connection at once is not to be asked without a pause.
            brief = time.monotonic() - self._begun < 1
            self._rest = min(self._rest * 1.5 + 0.01, 1.0) if brief else 0.0
            me = weakref.ref(self)
            rest = self._rest
            del self, watchers, offers
            time.sleep(rest)
            look_again(me)

    def _renews(self) -> bool:
        """Reports whether the client has something to renew over a new connection."""
        return bool(self._watchers.members() or self._offers or len(self._leases) or len(self._references))

    def _give_up(self, error: Error) -> None:
        """Ends what waits for a connection that does not come."""
        for watcher in self._watchers.members():
            watcher.fail(error)
        for offer in [*self._offers]:
            offer.fail(error)

    def close(self) -> None:
        """Ends the connection. Tensors stay valid while they are referenced. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        error = ClosedError("the client is closed")
        offers = [*self._offers]
        self._give_up(error)
        for offer in offers:
            offer.lost()
        if self._finalizer.detach() is not None:
            for session in self._box:
                session.close()
        self._pool.close()

    def _forked(self) -> None:
        """Ends what waits for the connection, in a forked child."""
        self._give_up(ForkError("this client was made before the fork: connect again in this process"))

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

    def _ready(self) -> Session | None:
        """Returns the session if there is one to send requests over. Does not wait."""
        session = self._current
        return session if session is not None and session.closed is None and os.getpid() == self._pid else None

    def _start(self, operation: Operation[T], session: Session, timeout: float | None, *, wait: bool = True) -> Pending:
        discard = operation.discard
        late = None if discard is None else partial(_discard, discard, session)
        return session.start(
            operation.op, operation.body, files=operation.files, timeout=timeout, discard=late, wait=wait
        )

    def _run(self, operation: Operation[T], *, timeout: float | None = None, task: Session | None = None) -> T:
        """Runs an operation that any session can send. It is closed afterwards. `task` is the session of a task that
        the operation is about."""
        try:
            return self._attempts(lambda session, left: self._once(operation, session, left), operation, timeout, task)
        except Error as err:
            operation.explain(err)
            raise
        finally:
            operation.close()

    def _run_made(
        self, make: Callable[[Session], Operation[T]], *, timeout: float | None = None, repeatable: bool = False
    ) -> T:
        """Runs an operation that `make` makes for a session, another one for each session. `repeatable` is that of the
        operations."""
        like = REPEATABLE if repeatable else None
        return self._attempts(lambda session, left: self._once_made(make, session, left), like, timeout)

    def _acquire(
        self,
        name: str,
        version: int,
        framework: Framework,
        tensors: Choice | None = None,
        device: Place = None,
        part: RankPart | None = None,
        timeout: float | None = None,
    ) -> Model[Any]:
        """Attaches to a version, on a device unless that is None, or to a part of it."""
        arguments = name, version, framework, self._leases, tensors
        if device is None and part is None:
            return self._run(catalog.acquire(*arguments), timeout=timeout)
        return self._run_made(
            lambda session: catalog.acquire(*arguments, device, part, session=session), timeout=timeout, repeatable=True
        )

    def _run_steps(self, steps: Steps[T], *, timeout: float | None = None) -> T:
        """Runs the operations that a generator yields, and returns its result."""
        operation = next(steps)
        while True:
            try:
                operation = steps.send(self._run(operation, timeout=timeout))
            except StopIteration as done:
                result: T = done.value
                return result

    def _once_made(self, make: Callable[[Session], Operation[T]], session: Session, timeout: float | None) -> T:
        while True:
            operation = make(session)
            try:
                return self._once(operation, session, timeout)
            except NotFoundError as err:
                if not operation.must_resend(err, session):
                    raise
            finally:
                operation.close()

    def _once(self, operation: Operation[T], session: Session, timeout: float | None) -> T:
        """Sends an operation over a session, waits, and makes its result."""
        try:
            frame = session.wait(self._start(operation, session, timeout), timeout)
        except Error as err:
            operation.explain(err)
            raise
        return operation.take(frame, session)

    def _attempts(
        self,
        once: Callable[[Session, float | None], T],
        operation: Operation[Any] | None = None,
        timeout: float | None = None,
        task: Session | None = None,
    ) -> T:
        """Calls `once` with a session and the seconds that are left, again as `Again` allows. The first session is
        `task` if that answers requests about its tasks."""
        limit = seconds(timeout, self._timeout)
        session = task if task is not None and task.answers_tasks else self._session()
        try:
            return once(session, limit)
        except (ConnectionLostError, UnavailableError) as err:
            again = Again(self, operation is not None and operation.repeatable, limit)
            failure: Error = err
        while True:
            pause = again.after(failure, session)
            if pause is None:
                raise failure
            time.sleep(pause)
            try:
                session = self._session()
                return once(session, again.left())
            except (ConnectionLostError, UnavailableError) as err:
                failure = err


def _discard(discard: Callable[[Frame, Session], None], session: Session, frame: Frame) -> None:
    discard(frame, session)


def _close_later(box: list[Session]) -> None:
    """Has sessions closed by their workers: a finalizer may run in a thread that has one of their locks."""
    for session in box:
        session.later(session.close)
