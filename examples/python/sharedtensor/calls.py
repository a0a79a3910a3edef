"""Calls, streams and what they return."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from . import messages, values
from .errors import ClosedError, Error
from .frames import Frame, close_all
from .frameworks import Framework
from .lease import Reference, release_late
from .memory import SlabPool
from .op import Op
from .operations import Operation
from .session import Pending, Session

T = TypeVar("T")
NOTHING: Any = object()
"""Stands for an argument that was not given."""


def argument(value: Any, fields: dict[str, Any]) -> Any:
    """Returns the one argument of an endpoint: a value by itself, or the fields of a struct."""
    if value is NOTHING:
        return fields
    if fields:
        raise TypeError("an endpoint has one argument: a value by itself or fields by name, not both")
    return value


class Object:
    """A managed result: the server keeps it while somebody has a reference, and this is one.

    :ivar value: the result. Its tensors keep the reference too.
    :ivar id: of the object.
    :ivar cached: whether it was there already.
    """

    def __init__(self, value: Any, reference: Reference, cached: bool) -> None:
        self.value = value
        self.id = reference.id
        self.server = reference.server
        self.cached = cached
        self._reference = reference

    @property
    def stale(self) -> str:
        """Why the server no longer has the object, or "". The tensors stay as they are."""
        return self._reference.stale

    def release(self) -> bool:
        """Gives the reference back now. Tensors stay valid. Returns False if it was given back before or the object
        is gone."""
        if self._reference.session is None:
            return False
        self._reference.close()
        return True

    def __enter__(self) -> Object:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<sharedtensor.Object {self.id}{', stale: ' + self.stale if self.stale else ''}>"


Track = Callable[[Reference], None]


def finish_returned(frame: Frame, session: Session, framework: Framework, track: Track) -> tuple[Any, Object | None]:
    """Returns the value of a `returned`, and the object that it is where it is a managed one."""
    answer = messages.Returned.decode(frame.body)
    reference = None if answer.object is None else Reference(session, answer.object)
    if reference is not None:
        track(reference)
    value, _ = values.decode(answer.value, answer.handles, frame, session, framework, owner=reference)
    return value, None if reference is None else Object(value, reference, answer.cached)


def object_of(endpoint: str, found: tuple[Any, Object | None]) -> Object:
    """Returns the object that `finish_returned` found. Raises Error where the result is not managed."""
    if found[1] is None:
        raise Error(f"the results of {endpoint} are not managed: use call")
    return found[1]


def discard_returned(frame: Frame, session: Session) -> None:
    """Gives back the reference that a late answer brings."""
    ref = messages.Returned.decode(frame.body).object
    if ref is not None:
        release_late(session, Op.RELEASE_OBJECT, messages.ReleaseObjects(ids=[ref.id], tokens=[ref.token]))


def call(
    endpoint: str,
    value: Any,
    session: Session,
    pool: SlabPool,
    framework: Framework,
    track: Track,
    *,
    writable: bool = False,
) -> Operation[tuple[Any, Object | None]]:
    """Calls an endpoint; the result is its value and, where it is managed, the object."""
    out = values.Outgoing(value, session, pool, writable=writable)
    return Operation(
        Op.CALL,
        messages.Call(endpoint=endpoint, args=out.plain, handles=out.handles),
        lambda frame, s: finish_returned(frame, s, framework, track),
        files=out.files,
        discard=discard_returned,
        done=out.release,
    )


def invalidate(endpoint: str, value: Any, session: Session, pool: SlabPool) -> Operation[int]:
    """Drops the cached result of one call; the result is how many."""
    out = values.Outgoing(value, session, pool)
    return Operation(
        Op.INVALIDATE_CALL,
        messages.Call(endpoint=endpoint, args=out.plain, handles=out.handles),
        lambda frame, _: messages.Invalidated.decode(frame.body).count,
        files=out.files,
        done=out.release,
    )


class Stream(Generic[T], Iterator[T]):
    """The results of a stream as they come. Ends with its last one; `close`, or leaving it unreferenced, stops the
    function.

    Not for several threads at once.
    """

    _CREDIT = 16

    def __init__(
        self,
        endpoint: str,
        value: Any,
        session: Session,
        pool: SlabPool,
        framework: Framework,
        on_item: Callable[[], None] | None = None,
    ) -> None:
        """`on_item` is called when something has come, from the thread that receives."""
        self._session = session
        self._framework = framework
        self._queue: SimpleQueue[Frame | Pending] = SimpleQueue()
        self._taken = 0
        self._over = False
        out = values.Outgoing(value, session, pool)
        queue = self._queue

        def put(item: Frame | Pending) -> None:  # without the stream, so that one that nobody reads goes
            queue.put(item)
            if on_item is not None:
                on_item()

        try:
            self._pending = session.start(
                Op.STREAM,
                messages.Call(endpoint=endpoint, args=out.plain, handles=out.handles),
                files=out.files,
                events=put,
            )
        except BaseException:
            out.close()
            raise
        close_all(out.files)
        out.files = []
        self._pending.when_done(put)
        self._pending.when_done(lambda _: out.release())

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """Returns the next result. Raises StopIteration at the end, and what the function returned as its error."""
        if self._over:
            raise StopIteration
        try:
            item = self._queue.get()
        except BaseException:
            self.close()
            raise
        return self._take(item)

    def empty(self) -> bool:
        """Reports whether the next result has still to come."""
        return self._queue.empty()

    def _take(self, item: Frame | Pending) -> T:
        """Makes a result of what came."""
        if isinstance(item, Pending):
            self._over = True
            self._session.forget(item.id)
            item.result().close()
            raise StopIteration
        try:
            sent = messages.StreamItem.decode(item.body)
            value, _ = values.decode(sent.value, sent.handles, item, self._session, self._framework)
        finally:
            item.close()
        self._taken += 1
        if self._taken % (self._CREDIT // 2) == 0:
            more = messages.StreamMore(stream=self._pending.id, items=self._CREDIT // 2)
            try:
                self._session.start(Op.STREAM_MORE, more)
            except Error:
                pass  # the end of the connection comes by the queue
        result: T = value
        return result

    def close(self) -> None:
        """Stops the function. Safe to call twice."""
        if self._over:
            return
        self._over = True
        self._session.cancel(self._pending, ClosedError("the stream is closed"))
        while not self._queue.empty():
            item = self._queue.get()
            if isinstance(item, Frame):
                item.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._over = True
            session, pending = self._session, self._pending
            session.later(lambda: session.cancel(pending, ClosedError("nobody reads the stream")))


class References:
    """The references of a client, to mark those stale whose object is destroyed, and to take them again over another
    connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Reference] = weakref.WeakSet()

    def add(self, reference: Reference) -> None:
        """Adds one that was just taken."""
        with self._lock:
            self._held.add(reference)

    def __len__(self) -> int:
        return len(self.held())

    def held(self) -> list[Reference]:
        """Returns those that are still held."""
        with self._lock:
            return [ref for ref in self._held if ref.session is not None]

    def gone(self, id: str, reason: str) -> None:
        """Marks the references to an object that the server has destroyed."""
        for ref in self.held():
            if ref.id == id:
                ref.lost(reason or "the object was destroyed")

    def take_again(self, session: Session) -> None:
        """Takes each reference of an earlier session anew, of the same life of the server; others are stale."""
        for ref in self.held():
            if ref.session is session:
                continue
            if ref.server != session.hello.server:
                ref.lost("the server that had the object is gone")
                continue
            try:
                frame = session.request(Op.REFER_TO_OBJECT, messages.Object(id=ref.id), timeout=10)
            except Error as err:
                if session.closed is None:
                    ref.lost(str(err))
                continue
            info = messages.ObjectInfo.decode(frame.body)
            frame.close()
            ref.taken_again(session, (ref.id, info.token))
