"""Frames over a Unix socket: sixteen bytes of header, one CBOR item, descriptors on the first byte."""

from __future__ import annotations

import array
import errno
import os
import resource
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap

from . import forks, system
from .errors import ClosedError, ConnectionLostError, Error, ProtocolError, ResourceExhaustedError, UnavailableError
from .op import Kind

HEADER = struct.Struct(">IHHQ")
MAX_BODY = 64 << 20
MAX_FRAME_FILES = 253
"""What the kernel takes in one message."""
MAX_MESSAGE_FILES = 4096
SEND_TIMEOUT = 10.0
"""Seconds that a send may wait for a peer that does not read, and that a frame which has begun may stop (three times
of it)."""
STALL_TIMEOUT = 30.0

_ROOM = socket.CMSG_SPACE(MAX_FRAME_FILES * 4)
_CRED = struct.Struct("iII")
_KINDS = frozenset(int(kind) for kind in Kind)
_FILES = int(Kind.FILES)
_BUFFER = 64 << 10
_GROWTH = 256 << 10
"""Bytes of a large body that are allocated before any has arrived."""
# Plain numbers: operators of the socket module's enums are slow.
_SEND_FLAGS = (int(socket.MSG_NOSIGNAL) | int(socket.MSG_DONTWAIT),)
_RECEIVE_FLAGS = int(socket.MSG_CMSG_CLOEXEC) | int(socket.MSG_DONTWAIT)
_TRUNCATED = int(socket.MSG_CTRUNC)
_Read = tuple[int, list[tuple[int, int, bytes]], int, object]


class Frame:
    """A frame as it came. Its descriptors are the receiver's, who closes them."""

    __slots__ = ("body", "files", "id", "kind")

    def __init__(self, kind: int, id: int, body: bytes, files: list[int] | None = None) -> None:
        self.kind = kind
        self.id = id
        self.body = body
        self.files: list[int] = [] if files is None else files

    def close(self) -> None:
        """Closes the descriptors that were not taken. Safe to call twice."""
        if self.files:
            files, self.files = self.files, []
            close_all(files)

    def __del__(self) -> None:
        if self.files:
            self.close()  # the last resort for frames that are dropped on the way; takes no lock

    def __repr__(self) -> str:
        return f"Frame(kind={self.kind}, id={self.id}, body={self.body!r}, files={self.files})"


def _divide(parts: list[tuple[bytes, Sequence[int]]], id: int, files: Sequence[int]) -> Sequence[int]:
    """Adds files frames for descriptors that do not fit into one message. Returns the rest of the descriptors."""
    if len(files) > MAX_MESSAGE_FILES:
        raise ResourceExhaustedError(
            f"a message with {len(files)} descriptors, at most {MAX_MESSAGE_FILES} are possible"
        )
    while len(files) > MAX_FRAME_FILES:
        parts.append((HEADER.pack(0, Kind.FILES, MAX_FRAME_FILES, id), files[:MAX_FRAME_FILES]))
        files = files[MAX_FRAME_FILES:]
    return files


def close_all(files: Iterable[int]) -> None:
    """Closes descriptors. -1 stands for a descriptor that was taken."""
    for fd in files:
        if fd >= 0:
            os.close(fd)


def descriptors_exhausted(what: str) -> ResourceExhaustedError:
    """Returns the error of a process that can open no more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = f"{soft} (RLIMIT_NOFILE, at most {hard})"
    return ResourceExhaustedError(
        f"{what}: this process has reached its limit of {limit} open descriptors; raise it with `ulimit -n`",
        type="descriptors",
    )


class BusyPoll:
    """Decides whether a thread that waits polls for a while before it sleeps. A sleep costs more than a small call, and
    a server that is awake answers within some microseconds.

    After polls in vain the next waits do not poll, up to 63 of them. With one processor none does.
    """

    LIMIT = 50e-6
    """Seconds, about as long as the sleep that polling avoids."""

    def __init__(self) -> None:
        self._misses = 0
        self._skips = 0 if system.PROCESSORS > 1 else -1

    def until(self, poll: Callable[[int], list[tuple[int, int]]]) -> list[tuple[int, int]]:
        """Calls `poll` until it returns something, or polling is no longer worthwhile."""
        if self._skips:
            if self._skips > 0:
                self._skips -= 1
            return []
        end = time.monotonic() + self.LIMIT
        while not (found := poll(0)):
            os.sched_yield()  # the server may be on this processor
            if time.monotonic() > end:
                self._misses = self._skips = min(2 * self._misses + 1, 63)
                return []
        self._misses = 0
        return found


class Connection:
    """A connected socket that sends and receives frames. Any thread may send. One thread at a time receives.

    Python runs handlers of signals between any two instructions, so an exception may arrive in any line. If a message
    was sent in part, or a read is not recorded, it ends the connection: see `broken`. C code adds the results of system
    calls to lists (`extend` over `map`), which no handler interrupts.

    :ivar broken: why nothing more can be sent or received, or None.
    """

    _send_lock: threading.Lock

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket."""
        self._sock = sock
        # The peer would take a forked child for the parent, also when that has ended.
        forks.track(self, _send_lock=threading.Lock, forked=Connection.close)
        self.broken: BaseException | None = None
        sock.setblocking(True)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._busy = BusyPoll()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._low = self._high = 0  # the unread bytes of the buffer
        self._offset = 0  # of the first byte of the buffer in the stream
        self._reads: list[_Read] = []  # results of reads that are not recorded yet
        self._batches: deque[tuple[int, int, list[int]]] = deque()  # ranges of the stream that came with descriptors
        self._large: tuple[int, int, list[int], int] | None = None  # a frame whose body is read into _body
        self._body = bytearray()
        self._filled = 0
        self._gathered: list[int] = []  # descriptors of files frames
        self._expected: int | None = None  # id of the frame that follows them

    def peer(self) -> tuple[int, int, int]:
        """Returns pid, uid and gid of the process at the other end, as the kernel knows them."""
        pid, uid, gid = _CRED.unpack(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
        return pid, uid, gid

    # ---- sending

    def send(
        self,
        kind: int,
        id: int,
        body: bytes,
        files: Sequence[int] = (),
        *,
        sent: list[int] | None = None,
        wait: bool = True,
    ) -> None:
        """Sends one message with its descriptors, which stay the caller's. Raises ConnectionLostError when the peer is
        gone, and ResourceExhaustedError for a message over the limits, of which nothing is sent.

        :param sent: receives the number of bytes that each system call has sent. After an exception it is empty or zero
            if nothing was sent. If a part was sent, the connection is broken. Otherwise all was sent.
        :param wait: if false, raises BlockingIOError where it would wait for another thread or for the peer to read.
            Nothing is sent then.
        """
        if len(body) > MAX_BODY:
            raise ResourceExhaustedError(
                f"a message of {len(body)} bytes, at most {MAX_BODY} are possible", type="too large"
            )
        if sent is None:
            sent = []
        parts: list[tuple[bytes, Sequence[int]]] = []
        if len(files) > MAX_FRAME_FILES:
            files = _divide(parts, id, files)
        data = HEADER.pack(len(body), kind, len(files), id) + body
        parts.append((data, files))
        total = len(data) if len(parts) == 1 else sum(len(part) for part, _ in parts)
        took: list[bool] = []  # filled by C code: a handler of a signal cannot come between
        begun = [0]
        try:
            took.extend(map(self._send_lock.acquire, (wait,)))
            if not took[0]:
                raise BlockingIOError("another thread sends")
            if self.broken is not None:
                raise ConnectionLostError(f"the connection is broken: {self.broken}")
            for part, rights in parts:
                self._send_part(part, rights, sent, begun, wait)
        except BaseException as err:
            done = sum(sent)
            if len(sent) != begun[0] or 0 < done < total:  # a part was sent, or it is not known what
                self.fail(err)
            if isinstance(err, (OSError, ProtocolError)) and not isinstance(
                err, (BlockingIOError, ConnectionLostError)
            ):
                self.fail(err)
                raise ConnectionLostError(f"the connection to the server is lost: {err}") from err
            raise
        finally:
            if took and took[0]:
                self._send_lock.release()

    def _send_part(self, data: bytes, files: Sequence[int], sent: list[int], begun: list[int], wait: bool) -> None:
        """Sends one frame. Before each system call `begun` is counted up, after it `sent` has its result."""
        rest: bytes | memoryview = data
        until = 0.0
        while True:
            begun[0] += 1
            try:
                if files:
                    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
                    sent.extend(starmap(self._sock.sendmsg, (([rest], rights, *_SEND_FLAGS),)))
                else:
                    sent.extend(map(self._sock.send, (rest,), _SEND_FLAGS))
            except BlockingIOError:
                sent.append(0)
                if not wait and not any(sent):
                    raise
                until = until or time.monotonic() + SEND_TIMEOUT
                _wait(self._sock, select.POLLOUT, until, "the peer does not read")
                continue
            except OSError:
                sent.append(0)  # the kernel took nothing
                raise
            n = sent[-1]
            if n == len(rest):
                return
            rest, files, until = memoryview(rest)[n:], (), 0.0

    # ---- receiving

    def receive(self, deadline: float | None = None) -> Frame | None:
        """Waits for the next message, files frames gathered into it. Returns None at an ordinary end of the connection.

        Raises ProtocolError for what breaks the protocol, ConnectionLostError where the connection ends within a
        frame, and UnavailableError if nothing arrives until the deadline.
        """
        while True:
            frame = self.next_frame()
            if frame is not None:
                return frame
            late: Error = UnavailableError("the peer does not answer")
            if self.partial:
                left, late = STALL_TIMEOUT, ProtocolError("a frame that has begun does not go on")
            else:
                left = -1.0 if deadline is None else max(deadline - time.monotonic(), 0)
            if not self._poll.poll(left * 1000 if left >= 0 else None):
                raise late
            try:
                if not self.read():
                    return None
            except BlockingIOError:
                pass

    @property
    def partial(self) -> bool:
        """Whether a message has begun to arrive and is not complete. After `next_frame` has returned None."""
        return self._low != self._high or self._large is not None or self._expected is not None

    def add_bell(self, fd: int) -> None:
        """Has `wait` return also if another descriptor can be read."""
        self._poll.register(fd, select.POLLIN)

    def wait(self, seconds: float | None) -> list[tuple[int, int]]:
        """Waits until `read` would return. Returns the descriptors that can be read, none after `seconds`. For the
        thread that receives. It polls for some microseconds before it sleeps: see `BusyPoll`."""
        poll = self._poll.poll
        return poll(0) or self._busy.until(poll) or poll(None if seconds is None else max(seconds, 0) * 1000)

    def read(self) -> bool:
        """Takes what has arrived, in one system call. Returns False at an ordinary end of the connection. Raises
        BlockingIOError if nothing has arrived."""
        large = self._large is not None
        if large:
            if self._filled == len(self._body):  # grows with what has arrived: announcing much costs the peer as much
                self._body.extend(bytes(min(self._large_size(), 4 * len(self._body)) - len(self._body)))
            into = memoryview(self._body)[self._filled :]
        else:
            into = self._buffer
            if self._low == self._high:
                self._offset += self._high
                self._low = self._high = 0
            else:
                if _BUFFER - self._high < _BUFFER // 2:
                    rest = bytes(into[self._low : self._high])
                    into[: len(rest)] = rest
                    self._offset += self._low
                    self._low, self._high = 0, len(rest)
                into = into[self._high :]
        reads = self._reads
        try:
            reads.extend(starmap(self._sock.recvmsg_into, (([into], _ROOM, _RECEIVE_FLAGS),)))
        except BlockingIOError:
            raise
        except OSError as err:
            if isinstance(err, ConnectionError):
                raise ConnectionLostError(f"the connection to the server is lost: {err}") from err
            raise ClosedError(f"the connection is closed: {err}") from err
        n, ancillary, flags, _ = reads[-1]
        if not ancillary and not flags & _TRUNCATED:
            if not n:
                reads.clear()
                if self.partial:
                    raise ConnectionLostError("the connection ended within a frame")
                return False
            if large:
                self._filled += n
            else:
                self._high += n
            reads.clear()
            return True
        self._record(n, _descriptors(ancillary), flags)
        return True

    def _record(self, n: int, files: list[int], flags: int) -> None:
        """Records a read that came with descriptors."""
        if flags & _TRUNCATED:
            raise _truncated()
        if self._large is not None:
            raise ProtocolError("descriptors come within a frame")
        if len(self._batches) == 2:
            raise ProtocolError("descriptors come that no frame announces")
        begin = self._offset + self._high
        self._batches.append((begin, begin + n, files))
        self._high += n
        self._reads.clear()

    def _large_size(self) -> int:
        assert self._large is not None
        return self._large[3]

    def next_frame(self) -> Frame | None:
        """Returns the next message that has arrived whole, or None. Raises ProtocolError for what breaks the
        protocol."""
        while True:
            frame = self._next_part()
            if frame is None:
                return None
            if self._expected is None and frame.kind != _FILES:
                return frame
            if self._expected is not None and frame.id != self._expected:
                raise ProtocolError("another frame follows a files frame")
            if frame.kind != _FILES:
                if self._expected is not None:
                    self._gathered.extend(frame.files)
                    frame.files, self._gathered = self._gathered, []
                    self._expected = None
                    if len(frame.files) > MAX_MESSAGE_FILES:
                        raise ProtocolError(f"a message with more than {MAX_MESSAGE_FILES} descriptors")
                return frame
            self._gathered.extend(frame.files)
            frame.files = []
            self._expected = frame.id
            if len(self._gathered) > MAX_MESSAGE_FILES:
                raise ProtocolError(f"a message with more than {MAX_MESSAGE_FILES} descriptors")

    def _next_part(self) -> Frame | None:
        """Returns the next frame, also a files frame."""
        if self._large is not None:
            kind, id, files, length = self._large
            if self._filled < length:
                return None
            self._large = None
            body, self._body = bytes(self._body), bytearray()
            return Frame(kind, id, body, files)
        low = self._low
        have = self._high - low
        if have < 16:
            return None
        length, kind, announced, id = HEADER.unpack_from(self._buffer, low)
        if length > MAX_BODY:
            raise ProtocolError(f"a frame of {length} bytes")
        if kind not in _KINDS or (kind == _FILES) != (length == 0):
            raise ProtocolError(f"a frame of kind {kind} with {length} bytes")
        if kind == _FILES and not announced:
            raise ProtocolError("a files frame without descriptors")
        at, end = low + 16, low + 16 + length
        if have - 16 < length and length <= _BUFFER // 2 - 16:
            return None
        rights: list[int] = []
        if announced or self._batches:
            rights = self._claim(self._offset + low, self._offset + min(end, self._high), announced)
        if have - 16 >= length:
            frame = Frame(kind, id, bytes(self._buffer[at:end]), rights)
            self._low = end
            return frame
        self._body = bytearray(min(length, _GROWTH))
        self._filled = have - 16
        self._body[: self._filled] = self._buffer[at : self._high]
        self._low = self._high
        self._large = kind, id, rights, length
        return None

    def _claim(self, begin: int, end: int, announced: int) -> list[int]:
        """Returns the descriptors of the frame that begins at an offset of the stream."""
        files: list[int] = []
        if announced:
            if not self._batches:
                raise ProtocolError(f"a frame announces {announced} descriptors and comes with 0")
            low, high, came = self._batches[0]
            if not low <= begin < high or len(came) != announced:
                raise ProtocolError(f"a frame announces {announced} descriptors and comes with {len(came)}")
            self._batches.popleft()
            files = came
        if self._batches and self._batches[0][1] <= end:
            close_all(files)
            raise ProtocolError("descriptors come that no frame announces")
        return files

    # ---- the end

    def fail(self, error: BaseException) -> None:
        """Ends the connection: nothing more is sent or received. Threads that wait for it return."""
        self.broken = self.broken or error
        self.shutdown()

    def shutdown(self) -> None:
        """Ends the connection in both directions, so that a blocked receive returns. The descriptor stays until
        close."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Closes the socket, and descriptors that arrived for no frame. Safe to call twice. Waits for a send in
        progress, since the kernel may give the number of the descriptor to another file at once."""
        with self._send_lock:
            self._sock.close()
        reads, self._reads = self._reads, []
        for _, ancillary, _, _ in reads:
            close_all(_descriptors(ancillary))
        while self._batches:
            close_all(self._batches.popleft()[2])
        large, self._large = self._large, None
        if large is not None:
            close_all(large[2])
        gathered, self._gathered = self._gathered, []
        close_all(gathered)

    def fileno(self) -> int:
        """Returns the descriptor, -1 once closed."""
        return self._sock.fileno()


def _wait(sock: socket.socket, event: int, until: float, what: str) -> None:
    poll = select.poll()
    poll.register(sock, event)
    left = until - time.monotonic()
    if left <= 0 or not poll.poll(left * 1000):
        raise ProtocolError(what)


def _truncated() -> Error:
    """Returns the error of a read for which the kernel could not pass all descriptors."""
    try:
        os.close(os.dup(2))
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE):
            return descriptors_exhausted("descriptors that the server has sent are lost")
    return ProtocolError("the kernel could not pass all descriptors")


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found
