"""Calls, streams and what they return."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import Empty
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import cbor, forks, messages, operations, values
from .again import Again
from .errors import DeadlineExceededError, Error, LeavingError
from .frames import Frame, close_all
from .frameworks import Framework
from .inbox import Inbox, finalize_later, stop_stream
from .lease import Reference, release_late
from .memory import SlabPools
from .op import Op
from .operations import Operation
from .session import GRACE, Pending, Session
from .waiting import seconds

if TYPE_CHECKING:
    from .connection import Connection

T = TypeVar("T")
NOTHING: Any = object()
"""Stands for an argument that was not given."""


def argument(value: Any, fields: dict[str, Any]) -> Any:
    """Returns the one argument of an endpoint: a single value, or the fields of a struct."""
    if value is NOTHING:
        return fields
    if fields:
        raise TypeError("an endpoint has one argument: a value by itself or fields by name, not both")
    return value


class Object:
    """A managed result, with a reference to it. The server keeps an object while it has references.

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
        """Releases the reference now. Tensors stay valid. Returns False if it was released before or the object is
        gone."""
        return self._reference.close()

    def __reduce__(self) -> Any:
        raise TypeError("a reference to a managed object belongs to one connection: call the function there instead")

    def __enter__(self) -> Object:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<sharedtensor.Object {self.id}{', stale: ' + self.stale if self.stale else ''}>"


Track = Callable[[Reference], None]


@functools.lru_cache(1024)
def _prefix(endpoint: str) -> bytes:
    name = endpoint.encode()
    return b"\x01" + cbor.head(3, len(name)) + name + b"\x02"


def encoded(endpoint: str, out: values.Outgoing) -> cbor.Encoded:
    """Returns the encoding of messages.Call."""
    data = _prefix(endpoint) + out.item
    if not out.handles:
        return cbor.Encoded(b"\xa2" + data)
    handles = [h if isinstance(h, bytes) else h.encode() for h in out.handles]
    return cbor.Encoded(b"\xa3" + data + b"\x03" + cbor.head(4, len(handles)) + b"".join(handles))


def finish_returned(frame: Frame, session: Session, framework: Framework, track: Track) -> tuple[Any, Object | None]:
    """Returns the value of a `returned`, and the object if the result is managed."""
    plain = cbor.decode(frame.body, tags=cbor.VALUE_TAGS, depth=cbor.VALUE_DEPTH)
    if type(plain) is dict and len(plain) == 1 and 1 in plain and not frame.files:
        return values.decode_plain(plain[1], framework), None
    answer = messages.Returned.from_plain(plain)
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
    """Releases the reference in a late answer."""
    ref = messages.Returned.decode(frame.body).object
    if ref is not None:
        release_late(session, Op.RELEASE_OBJECT, messages.ReleaseObjects(ids=[ref.id], tokens=[ref.token]))


def call(
    endpoint: str,
    value: Any,
    pools: SlabPools,
    framework: Framework,
    track: Track,
    writable: bool,
    session: Session,
) -> Operation[tuple[Any, Object | None]]:
    """Calls an endpoint; the result is its value and, where it is managed, the object."""
    out = values.Outgoing(value, session, pools.arguments, writable=writable, kept=None if writable else session.kept)

    def finish(frame: Frame, session: Session) -> tuple[Any, Object | None]:
        if not out.settled and session.kept is not None:
            session.kept.answered(out.numbered)
        return finish_returned(frame, session, framework, track)

    return Operation(
        Op.CALL,
        encoded(endpoint, out),
        finish,
        files=out.files,
        discard=discard_returned,
        done=out.release,
        numbered=out.numbered,
    )


def invalidate(endpoint: str, value: Any, fields: dict[str, Any], pools: SlabPools, session: Session) -> Operation[int]:
    """Drops cached results: that of one call, or without an argument all of an endpoint. The result is how many."""
    if value is NOTHING and not fields:
        return operations.invalidate(endpoint)
    out = values.Outgoing(argument(value, fields), session, pools.arguments)
    return Operation(
        Op.INVALIDATE_CALL,
        encoded(endpoint, out),
        lambda frame, _: messages.Invalidated.decode(frame.body).count,
        files=out.files,
        done=out.release,
    )


class Stream(Generic[T], Iterator[T]):
    """The results of a stream as they arrive. `close`, an exception of `next`, and dropping the iterator stop the
    function and release the results that were not read.

    One thread reads it. Any thread may close it.
    """

    _CREDIT = 16

    def __init__(
        self,
        endpoint: str,
        value: Any,
        client: Connection,
        framework: Framework,
        on_item: Callable[[], None] | None = None,
        timeout: float | None = None,
        check: Callable[[Any], T] | None = None,
    ) -> None:
        """`on_item` is called by any thread after each result and at the end. The stream keeps its client alive. The
        server stops the function after `timeout` seconds. `check` receives each result and returns it."""
        self._check = check
        self._client = client
        self._value = value
        self._endpoint = endpoint
        self._on_item = on_item
        self._timeout = timeout = seconds(timeout)
        self._until = None if timeout is None else time.monotonic() + timeout + GRACE
        self._again = Again(client, False, timeout)
        self._framework = framework
        self._taken = 0
        self._over = False
        self.restart()

    def restart(self) -> None:
        """Makes the call, which may wait for a connection."""
        self._client._attempts(lambda session, _: self._begin(session))
        self._over = False

    def pause_after(self, error: LeavingError) -> float | None:
        """Returns the seconds after which the call is to be made again, after it did not run because the server is
        leaving; None if `error` is final. It is final after the first result."""
        return None if self._taken else self._again.after(error, self._session)

    def _begin(self, session: Session) -> None:
        self._session = session
        self._inbox = inbox = Inbox(self._on_item, session)
        out = values.Outgoing(self._value, session, self._client._pool.arguments)
        try:
            self._pending = session.start(
                Op.STREAM,
                encoded(self._endpoint, out),
                files=out.files,
                events=inbox.put,
                timeout=self._again.left(),
            )
        except BaseException:
            out.close()
            raise
        self._stop = stop_stream(session, self._pending, inbox)
        self._finalizer = finalize_later(self, session, self._stop)
        close_all(out.files)
        out.files = []
        self._pending.when_done(inbox.put)
        self._pending.when_done(lambda _: out.release())

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        """Returns the next result. Raises StopIteration at the end, and the function's error."""
        try:
            while True:
                try:
                    return self.take(self.left())
                except LeavingError as err:
                    pause = self.pause_after(err)
                    if pause is None:
                        raise
                    time.sleep(pause)
                    self.restart()
        except BaseException:
            self.close()
            raise

    def take(self, timeout: float | None) -> T:
        """Returns the next result, as `next` does, and waits for it for `timeout` seconds. Raises LeavingError if the
        call did not run because the server is leaving."""
        if self._over:
            raise StopIteration
        try:
            item = self._inbox.get(timeout)
        except Empty:
            raise DeadlineExceededError(f"the stream has not ended within {self._timeout:g} s") from None
        return self._result(item)

    def left(self) -> float | None:
        """Returns the seconds that `next` may wait; None for any time. The server has some more to report the end."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.001)

    def empty(self) -> bool:
        """Reports whether the next result has not arrived yet."""
        return not self._over and self._inbox.empty()

    def _result(self, item: Frame | Pending | None) -> T:
        """Returns the result in an item. Raises StopIteration at the last one."""
        if item is None:
            raise StopIteration
        if isinstance(item, Pending):
            self._over = True
            self._finalizer.detach()
            self._session.forget(item.id)
            self._inbox.close()
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
                pass  # the end of the connection arrives through the inbox
        result: T = value if self._check is None else self._check(value)
        return result

    def close(self) -> None:
        """Stops the function. Safe to call twice."""
        self._over = True
        if self._finalizer.detach() is not None:
            self._stop()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class References:
    """The references of a client. They are marked stale when their object is destroyed, and renewed over another
    connection."""

    _lock: threading.Lock

    def __init__(self, renew: Callable[[], None]) -> None:
        """`renew` is called after a reference was added whose session ends."""
        forks.track(self, _lock=threading.Lock)
        self._renew = renew
        self._held: weakref.WeakSet[Reference] = weakref.WeakSet()

    def add(self, reference: Reference) -> None:
        """Adds one that was just taken."""
        with self._lock:
            self._held.add(reference)
        if reference.late:
            self._renew()

    def __len__(self) -> int:
        return len(self.held())

    def held(self) -> list[Reference]:
        """Returns the references that are held."""
        with self._lock:
            return [ref for ref in self._held if ref.session is not None]

    def gone(self, id: str, reason: str) -> None:
        """Marks the references to an object that the server has destroyed."""
        for ref in self.held():
            if ref.id == id:
                ref.lost(reason or "the object was destroyed")

    def take_again(self, session: Session) -> None:
        """Renews the references of an earlier session with this server. References to another server become stale."""
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
