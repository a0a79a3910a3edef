"""News of names: watching them, and following the newest version of one."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import messages
from .errors import ClosedError, DeadlineExceededError, Error, NotFoundError
from .frames import Frame
from .models import Model
from .op import EventKind, Op
from .session import Session

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
    """Events of names, as `Client.watch` returns it: an iterator that waits for the next one. It goes on over a new
    connection when the old one is lost; what happened meanwhile is then told as it is."""

    _KEEP = 4096

    def __init__(
        self,
        client: Client,
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
        self._changed = threading.Condition()
        self._closed: Error | None = None
        self._session: Session | None = None
        self._id = 0
        client._watchers.add(self)
        try:
            self.begin(client._session())
        except BaseException:
            self.close()
            raise

    def begin(self, session: Session) -> None:
        """Subscribes over a session. Raises what the server answers."""
        with self._changed:
            if self._closed is not None or self._session is session:
                return
            self._session = session
        self._tell(Event("connected"))  # before the first event can come
        pending = session.start(Op.WATCH, messages.Watch(names=self._names), events=self._receive)
        self._id = pending.id
        session.wait(pending, 10).close()

    def _receive(self, frame: Frame) -> None:
        frame.close()
        sent = messages.Event.decode(frame.body)
        if sent.kind in _NAMES:  # kinds of later versions are ignored
            self._tell(Event(_NAMES[EventKind(sent.kind)], sent.name, sent.version))

    def lost(self) -> None:
        """Says that the connection is lost."""
        with self._changed:
            self._session = None
        self._tell(Event("disconnected"))

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
        else:
            with self._changed:
                self._news.append(event)
                self._changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    def ready(self) -> bool:
        """Reports whether `next` would not wait."""
        with self._changed:
            return bool(self._news) or self._closed is not None

    def next(self, timeout: float | None = None) -> Event:
        """Waits for the next event. Raises DeadlineExceededError after `timeout` seconds and ClosedError once
        closed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._news or self._closed, timeout):
                raise DeadlineExceededError(f"no event within {timeout:g} s")
            if self._news:
                return self._news.popleft()
            assert self._closed is not None
            raise ClosedError(str(self._closed))

    def __iter__(self) -> Iterator[Event]:
        while True:
            try:
                event = self.next()
            except ClosedError:
                return
            yield event

    def fail(self, error: Error) -> None:
        """Ends it with an error."""
        with self._changed:
            if self._closed is not None:
                return
            self._closed = error
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    def close(self) -> None:
        """Ends it. Safe to call twice."""
        self.fail(ClosedError("the watch is closed"))
        self._client._watchers.discard(self)
        session, self._session = self._session, None
        if session is not None and self._id and session.closed is None:
            session.forget(self._id)
            try:
                session.start(Op.UNWATCH, messages.Unwatch(watch=self._id))
            except Error:
                pass  # the connection is gone, and the watch with it

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Follower:
    """Always the newest version of a name, as `Client.follow` returns it.

    A version is acquired when somebody asks for it, not when it is published: who is slow skips versions.
    """

    def __init__(
        self, client: Client, name: str, framework: str | None, on_change: Callable[[], None] | None = None
    ) -> None:
        """`on_change` is called from any thread when something was heard of the name, and at the end."""
        self._client = client
        self._name = name
        self._framework = framework
        self._changed = threading.Condition()
        self._newest = 0
        self._on_change = on_change
        self._current: Model | None = None
        self._acquire_lock = threading.Lock()
        self._watch = Watch(client, (name,), self._hear, self._wake)

    def _hear(self, event: Event) -> None:
        with self._changed:
            if event.kind == "connected":
                self._newest = 0  # another server counts anew; it says at once what it has
            elif event.kind == "published" and event.name == self._name:
                self._newest = max(event.version, self._newest)
            elif event.kind == "withdrawn" and event.name == self._name:
                self._newest = 0

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._on_change is not None:
            self._on_change()

    @property
    def newest(self) -> int:
        """The newest version that is known, 0 for none."""
        return self._newest

    @property
    def current(self) -> Model:
        """The newest version, acquired if it is not the one from before. Waits for the first one to be published."""
        return self.wait_newer(0)

    def wait_newer(self, version: int | None = None, timeout: float | None = None) -> Model:
        """Waits until there is a later version than `version` and returns the newest.

        :param version: None for that of the model that was returned last. A server that was replaced by another counts
            anew: what that has is newer than anything of the one before.
        :param timeout: in seconds; DeadlineExceededError then.

        Raises ClosedError once the follower or its client is closed.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            self._wait(version, until)
            try:
                return self._take()
            except NotFoundError:  # withdrawn or replaced meanwhile
                continue

    def ready(self, version: int | None = None) -> bool:
        """Reports whether `wait_newer` of that version would not wait: there is a later one, or all is closed."""
        with self._changed:
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
        return "" if session is None else session.hello.server

    def _wait(self, version: int | None, until: float | None) -> None:
        with self._changed:
            left = None if until is None else max(until - time.monotonic(), 0)
            if not self._changed.wait_for(lambda: self._known(version), left):
                raise DeadlineExceededError(f"no newer version of {self._name!r} in time: the newest is {self._newest}")
            if self._watch._closed is not None:
                raise ClosedError(str(self._watch._closed))

    def _take(self) -> Model:
        with self._acquire_lock:
            last = self._current
            if last is None or last.version != self._newest or last.server != self._server():
                self._current = self._client.acquire(self._name, framework=self._framework)
                with self._changed:
                    self._newest = max(self._newest, self._current.version)
            assert self._current is not None
            return self._current

    def __iter__(self) -> Iterator[Model]:
        """Yields the newest version, then each time a newer one is there the newest."""
        version = 0
        while True:
            try:
                model = self.wait_newer(version)
            except ClosedError:
                return
            version = model.version
            yield model

    def close(self) -> None:
        """Ends it. The models that it gave out stay. Safe to call twice."""
        self._current = None
        self._watch.fail(ClosedError("the follower is closed"))
        self._watch.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sharedtensor.Follower of {self._name!r}, newest {self._newest}>"
