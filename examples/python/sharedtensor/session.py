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

from . import forks, messages
from .errors import (
    CanceledError,
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    Error,
    ForkError,
    LeavingError,
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
"""Seconds beyond a request's timeout in which the server may still answer that it ran out."""


_FORKED = "this client was made before the fork: connect again in this process"


def label() -> str:
    """Returns the label of this process in the server's tables: the name of its program."""
    return ("python " + Path(sys.argv[0] or "-").name)[:64] if sys.argv else "python"


class Pending:
    """A request that was sent, and its outcome. One thread waits for it, or the receive thread calls callbacks."""

    __slots__ = ("_callbacks", "_discard", "_done", "_frame", "_gate", "_lock", "error", "id")

    def __init__(self, id: int, discard: Callable[[Frame], None] | None = None) -> None:
        """`discard` receives an answer that has no taker, to release what it brings. The frame is closed afterwards."""
        self.id = id
        self._discard = discard
        self._frame: Frame | None = None
        self.error: BaseException | None = None
        self._done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending], None]] = []

    def finish(self, frame: Frame | None, error: BaseException | None) -> None:
        """Sets the outcome if there is none yet. Takes the frame, and discards it if it comes second."""
        with self._lock:  # one hold for check and change: answers, deadlines and ^C arrive in different threads
            late = self._done
            if not late:
                self._frame, self.error, self._done = frame, error, True
            callbacks, self._callbacks = self._callbacks, []
        if late:
            self._drop(frame)
            return
        self._gate.release()
        for callback in callbacks:
            callback(self)

    def renew(self) -> None:
        """Makes the lock anew, in a forked child."""
        self._lock = threading.Lock()

    def abandon(self, error: BaseException) -> None:
        """Ends the request with `error`. Discards an answer that has come but was not taken by `result`."""
        self.finish(None, error)
        with self._lock:
            frame, self._frame = self._frame, None
            if frame is not None:
                self.error = error
        self._drop(frame)

    def _drop(self, frame: Frame | None) -> None:
        if frame is None:
            return
        try:
            if self._discard is not None:
                self._discard(frame)
        finally:
            frame.close()

    def when_done(self, callback: Callable[[Pending], None]) -> None:
        """Calls `callback` when there is an outcome, at once if there is one already."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, seconds: float | None) -> bool:
        """Waits for the outcome. Returns whether there is one."""
        if not self._gate.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            return False
        self._gate.release()
        return True

    def result(self) -> Frame:
        """Returns the response, which becomes the caller's, or raises the error. There has to be an outcome."""
        with self._lock:
            frame, self._frame = self._frame, None
        if frame is None:
            raise self.error or ClosedError("the answer was taken before")
        return frame


class Session:
    """A connection after the hellos. Made by `connect`; `closed` is set at its end, and it is not used again then.

    :ivar hello: the server's hello.
    :ivar path: of the socket.
    :ivar uid: the user of the server; None for this process's own.
    """

    _lock: threading.Lock

    def __init__(
        self, path: str, *, on_end: Callable[[Session], None], timeout: float = HELLO_TIMEOUT, uid: int | None = None
    ) -> None:
        """Connects to the socket at `path`. Raises UnavailableError if no server answers, PermissionDeniedError for
        a server of another user."""
        self._pid = os.getpid()
        self.path = path
        self.uid = uid
        self._ids = itertools.count(1)
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
        forks.track(self, _lock=threading.Lock, forked=Session._forked)
        threading.Thread(target=self._receive, name="sharedtensor receive", daemon=True).start()
        threading.Thread(target=self._work, name="sharedtensor work", daemon=True).start()

    @property
    def published(self) -> str:
        """Identifies the server's published versions. It stays the same when another owner adopts them."""
        return self.hello.catalog or self.hello.server

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
            raise UnavailableError(f"the server at {self.path} ended the connection before its hello: {err}") from err
        if frame is None or frame.kind == Kind.GOODBYE:
            raise UnavailableError(f"the server at {self.path} is stopping")
        if frame.kind == Kind.ERROR:
            raise exception_of(messages.ErrorMessage.decode(frame.body))
        if frame.kind != Kind.HELLO or frame.id or frame.files:
            frame.close()
            raise ProtocolError(f"the server at {self.path} does not begin with a hello")
        hello = messages.Hello.decode(frame.body)
        if min(hello.protocol, PROTOCOL) < max(hello.oldest, PROTOCOL):
            raise ProtocolError(
                f"the server at {self.path} speaks versions {hello.oldest} to {hello.protocol}, this client {PROTOCOL}"
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
        receives, until the session ends or `forget`; `discard` with a response that arrives after the request was
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
        """Ends a request here with `error` and has the server stop it. In a child of the process that made the
        session nothing happens."""
        if os.getpid() != self._pid:
            return
        self.forget(pending.id)
        pending.abandon(error)
        try:
            self._conn.send(Kind.CANCEL, pending.id, messages.Cancel(reason=str(error)[:200]).encode())
        except Error:
            pass  # best effort: a lost connection ends the request as well

    def forget(self, id: int) -> None:
        """Stops the delivery of a request's events. An answer that is still owed is discarded when it comes."""
        with self._lock:
            self._listeners.pop(id, None)

    def unwatch(self, id: int) -> None:
        """Ends the watch or the offer of the request `id`. Does not wait for the server's answer."""
        self.forget(id)
        try:
            self.start(Op.UNWATCH, messages.Unwatch(watch=id))
        except Error:
            pass  # best effort: a lost connection ends it as well

    def check(self) -> None:
        """Raises the error that ended the session, and ForkError in a child of the process that made it."""
        if os.getpid() != self._pid:
            raise ForkError(_FORKED)
        if self.closed is not None:
            raise self.closed

    def later(self, job: Callable[[], None]) -> None:
        """Queues a job for the session's worker, which runs jobs in order. Never blocks and takes no lock, so that
        finalizers and listeners may call it. Once the session has ended, and in a forked child, jobs are dropped."""
        if os.getpid() == self._pid:
            self._jobs.put(job)

    # ---- receiving

    def _receive(self) -> None:
        error: Error | None = None
        try:
            while error is None:
                error = self._receive_one()
        except (ConnectionLostError, ClosedError) as err:
            error = err
        except Error as err:
            error = ConnectionLostError(f"the connection is given up: {err}")
        except BaseException as err:
            error = ConnectionLostError(f"the connection is given up: {err!r}")
        self._end(error)

    def _receive_one(self) -> Error | None:
        """Receives and delivers one frame. Returns the error that ends the session, or None. A separate method, so
        that the thread refers to no frame and no listener while it waits for the next one."""
        frame = self._conn.receive()
        if frame is None:
            return ConnectionLostError("the server has ended the connection")
        if frame.kind != Kind.GOODBYE:
            self._deliver(frame)
            return self._answered()
        bye = messages.Goodbye.decode(frame.body)
        with self._lock:  # new requests are refused; answers that are owed still come
            self.closed = self.closed or LeavingError(f"the server says goodbye: {bye.reason or 'no reason given'}")
        return self._answered()

    def _answered(self) -> Error | None:
        """Returns the error that ends the session after a goodbye when no answers are owed any more, or None."""
        with self._lock:
            return self.closed if isinstance(self.closed, LeavingError) and not self._pending else None

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
        try:
            for each in pending:
                each.finish(None, type(error)(str(error)))
            self._conn.shutdown()
            self._conn.close()
            self._on_end(self)
        finally:
            self._jobs.put(None)

    def _work(self) -> None:
        while self._work_one():
            pass

    def _work_one(self) -> bool:
        """Runs the next job. Returns False at the end of the session. A separate method, so that the thread refers
        to no job while it waits for the next one."""
        job = self._jobs.get()
        if job is None:
            return False
        try:
            job()
        except Error:
            pass  # best effort: the server releases what the job was to release when the connection ends
        except BaseException as err:  # a job that fails must not stop those behind it
            threading.excepthook(
                threading.ExceptHookArgs((type(err), err, err.__traceback__, threading.current_thread()))
            )
        return True

    def _forked(self) -> None:
        """Ends the session, and the requests that wait, in a forked child."""
        self.closed = ForkError(_FORKED)
        pending, self._pending = list(self._pending.values()), {}
        self._listeners.clear()
        for each in pending:
            each.renew()
            each.finish(None, ForkError(_FORKED))

    def close(self) -> None:
        """Sends a goodbye and closes. Requests that wait end with ClosedError. In a child of the process that
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
