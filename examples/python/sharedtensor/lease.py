"""Leases and references at the server, tied to the memory that they protect."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import forks, messages
from .errors import Error
from .op import Op
from .session import Session


class Held:
    """The base of a lease on a version and of a reference to a managed object.

    Mappings keep it alive, so it is released when the last array over the memory is gone. The session's worker releases
    it, because a finalizer may run in any thread and within any lock.

    :ivar stale: why the server no longer has it, or "". The memory stays valid and unchanged.
    """

    __slots__ = ("__weakref__", "_finalizer", "_state", "stale")

    def __init__(self, session: Session, number: Any) -> None:
        self.stale = ""
        self._state: list[Any] = [session, number]
        self._finalizer = weakref.finalize(self, _give_back, type(self).request, self._state)
        self._finalizer.atexit = False

    @staticmethod
    def request(session: Session, number: Any) -> None:
        """Sends the request that releases `number`. Does not wait for the answer."""
        raise NotImplementedError

    @property
    def session(self) -> Session | None:
        """The session that holds it; None if it is lost or was released."""
        found: Session | None = self._state[0]
        return found

    @property
    def number(self) -> Any:
        """Its number or id at the server."""
        return self._state[1]

    @property
    def late(self) -> bool:
        """Whether its session has ended or ends, so that it must be renewed over another one."""
        session = self.session
        return session is not None and session.closed is not None

    def lost(self, why: str) -> None:
        """Records that the server no longer has it."""
        with _changing:
            self.stale = why
            self._state[0] = None

    def taken_again(self, session: Session, number: Any) -> None:
        """Records that it was taken anew over another connection. If it was released meanwhile, the new one is
        released too."""
        with _changing:
            alive = self._finalizer.alive
            if alive:
                self.stale = ""
                self._state[:] = [session, number]
        if not alive:
            _give_back(type(self).request, [session, number])

    def close(self) -> bool:
        """Releases it now. Returns False if it was lost or released before."""
        with _changing:
            state = list(self._state)
            self._state[0] = None
            first = self._finalizer.detach() is not None and state[0] is not None
        if first:
            _give_back(type(self).request, state)
        return first


_changing = threading.Lock()  # guards the state of all Held; a finalizer, whose object is gone, does without
forks.track(sys.modules[__name__], _changing=threading.Lock)


def _give_back(request: Callable[[Session, Any], None], state: list[Any]) -> None:
    session, number = state
    if session is not None and session.closed is None:
        session.later(lambda: request(session, number))


class Lease(Held):
    """A lease on a version. The server keeps a version while it has leases.

    :ivar name: of the model.
    :ivar version: of it.
    :ivar server: identifies the versions of the server, which the next owner may adopt.
    :ivar place: path of the owner's socket, and the uid that `connect` was given.
    :ivar memory: what identifies the memory of each storage, to recognize it after a reconnect.
    :ivar placement: the UUID of the device that the lease was requested on, b"" for the origin. A lease of a placement
        is renewed as one of the origin, because this process has the memory of the placement.
    :ivar part: the part of the version that was requested, None for the whole.
    :ivar digest: of the whole version that the part belongs to, b"" if it is not known or there is no part.
    """

    __slots__ = ("digest", "memory", "name", "part", "place", "placement", "server", "version")

    def __init__(self, session: Session, number: int, name: str, version: int) -> None:
        super().__init__(session, number)
        self.name = name
        self.version = version
        self.server = session.published
        self.place = session.path, session.uid
        self.memory: list[tuple[Any, ...]] = []
        self.placement = b""
        self.part: messages.Part | None = None
        self.digest = b""

    @staticmethod
    def request(session: Session, number: Any) -> None:
        """Sends the release of the lease."""
        session.start(Op.RELEASE, messages.Release(leases=[number]))


class Reference(Held):
    """A reference to a managed object. The server keeps an object while it has references.

    :ivar id: of the object.
    :ivar server: the life of the server that has it.
    """

    __slots__ = ("id", "server")

    def __init__(self, session: Session, ref: messages.ObjectRef) -> None:
        super().__init__(session, (ref.id, ref.token))
        self.id = ref.id
        self.server = ref.server

    @staticmethod
    def request(session: Session, number: Any) -> None:
        """Sends the release of the reference."""
        id, token = number
        session.start(Op.RELEASE_OBJECT, messages.ReleaseObjects(ids=[id], tokens=[token] if token else []))


def release_late(session: Session, op: Op, body: Any) -> None:
    """Releases the lease or reference in a late answer. If the connection is lost, the server has released it."""

    def job() -> None:
        try:
            session.start(op, body)
        except Error:
            pass

    session.later(job)
