"""One connection to a server: requests, their answers, and events, from any number of threads."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

from . import messages
from .errors import (
    CanceledError,
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    ForkError,
    PermissionDeniedError,
    ProtocolError,
    UnavailableError,
)
from .frames import Connection, Frame
from .message import Message
from .op import Kind, Op
from .wire_errors import exception_of

PROTOCOL = 1
HELLO_TIMEOUT = 5.0
GRACE = 1.0
"""Seconds beyond a request's timeout in which the server may still say that it ran out."""


def label() -> str:
    """Returns how this process introduces itself: the name of its program."""
    return ("python " + Path(sys.argv[0] or "-").name)[:64] if sys.argv else "python"


class Pending:
    """A request that has been sent, until its answer has come. One thread waits, or callbacks are called by the one
    that receives."""

    __slots__ = ("_callbacks", "_discard", "_done", "_gate", "_lock", "error", "frame", "id")

    def __init__(self, id: int, discard: Callable[[Frame], None] | None = None) -> None:
        """`discard` gets an answer that nobody waits for any more, to give back what it brings."""
        self.id = id
        self._discard = discard
        self.frame: Frame | None = None
        self.error: BaseException | None = None
        self._done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending], None]] = []

    def finish(self, frame: Frame | None, error: BaseException | None) -> None:
        """Sets the outcome, once. Takes the frame."""
        with self._lock:
            late = self._done
        if late:
            if frame is not None:
                if self._discard is not None:
                    self._discard(frame)
                frame.close()
            return
        with self._lock:
            self.frame, self.error, self._done = frame, error, True
            callbacks, self._callbacks = self._callbacks, []
        self._gate.release()
        for callback in callbacks:
            callback(self)

    def when_done(self, callback: Callable[[Pending], None]) -> None:
        """Has `callback` called when there is an outcome, at once if there is one."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, seconds: float | None) -> bool:
        """Waits for the outcome; returns whether there is one."""
        if not self._gate.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            return False
        self._gate.release()
        return True

    def result(self) -> Frame:
        """Returns the response, which the caller owns, or raises the error. There has to be an outcome."""
        if self.error is not None:
            raise self.error
        assert self.frame is not None
        return self.frame


class Session:
    """A connection after the hellos. Made by `connect`; `closed` is set at its end, and it is not used again then.

    :ivar hello: what the server said of itself.
    """

    def __init__(
        self, path: str, *, on_end: Callable[[Session], None], timeout: float = HELLO_TIMEOUT, uid: int | None = None
    ) -> None:
        """Connects to the socket at `path`. Raises UnavailableError where nobody answers, PermissionDeniedError for
        a server of another user."""
        self._pid = os.getpid()
        self._path = path
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._listeners: dict[int, Callable[[Frame], None]] = {}
        self._on_end = on_end
        self.closed: Error | None = None
        self._conn = _dial(path, timeout)
        try:
            _check_peer(self._conn, path, os.getuid() if uid is None else uid)
            self.hello = self._meet(time.monotonic() + timeout)
        except BaseException:
            self._conn.close()
            raise
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._receive, name="sharedtensor receive", daemon=True).start()
        threading.Thread(target=self._work, name="sharedtensor work", daemon=True).start()

    def _meet(self, deadline: float) -> messages.Hello:
        mine = messages.Hello(
            protocol=PROTOCOL,
            oldest=PROTOCOL,
            version="python",
            pid=os.getpid(),
            label=label(),
            features=["offer", "digests"],
        )
        try:
            self._conn.send(Kind.HELLO, 0, mine.encode())
            frame = self._conn.receive(deadline)
        except (ConnectionLostError, ClosedError) as err:
            raise UnavailableError(f"the server at {self._path} ended the connection before its hello: {err}") from err
        if frame is None or frame.kind == Kind.GOODBYE:
            raise UnavailableError(f"the server at {self._path} is stopping")
        if frame.kind == Kind.ERROR:
            raise exception_of(messages.ErrorMessage.decode(frame.body))
        if frame.kind != Kind.HELLO or frame.id or frame.files:
            frame.close()
            raise ProtocolError(f"the server at {self._path} does not begin with a hello")
        hello = messages.Hello.decode(frame.body)
        if min(hello.protocol, PROTOCOL) < max(hello.oldest, PROTOCOL):
            raise ProtocolError(
                f"the server at {self._path} speaks versions {hello.oldest} to {hello.protocol}, this client {PROTOCOL}"
            )
        return hello

    # ---- requests

    def start(
        self,
        op: Op,
        body: Message | None,
        *,
        files: Sequence[int] = (),
        timeout: float | None = None,
        events: Callable[[Frame], None] | None = None,
        discard: Callable[[Frame], None] | None = None,
    ) -> Pending:
        """Sends a request. `files` stay the caller's. `events` is called with each event of it, by the thread that
        receives, until the session ends or `forget`; `discard` with a response that comes when the request was
        cancelled here. Raises ClosedError or ConnectionLostError, ResourceExhaustedError for what is too large to
        send."""
        self.check()
        nanoseconds = 0 if timeout is None else max(int(timeout * 1e9), 1)
        data = messages.Request(op=int(op), timeout=nanoseconds, body=None if body is None else body.plain()).encode()
        pending = Pending(next(self._ids), discard)
        with self._lock:
            if self.closed is not None:
                raise self.closed
            self._pending[pending.id] = pending
            if events is not None:
                self._listeners[pending.id] = events
        try:
            self._conn.send(Kind.REQUEST, pending.id, data, files)
        except BaseException:
            with self._lock:
                self._pending.pop(pending.id, None)
                self._listeners.pop(pending.id, None)
            raise
        return pending

    def request(
        self, op: Op, body: Message | None, *, files: Sequence[int] = (), timeout: float | None = None
    ) -> Frame:
        """Sends a request and waits for its answer, whose descriptors are the caller's. Raises what the server answers,
        and DeadlineExceededError after `timeout` seconds."""
        return self.wait(self.start(op, body, files=files, timeout=timeout), timeout)

    def wait(self, pending: Pending, timeout: float | None) -> Frame:
        """Waits for the answer of a request that `start` sent. An exception in this thread meanwhile, such as ^C,
        cancels it."""
        try:
            if not pending.wait(None if timeout is None else timeout + GRACE):
                self.cancel(pending, DeadlineExceededError(f"no answer within {timeout:g} s"))
        except BaseException:
            self.cancel(pending, CanceledError("the caller stopped waiting"))
            raise
        return pending.result()

    def cancel(self, pending: Pending, error: Error) -> None:
        """Ends a request here with `error` and tells the server to stop."""
        pending.finish(None, error)
        self.forget(pending.id)
        try:
            self._conn.send(Kind.CANCEL, pending.id, messages.Cancel(reason=str(error)[:200]).encode())
        except Error:
            pass  # the connection is gone, and the request with it

    def forget(self, id: int) -> None:
        """Has no events of a request delivered any more. Its answer, if one is owed, is dropped when it comes."""
        with self._lock:
            self._listeners.pop(id, None)

    def check(self) -> None:
        """Raises the error that ended the session, and ForkError in a child of the process that made it."""
        if os.getpid() != self._pid:
            raise ForkError("this client was made before the fork: connect again in this process")
        if self.closed is not None:
            raise self.closed

    def later(self, job: Callable[[], None]) -> None:
        """Has a job done by the session's worker, in order: what a finalizer or a listener may not do itself. Never
        blocks."""
        self._jobs.put(job)

    # ---- receiving

    def _receive(self) -> None:
        error: Error
        try:
            while True:
                frame = self._conn.receive()
                if frame is None:
                    error = ConnectionLostError("the server has ended the connection")
                    break
                if frame.kind == Kind.GOODBYE:
                    bye = messages.Goodbye.decode(frame.body)
                    # Answers that are owed still come; nothing may be asked any more.
                    self.closed = UnavailableError(f"the server says goodbye: {bye.reason or 'no reason given'}")
                    continue
                self._deliver(frame)
        except Error as err:
            error = (
                err
                if isinstance(err, (ConnectionLostError, ClosedError))
                else ConnectionLostError(f"the connection is given up: {err}")
            )
        except Exception as err:
            error = ConnectionLostError(f"the connection is given up: {err!r}")
        self._end(error)

    def _deliver(self, frame: Frame) -> None:
        if frame.kind == Kind.EVENT:
            with self._lock:
                listener = self._listeners.get(frame.id)
            if listener is None:
                frame.close()
            else:
                listener(frame)
            return
        if frame.kind not in (Kind.RESPONSE, Kind.ERROR):
            frame.close()
            raise ProtocolError(f"a server sends no frame of kind {frame.kind}")
        if frame.kind == Kind.ERROR and frame.id == 0:
            raise exception_of(messages.ErrorMessage.decode(frame.body))
        with self._lock:
            pending = self._pending.pop(frame.id, None)
            if frame.kind == Kind.ERROR:
                self._listeners.pop(frame.id, None)
        if pending is None:
            frame.close()
            raise ProtocolError(f"an answer to the request {frame.id}, which was not sent")
        if frame.kind == Kind.ERROR:
            pending.finish(None, exception_of(messages.ErrorMessage.decode(frame.body)))
        else:
            pending.finish(frame, None)

    def _end(self, error: Error) -> None:
        with self._lock:
            self.closed = self.closed or error
            pending, self._pending = list(self._pending.values()), {}
            self._listeners.clear()
        for each in pending:
            each.finish(None, type(error)(str(error)))
        self._conn.shutdown()
        self._conn.close()
        self._on_end(self)
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Error:
                pass  # the connection has ended, and what the job was to give back with it

    def close(self) -> None:
        """Says goodbye and closes. Requests that wait are ended with ClosedError. In a child of the process that
        made it nothing happens."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if isinstance(self.closed, ClosedError):
                return
            self.closed = ClosedError("the client is closed")
        try:
            self._conn.send(Kind.GOODBYE, 0, messages.Goodbye().encode())
        except Error:
            pass
        self._conn.shutdown()


def _dial(path: str, timeout: float) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.settimeout(timeout)
    try:
        sock.connect(path)
    except OSError as err:
        sock.close()
        if isinstance(err, PermissionError):
            raise PermissionDeniedError(f"the socket {path} is not open to this user: {err.strerror}") from err
        if "AF_UNIX path too long" in str(err):
            raise UnavailableError(f"the path {path} is too long for a socket: at most 107 bytes are possible") from err
        raise UnavailableError(
            f"no server at {path} ({err.strerror or err}): start `sharedtensor serve NAME=FILE`, or say where it is"
        ) from err
    return Connection(sock)


def _check_peer(conn: Connection, path: str, uid: int) -> None:
    _, peer, _ = conn.peer()
    if peer != uid:
        raise PermissionDeniedError(
            f"the server at {path} is of user {peer}, not of {uid}: connect(uid={peer}) says that this is meant"
        )
