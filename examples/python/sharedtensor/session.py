"""One connection to a server: requests, their answers, and events, from any number of threads."""

from __future__ import annotations

import errno
import itertools
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from . import cbor, forks, inline, kept, messages
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
    ResourceExhaustedError,
    UnavailableError,
)
from .frames import STALL_TIMEOUT, Connection, Frame, descriptors_exhausted
from .groups import WeakGroup
from .message import Message
from .op import Kind, Op
from .users import is_nobody
from .waiting import Bell, Waiter
from .wire_errors import exception_of

PROTOCOL = 1
HELLO_TIMEOUT = 5.0
GRACE = 1.0
"""Seconds beyond a request's timeout in which the server may still answer that it ran out."""


_REQUEST, _RESPONSE, _ERROR, _EVENT, _GOODBYE = map(
    int, (Kind.REQUEST, Kind.RESPONSE, Kind.ERROR, Kind.EVENT, Kind.GOODBYE)
)
_FINAL = (ConnectionLostError, ClosedError, ResourceExhaustedError)
"""Errors that end a session as they are."""
_NO_WAIT = (False,)
_TICK = 0.002
"""Seconds that the receive thread leaves the socket to another thread that reads it."""
_OF_TASKS = frozenset({Op.TASK, Op.WAIT_FOR_TASK, Op.TASK_RESULT, Op.CANCEL_TASK})
"""Requests about one task. The server that accepted the task answers them also after its goodbye."""
_MOST_TASKS = 4096
"""Tasks that a session records. Beyond it the connection to a leaving server may end before the oldest of them."""
_FORKED = "this client was made before the fork: connect again in this process"


def label() -> str:
    """Returns the label of this process in the server's tables: the name of its program."""
    return cbor.shown("python " + Path(sys.argv[0] or "-").name)[:64] if sys.argv else "python"


class Pending(Waiter):
    """A request that was sent, and its outcome. One thread waits for it, or the thread that reads calls callbacks."""

    __slots__ = ("_callbacks", "_discard", "_frame", "_lock", "error", "id", "submits")

    def __init__(self, id: int, discard: Callable[[Frame], None] | None = None, *, submits: bool = False) -> None:
        """`discard` receives an answer that has no taker, to release what it brings. The frame is closed afterwards.
        `submits` is set if the request submits a task."""
        super().__init__()
        self.id = id
        self.submits = submits
        self._discard = discard
        self._frame: Frame | None = None
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Pending], None]] = []

    def finish(self, frame: Frame | None, error: BaseException | None) -> None:
        """Sets the outcome if there is none yet. Takes the frame, and discards it if it comes second. After an
        interruption it may be called again: callbacks may then be called twice."""
        with self._lock:  # one hold for check and change: answers, deadlines and ^C arrive in different threads
            late = self.done
            if not late:
                self._frame, self.error, self.done = frame, error, True
        self.wake()
        if self._callbacks:
            for callback in [*self._callbacks]:
                callback(self)
            self._callbacks.clear()
        if late and frame is not None and frame is not self._frame:
            self._drop(frame)

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
        """Calls `callback` when there is an outcome, at once if there is one already. After an interruption it may be
        called twice."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback(self)

    def wait(self, seconds: float | None) -> bool:
        """Waits for the outcome, without reading the socket. Returns whether there is one."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self.done:
            if not self.pause(None if until is None else until - time.monotonic()):
                return self.done
        return True

    def result(self) -> Frame:
        """Returns the response, which becomes the caller's, or raises the error. There has to be an outcome."""
        with self._lock:
            frame, self._frame = self._frame, None
        if frame is None:
            raise self.error or ClosedError("the answer was taken before")
        return frame


_PREFIXES = {op: cbor.head(0, 1) + cbor.head(0, op) for op in Op}


def _not_sent(error: Error) -> Error:
    """Returns the error of a request of which nothing was sent: it did not run and can be sent to the next server."""
    return LeavingError(f"the request was not sent: {error}") if isinstance(error, ConnectionLostError) else error


def _envelope(op: Op, body: bytes | None, timeout: float | None) -> bytes:
    """Returns the encoding of messages.Request."""
    if timeout is None:
        return b"\xa1" + _PREFIXES[op] if body is None else b"\xa2" + _PREFIXES[op] + b"\x03" + body
    limit = b"\x02" + cbor.head(0, max(int(timeout * 1e9), 1))
    if body is None:
        return b"\xa2" + _PREFIXES[op] + limit
    return b"\xa3" + _PREFIXES[op] + limit + b"\x03" + body


class Ended(Protocol):
    """What is notified of the end of a session."""

    def end(self, error: Error) -> None:
        """Receives the error that ended it."""


class Session:
    """A connection after the hellos. Made by `connect`; `closed` is set at its end, and it is not used again then.

    :ivar hello: the server's hello.
    :ivar kept: what the server keeps of the memory of arguments; None if it keeps none.
    :ivar path: of the socket.
    :ivar uid: the user of the server; None for this process's own.
    """

    _lock: threading.Lock
    _token: threading.Lock  # held by the thread that reads the socket

    def __init__(
        self,
        path: str,
        *,
        on_end: Callable[[Session], None],
        on_leave: Callable[[Session], None] = lambda _: None,
        timeout: float = HELLO_TIMEOUT,
        uid: int | None = None,
    ) -> None:
        """Connects to the socket at `path`. Raises UnavailableError if no server answers, PermissionDeniedError for
        a server of another user.

        :param on_end: called by the receive thread as its last, when all requests have ended.
        :param on_leave: called by the thread that reads, when the server has said goodbye while answers are owed.
        """
        self._pid = os.getpid()
        self.path = path
        self.uid = uid
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._listeners: dict[int, Callable[[Frame], None]] = {}
        self._tasks: dict[str, None] = {}  # submitted and not settled, the oldest first
        self._on_end = on_end
        self.closed: Error | None = None
        self._on_leave = on_leave
        self._conn = _dial(path, timeout)
        try:
            self._bell = Bell()
        except BaseException as err:
            self._conn.close()
            if isinstance(err, OSError):
                raise descriptors_exhausted(f"connecting to {path}") from err
            raise
        try:
            _check_peer(self._conn, path, os.geteuid() if uid is None else uid)
            self.hello = self._meet(time.monotonic() + timeout)
        except BaseException:
            self._conn.close()
            self._bell.close()
            raise
        self.kept = kept.Kept() if kept.FEATURE in self.hello.features else None
        self.inline = inline.FEATURE in self.hello.features
        self._conn.add_bell(self._bell.fd)
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._followers: deque[Waiter] = deque()  # threads that wait while another one reads
        self._failure: Error | None = None  # why the connection has ended, for the receive thread
        self.leader: Waiter | None = None  # what the thread waits for that reads
        self._received = 0  # reads of the socket
        self._over = False
        self._thread = threading.Thread(target=self._receive, name="sharedtensor receive", daemon=True)
        self.inboxes: WeakGroup[Ended] = WeakGroup()  # whose readers receive the end
        self._loops = 0  # event loops that read the socket
        forks.track(self, _lock=threading.Lock, _token=threading.Lock, forked=Session._forked)

    def run(self) -> None:
        """Starts to receive. Called once, by the one who made the session, when it is ready for its end."""
        self._thread.start()
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
            features=["offer", "digests", "placements", "parts", kept.FEATURE, inline.FEATURE],
        )
        try:
            self._conn.send(Kind.HELLO, 0, mine.encode())
            frame = self._conn.receive(deadline)
        except (ConnectionLostError, ClosedError) as err:
            raise UnavailableError(f"the server at {self.path} ended the connection before its hello: {err}") from err
        except UnavailableError as err:
            raise UnavailableError(
                f"the owner at {self.path} does not answer: it may be stopped or have too little processor time"
            ) from err
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
        body: Message | bytes | None,
        *,
        files: Sequence[int] = (),
        timeout: float | None = None,
        events: Callable[[Frame], None] | None = None,
        discard: Callable[[Frame], None] | None = None,
        wait: bool = True,
    ) -> Pending:
        """Sends a request. `files` stay the caller's. `events` is called with each event of it, by the thread that
        receives, until the session ends or `forget`; `discard` with a response that arrives after the request was
        cancelled here. Raises ClosedError or ConnectionLostError, LeavingError if the connection ended before anything
        was sent, ResourceExhaustedError for what is too large to send, and with `wait` false BlockingIOError if the
        request cannot be sent at once."""
        of_task = op in _OF_TASKS
        if not (of_task and self.answers_tasks):
            try:
                self.check()
            except ConnectionLostError as err:
                raise _not_sent(err) from err
        data = _envelope(op, None if body is None else body if isinstance(body, bytes) else body.encode(), timeout)
        pending = Pending(next(self._ids), discard, submits=op == Op.SUBMIT)
        with self._lock:
            if self.closed is not None and not (of_task and self.answers_tasks):
                raise _not_sent(self.closed)
            self._pending[pending.id] = pending
            if events is not None:
                self._listeners[pending.id] = events
        sent: list[int] = []
        try:
            self._conn.send(_REQUEST, pending.id, data, files, sent=sent, wait=wait)
        except BaseException as err:
            if self._conn.broken is None and any(sent):
                self.cancel(pending, CanceledError("the caller was interrupted"))  # it was sent as a whole
            else:
                with self._lock:
                    self._pending.pop(pending.id, None)
                    self._listeners.pop(pending.id, None)
                self._check_connection()
            if isinstance(err, ConnectionLostError) and not any(sent):
                raise _not_sent(err) from err
            raise
        return pending

    def request(
        self, op: Op, body: Message | bytes | None, *, files: Sequence[int] = (), timeout: float | None = None
    ) -> Frame:
        """Sends a request and waits for its answer, whose descriptors are the caller's. Raises what the server answers,
        and DeadlineExceededError after `timeout` seconds."""
        return self.wait(self.start(op, body, files=files, timeout=timeout), timeout)

    def wait(self, pending: Pending, timeout: float | None) -> Frame:
        """Waits for the answer of a request that `start` sent. An exception in this thread meanwhile, such as ^C,
        cancels it."""
        try:
            if not self.drive(pending, None if timeout is None else timeout + GRACE):
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
        finally:
            self._check_connection()

    def _check_connection(self) -> None:
        """Ends the session if the connection is broken, because a message was sent in part."""
        broken = self._conn.broken
        if broken is not None and self.closed is None:
            self.fail(ConnectionLostError(f"the connection is broken: a message was sent in part ({broken!r})"))

    def fail(self, error: Error) -> None:
        """Ends the session with an error. New requests are refused at once. The receive thread does the rest."""
        if self.closed is None:
            self.closed = error
        if self._failure is None:
            self._failure = error
        self._conn.fail(error)

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

    @property
    def answers_tasks(self) -> bool:
        """Whether requests about the tasks of this session can be sent. That holds after the server's goodbye too."""
        goes_on = self.closed is None or isinstance(self.closed, LeavingError)
        return goes_on and self._failure is None and os.getpid() == self._pid

    def settled(self, id: str) -> None:
        """Records that nothing more is expected of a task that was submitted here."""
        with self._lock:
            self._tasks.pop(id, None)
        self._end_if_answered()

    def later(self, job: Callable[[], None]) -> None:
        """Queues a job for the session's worker, which runs jobs in order. Never blocks and takes no lock, so that
        finalizers and listeners may call it. Once the session has ended, and in a forked child, jobs are dropped."""
        if os.getpid() == self._pid:
            self._jobs.put(job)

    def drain(self) -> None:
        """Waits until the jobs that were queued before are done, at most a second."""
        done = threading.Event()
        self.later(done.set)
        if self.closed is None:
            done.wait(1)

    # ---- receiving

    # One thread at a time reads the socket, the one that has the token. A thread that waits for an answer takes the
    # token if it is free, reads for all, and passes the token on when its own answer has come. This saves handing each
    # answer from a receive thread to its caller. The receive thread reads what arrives while no thread waits.

    def drive(self, waiter: Waiter, seconds: float | None) -> bool:
        """Waits until `waiter` is done, and reads the socket meanwhile if no other thread does. Returns False after
        `seconds`, and once the session has ended."""
        until = None if seconds is None else time.monotonic() + seconds
        while not waiter.done:
            took: list[bool] = []  # filled by C code: a handler of a signal cannot come between
            try:
                if self._failure is None:
                    took.extend(map(self._token.acquire, _NO_WAIT))
                    if took[0] and not waiter.done:
                        self._lead(waiter, until)
            finally:
                if took and took[0]:
                    self._token.release()
                    if self._followers:
                        self._promote()
            left = None if until is None else until - time.monotonic()
            if waiter.done or (left is not None and left <= 0):
                break
            if took and took[0] and self._failure is None:
                continue
            self._follow(waiter, left)
            if self._over:
                break
        return waiter.done

    def _follow(self, waiter: Waiter, seconds: float | None) -> None:
        """Waits until the thread that reads has woken this one: what it waits for has come, or it is to read."""
        self._followers.append(waiter)
        interrupted = True
        try:
            if (self._token.locked() or self._failure is not None) and not self._over:
                waiter.pause(seconds)
            interrupted = False
        finally:
            try:
                self._followers.remove(waiter)
                promoted = False
            except ValueError:
                promoted = True
            if promoted and (interrupted or waiter.done):
                self._promote()  # this thread does not read

    def _promote(self) -> None:
        """Wakes a thread that waits, to read the socket."""
        while self._followers:
            try:
                waiter = self._followers.popleft()
            except IndexError:
                return
            waiter.wake()
            if not waiter.done:
                return

    def _lead(self, waiter: Waiter, until: float | None) -> None:
        """Reads the socket until `waiter` is done. The caller has the token."""
        conn = self._conn
        self.leader = waiter
        midway = True
        try:
            while True:
                self._read_frames()
                midway = False
                if waiter.done or self._failure is not None or not self._await(waiter, until):
                    return
                midway = True
                try:
                    if not conn.read():
                        raise ConnectionLostError("the server has ended the connection")
                    self._received += 1
                except BlockingIOError:
                    pass  # the bell was rung
        except Error as err:
            self.fail(err if isinstance(err, _FINAL) else ConnectionLostError(f"the connection is given up: {err}"))
        except BaseException as err:
            if midway:  # what was read may not be recorded, or not be delivered
                self.fail(ConnectionLostError(f"the connection is given up: the thread that reads got {err!r}"))
            raise
        finally:
            self.leader = None

    def _await(self, waiter: Waiter, until: float | None) -> bool:
        """Waits until there is something to read, or `waiter` is woken. Returns False at `until`."""
        bell = self._bell
        waiter.bell = bell
        try:
            if waiter.done:
                return True
            ready = self._conn.wait(None if until is None else until - time.monotonic())
        finally:
            waiter.bell = None
        if ready and (len(ready) > 1 or ready[0][0] == bell.fd):
            bell.hush()
        return bool(ready)

    def _read_frames(self) -> None:
        """Delivers the messages that have arrived whole."""
        while self._failure is None:
            frame = self._conn.next_frame()
            if frame is None:
                return
            if frame.kind != _GOODBYE:
                self._deliver(frame)
            else:
                left = self.closed is None
                bye = messages.Goodbye.decode(frame.body)
                reason = bye.reason or "no reason given"
                with self._lock:  # new requests are refused; answers that are owed still come
                    self.closed = self.closed or LeavingError(f"the server says goodbye: {reason}")
                if left and (self._pending or self._tasks):
                    self._on_leave(self)
            if self.closed is not None:
                self._end_if_answered()

    def _end_if_answered(self) -> None:
        """Ends the session after a goodbye when no answers are owed any more. The server ends a session whose tasks
        are not settled."""
        with self._lock:
            owed = bool(self._pending or self._tasks)
        if not owed and isinstance(self.closed, LeavingError):
            self.fail(self.closed)

    def read_now(self) -> bool:
        """Reads and delivers what has arrived, if no other thread reads. Returns False once the session has ended. For
        event loops."""
        took: list[bool] = []
        try:
            took.extend(map(self._token.acquire, _NO_WAIT))
            if took[0]:
                self._read_once()
        finally:
            if any(took):
                self._token.release()
                self._promote()
        return self._failure is None

    def share_reading(self, loops: int) -> int:
        """Counts an event loop that reads the socket, or with -1 one that reads no more. Returns a duplicate of the
        socket's descriptor for a new one, -1 otherwise."""
        with self._lock:
            fd = os.dup(self._conn.fileno()) if loops > 0 else -1
            self._loops += loops
        return fd

    def _receive(self) -> None:
        """Reads what arrives while no other thread reads, and ends the session. It runs in a separate thread."""
        poll = select.poll()
        poll.register(self._conn.fileno(), select.POLLIN)
        seen = -1
        stalled: float | None = None  # since when a message does not go on
        while self._failure is None:
            ready = poll.poll(None if stalled is None else STALL_TIMEOUT * 1000)
            if ready and self._loops and seen != self._received:
                seen = self._received  # an event loop reads; if it makes no progress this thread does
                time.sleep(_TICK)
            elif self._token.acquire(False):
                try:
                    before = self._received
                    if self._failure is None:
                        self._read_once()
                    if not self._conn.partial:
                        stalled = None
                    elif stalled is None or before != self._received:
                        stalled = time.monotonic()
                    elif time.monotonic() - stalled > STALL_TIMEOUT:
                        self.fail(
                            ConnectionLostError("the connection is given up: a frame that has begun does not go on")
                        )
                finally:
                    self._token.release()
                    self._promote()
            else:
                stalled = stalled or time.monotonic()
                time.sleep(_TICK)  # another thread reads
        try:
            with self._token:  # no thread reads any more
                self._end(self._failure or ClosedError("the session has ended"))
        finally:
            self._on_end(self)

    def _read_once(self) -> None:
        """Reads and delivers what has arrived. The caller has the token. A separate method, so that the thread refers
        to no frame and no listener while it waits for the next one."""
        try:
            self._read_frames()
            if self._failure is not None:
                return
            if not self._conn.read():
                raise ConnectionLostError("the server has ended the connection")
            self._received += 1
            self._read_frames()
        except BlockingIOError:
            pass
        except Error as err:
            self.fail(err if isinstance(err, _FINAL) else ConnectionLostError(f"the connection is given up: {err}"))
        except BaseException as err:
            self.fail(ConnectionLostError(f"the connection is given up: {err!r}"))
            if threading.current_thread() is not self._thread:
                raise

    def _deliver(self, frame: Frame) -> None:
        kind, id = frame.kind, frame.id
        if kind == _RESPONSE or (kind == _ERROR and id):
            pending = self._pending.get(id)
            if pending is None:
                frame.close()
                raise ProtocolError(f"an answer to the request {id}, which was not sent")
            if kind == _RESPONSE:
                if pending.submits:  # before the outcome: a goodbye that has arrived must not end the session
                    self._submitted(messages.TaskInfo.decode(frame.body).id)
                pending.finish(frame, None)
            else:
                pending.finish(None, exception_of(messages.ErrorMessage.decode(frame.body)))
            # After the outcome: a request that is not finished because of an interruption ends with the session.
            with self._lock:
                self._pending.pop(id, None)
                if kind == _ERROR:
                    self._listeners.pop(id, None)
        elif kind == _EVENT:
            listener = self._listeners.get(id)
            if listener is None:
                frame.close()
            else:
                listener(frame)
        elif kind == _ERROR:
            raise exception_of(messages.ErrorMessage.decode(frame.body))
        else:
            frame.close()
            raise ProtocolError(f"a server sends no frame of kind {kind}")

    def _submitted(self, id: str) -> None:
        with self._lock:
            self._tasks[id] = None
            if len(self._tasks) > _MOST_TASKS:
                del self._tasks[next(iter(self._tasks))]

    def _end(self, error: Error) -> None:
        """Ends all that waits. The receive thread calls it once, with the token."""
        with self._lock:
            self.closed = self.closed or error
            pending, self._pending = list(self._pending.values()), {}
            self._listeners.clear()
            self._tasks.clear()
        self._over = True
        try:
            for each in pending:
                each.finish(None, type(error)(str(error)))
            for inbox in self.inboxes.members():
                inbox.end(error)
            self._conn.shutdown()
            self._conn.close()
            self._bell.close()
        finally:
            self._jobs.put(None)
            while self._followers:
                self._followers.popleft().wake()

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
        self.closed = self._failure = ForkError(_FORKED)
        self._over = True
        self._bell.close()
        pending, self._pending = list(self._pending.values()), {}
        self._listeners.clear()
        for each in pending:
            each.renew()
            each.finish(None, ForkError(_FORKED))
        for inbox in self.inboxes.members():
            inbox.end(ForkError(_FORKED))

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
        finally:
            self.fail(self.closed)


def _dial(path: str, timeout: float) -> Connection:
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE):
            raise descriptors_exhausted(f"connecting to {path}") from err
        raise ResourceExhaustedError(f"connecting to {path}: {err.strerror}") from err
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
            f"no server at {path} ({err.strerror or err}): start your owner or `sharedtensor serve NAME=FILE`, "
            "or say where it is"
        ) from err
    return Connection(sock)


def _check_peer(conn: Connection, path: str, uid: int) -> None:
    _, peer, _ = conn.peer()
    if is_nobody(peer):
        raise PermissionDeniedError(
            f"the server at {path} is of a user without an id in this user namespace, which is shown as {peer}: "
            "map the user, or run both in the same user namespace"
        )
    if peer != uid:
        raise PermissionDeniedError(
            f"the server at {path} is of user {peer}, not of {uid}: connect(uid={peer}) says that this is meant"
        )
