"""What a client holds at the server, tied to the memory that it came with."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from . import messages
from .errors import Error
from .frames import Frame
from .op import Op
from .session import Session


class Held:
    """Something of the server's that ends with this object: a lease on a version, a reference to a managed object.

    Mappings keep it alive, so that it goes back when the last array over the memory has gone. It is given back by the
    session's worker, since this may happen anywhere.

    :ivar stale: why it is no longer there at the server, or "". The memory stays what it was all the same.
    """

    __slots__ = ("__weakref__", "_finalizer", "_state", "stale")

    def __init__(self, session: Session, number: Any) -> None:
        self.stale = ""
        self._state: list[Any] = [session, number]
        self._finalizer = weakref.finalize(self, _give_back, type(self).request, self._state)
        self._finalizer.atexit = False

    @staticmethod
    def request(session: Session, number: Any) -> None:
        """Tells the server that `number` is given back, without waiting for its answer."""
        raise NotImplementedError

    @property
    def session(self) -> Session | None:
        """The session that holds it, or None when it is gone or was given back."""
        found: Session | None = self._state[0]
        return found

    @property
    def number(self) -> Any:
        """What the server calls it."""
        return self._state[1]

    def lost(self, why: str) -> None:
        """Says that the server no longer has it."""
        self.stale = why
        self._state[0] = None

    def taken_again(self, session: Session, number: Any) -> None:
        """Says that it was taken anew over another connection."""
        self.stale = ""
        self._state[:] = [session, number]

    def close(self) -> None:
        """Gives it back now. Safe to call twice."""
        self._finalizer()
        self._state[0] = None


def _give_back(request: Callable[[Session, Any], None], state: list[Any]) -> None:
    session, number = state
    if session is not None and session.closed is None:
        session.later(lambda: request(session, number))


def _ignore(_: Frame) -> None:
    pass


class Lease(Held):
    """A lease on a version: while somebody has one, the server keeps the version.

    :ivar name: of the model.
    :ivar version: of it.
    :ivar inodes: device and inode of each storage's memory, to know it again.
    """

    __slots__ = ("inodes", "name", "server", "version")

    def __init__(self, session: Session, number: int, name: str, version: int) -> None:
        super().__init__(session, number)
        self.name = name
        self.version = version
        self.server = session.hello.server
        self.inodes: list[tuple[int, int]] = []

    @staticmethod
    def request(session: Session, number: Any) -> None:
        """Gives the lease back."""
        session.start(Op.RELEASE, messages.Release(leases=[number]))


class Reference(Held):
    """A reference to a managed object: while somebody has one, the server keeps the object.

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
        """Gives the reference back."""
        id, token = number
        session.start(Op.RELEASE_OBJECT, messages.ReleaseObjects(ids=[id], tokens=[token] if token else []))


def release_late(session: Session, op: Op, body: Any) -> None:
    """Gives back what a late answer brought. Errors mean that the connection is gone, and it with it."""

    def job() -> None:
        try:
            session.start(op, body)
        except Error:
            pass

    session.later(job)
