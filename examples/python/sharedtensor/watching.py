"""Watching names, and following the newest version of one."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from . import forks, messages
from .errors import ClosedError, ConnectionLostError, DeadlineExceededError, Error, NotFoundError
from .frames import Frame
from .models import Model
from .op import EventKind, Op
from .operations import REPEATABLE
from .placing import Place
from .session import Session
from .tensors import A
from .version_parts import RankPart
from .waiting import Monitor, seconds

if TYPE_CHECKING:
    from .client import Client

_NAMES = {EventKind.PUBLISHED: "published", EventKind.WITHDRAWN: "withdrawn"}


@dataclass(frozen=True)
class Event:
    """What happened to a name.

    :ivar kind: "published" or "withdrawn"; "connected" and "disconnected" are of the connection, with name "".
    :ivar version: that it happened to.
    """

    kind: str
    name: str = ""
    version: int = 0


class Watch:
    """An iterator over events of names, as `Client.watch` returns it. It continues over a new connection when the old
    one is lost, and begins there with the present state. Closing or dropping it ends the watch."""

    _KEEP = 4096
    _monitor: Monitor

    def __init__(
        self,
        client: Client[Any],
        names: tuple[str, ...],
        on_event: Callable[[Event], None] | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`on_event` gets the events instead of `next`; `on_change` is called after each, and at the end. Both are
        called from any thread."""
        self._client = client
        self._names = list(names)
        self._on_event = on_event
        self._on_change = on_change
        self._news: deque[Event] = deque(maxlen=self._KEEP)
        forks.track(self, _monitor=Monitor)
        self._closed: Error | None = None
        self._at = _Place()
        self._finalizer = weakref.finalize(self, _leave, self._at)
        self._finalizer.atexit = False
        client._watchers.add(self)
        try:
            client._attempts(lambda session, _: self.begin(session), REPEATABLE)
        except BaseException:
            self.close()
            raise

    @property
    def _session(self) -> Session | None:
        return self._at.session

    def begin(self, session: Session) -> None:
        """Subscribes over a session. Raises what the server answers."""
        with self._monitor.lock:
            if self._closed is not None or self._at.session is session or session is not self._client._current:
                return  # another connection has replaced this one meanwhile
            self._at.session, self._at.id = session, 0
        self._tell(Event("connected"))  # before the first event can arrive
        pending = session.start(Op.WATCH, messages.Watch(names=self._names), events=_listener(self))
        try:
            session.wait(pending, 10).close()
        except BaseException:
            session.unwatch(pending.id)  # the server may have begun it all the same
            raise
        with self._monitor.lock:
            closed = self._closed is not None
            if self._at.session is session:
                self._at.id = pending.id
        if closed:  # meanwhile, and without the number to end it
            session.unwatch(pending.id)

    def _receive(self, frame: Frame) -> None:
        sent = messages.Event.decode(frame.body)
        if sent.kind in _NAMES:  # kinds of later versions are ignored
            self._tell(Event(_NAMES[EventKind(sent.kind)], sent.name, sent.version))

    def lost(self) -> None:
        """Records that the connection is lost."""
        with self._monitor.lock:
            self._at.session = None
        self._tell(Event("disconnected"))

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
        else:
            with self._monitor.lock:
                self._news.append(event)
                self._monitor.changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    def ready(self) -> bool:
        """Reports whether `next` would not wait."""
        with self._monitor.lock:
            return bool(self._news) or self._closed is not None

    def next(self, timeout: float | None = None) -> Event:
        """Waits for the next event. Raises DeadlineExceededError after `timeout` seconds and ClosedError once
        closed."""
        timeout = seconds(timeout)
        with self._monitor.lock:
            if not self._monitor.changed.wait_for(lambda: self._news or self._closed, timeout):
                raise DeadlineExceededError(f"no event within {timeout:g} s")
            if self._news:
                return self._news.popleft()
            assert self._closed is not None
            raise self._closed.with_traceback(None)

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                event = self.next()
            except ConnectionLostError:
                raise
            except ClosedError:
                return
            yield event

    def fail(self, error: Error) -> None:
        """Ends it with an error."""
        with self._monitor.lock:
            if self._closed is not None:
                return
            self._closed = error
            self._monitor.changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    def close(self) -> None:
        """Ends the watch. Safe to call twice."""
        self.fail(ClosedError("the watch is closed"))
        self._client._watchers.discard(self)
        with self._monitor.lock:
            session, id = self._at.session, self._at.id
            self._at.session = None
        if session is not None and id:
            session.unwatch(id)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Place:
    """Where a watch is: its session, and the number of its request there, 0 until the server has answered. Separate
    from the watch, so that a finalizer has it when the watch is gone."""

    __slots__ = ("id", "session")

    def __init__(self) -> None:
        self.session: Session | None = None
        self.id = 0


def _leave(at: _Place) -> None:
    session, id = at.session, at.id
    if session is not None and id:
        session.later(lambda: session.unwatch(id))


def _listener(watch: Watch) -> Callable[[Frame], None]:
    """Returns what delivers frames to a watch without keeping it alive."""
    ref = weakref.ref(watch)

    def receive(frame: Frame) -> None:
        frame.close()
        found = ref()
        if found is not None:
            found._receive(frame)

    return receive


class Follower(Generic[A]):
    """The newest version of a name, as `Client.follow` returns it. Closing or dropping it ends the watch.

    A version is acquired when the program requests it, not when it is published. A slow program skips versions.
    """

    _monitor: Monitor
    _acquire_lock: threading.Lock

    def __init__(
        self,
        client: Client[Any],
        name: str,
        framework: str | None,
        on_change: Callable[[], None] | None = None,
        device: Place = None,
        part: RankPart | None = None,
    ) -> None:
        """`on_change` is called from any thread after each event of the name, and at the end. `device` and `part` are
        those of `Client.acquire`."""
        self._device = device
        self._part = part
        self._client = client
        self._name = name
        self._framework = framework
        forks.track(self, _monitor=Monitor, _acquire_lock=threading.Lock)
        self._newest = 0
        self._on_change = on_change
        self._current: Model[A] | None = None
        me = weakref.ref(self)  # a follower that is dropped goes at once, not with the next garbage collection

        def receive(event: Event) -> None:
            found = me()
            if found is not None:
                found._receive(event)

        def wake() -> None:
            found = me()
            if found is not None:
                found._wake()

        self._watch = Watch(client, (name,), receive, wake)

    def _receive(self, event: Event) -> None:
        with self._monitor.lock:
            if event.kind == "connected":
                self._newest = 0  # another server counts anew, and sends its present versions at once
            elif event.kind == "published" and event.name == self._name:
                self._newest = max(event.version, self._newest)
            elif event.kind == "withdrawn" and event.name == self._name:
                self._newest = 0

    def _wake(self) -> None:
        with self._monitor.lock:
            self._monitor.changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    @property
    def newest(self) -> int:
        """The newest version that is known, 0 for none."""
        return self._newest

    @property
    def current(self) -> Model[A]:
        """The newest version, acquired if it is not the one from before. Waits for the first one to be published."""
        return self.wait_newer(0)

    def wait_newer(self, version: int | None = None, timeout: float | None = None) -> Model[A]:
        """Waits until there is a later version than `version` and returns the newest.

        :param version: None for that of the model that was returned last. A new server
            counts anew: its versions are newer than all of the one before.
        :param timeout: in seconds; DeadlineExceededError then.

        Raises ClosedError once the follower or its client is closed.
        """
        timeout = seconds(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wait(version, until)
            try:
                return self._take()
            except NotFoundError:  # withdrawn or replaced meanwhile
                continue

    def ready(self, version: int | None = None) -> bool:
        """Reports whether `wait_newer` of that version would not wait: there is a later one, or all is closed."""
        with self._monitor.lock:
            return self._known(version)

    def _known(self, version: int | None) -> bool:
        if self._watch._closed is not None:
            return True
        last = self._current
        replaced = last is not None and self._server() not in ("", last.server)
        floor = 0 if replaced else version if version is not None else last.version if last is not None else 0
        return self._newest > floor

    def _server(self) -> str:
        session = self._watch._session
        return "" if session is None else session.published

    def _wait(self, version: int | None, until: float | None) -> None:
        with self._monitor.lock:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not self._monitor.changed.wait_for(lambda: self._known(version), left):
                raise DeadlineExceededError(f"no newer version of {self._name!r} in time: the newest is {self._newest}")
            if self._watch._closed is not None:
                raise self._watch._closed.with_traceback(None)

    def _take(self) -> Model[A]:
        with self._acquire_lock:
            last = self._current
            if last is None or last.version != self._newest or last.server != self._server():
                self._current = self._client.acquire(
                    self._name,
                    framework=self._framework,  # type: ignore[arg-type]
                    device=self._device,
                    part=self._part,
                )
                with self._monitor.lock:
                    self._newest = max(self._newest, self._current.version)
            assert self._current is not None
            return self._current

    def __iter__(self) -> Iterator[Model[A]]:
        """Yields the newest version, then each time a newer one is there the newest."""
        version = 0
        while True:
            try:
                model = self.wait_newer(version)
            except ConnectionLostError:
                raise
            except ClosedError:
                return
            version = model.version
            yield model

    def close(self) -> None:
        """Ends it. The models that it gave out stay. Safe to call twice."""
        self._current = None
        self._watch.fail(ClosedError("the follower is closed"))
        self._watch.close()

    def __enter__(self) -> Follower[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sharedtensor.Follower of {self._name!r}, newest {self._newest}>"
