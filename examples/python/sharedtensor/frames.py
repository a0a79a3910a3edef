"""Frames over a Unix socket: sixteen bytes of header, one CBOR item, descriptors on the first byte."""

from __future__ import annotations

import array
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import forks
from .errors import ClosedError, ConnectionLostError, ProtocolError, ResourceExhaustedError
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


@dataclass
class Frame:
    """A frame as it came. Its descriptors are the receiver's, who closes them."""

    kind: int
    id: int
    body: bytes
    files: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Closes the descriptors that were not taken. Safe to call twice."""
        files, self.files = self.files, []
        close_all(files)

    def __del__(self) -> None:
        self.close()  # the last resort for frames that are dropped on the way; takes no lock


def close_all(files: Sequence[int]) -> None:
    """Closes descriptors. -1 stands for a descriptor that was taken."""
    for fd in files:
        if fd >= 0:
            os.close(fd)


class Connection:
    """A connected socket that sends and receives frames. Any thread may send; one thread receives."""

    _send_lock: threading.Lock

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket."""
        self._sock = sock
        # The peer would take a forked child for the parent, also when that has ended.
        forks.track(self, _send_lock=threading.Lock, forked=Connection.close)
        self._broken: Exception | None = None
        sock.setblocking(True)

    def peer(self) -> tuple[int, int, int]:
        """Returns pid, uid and gid of the process at the other end, as the kernel knows them."""
        pid, uid, gid = _CRED.unpack(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CRED.size))
        return pid, uid, gid

    # ---- sending

    def send(self, kind: Kind, id: int, body: bytes, files: Sequence[int] = ()) -> None:
        """Sends one message with its descriptors, which stay the caller's. Raises ConnectionLostError when the peer is
        gone, and ResourceExhaustedError for a message over the limits, of which nothing is sent."""
        if len(body) > MAX_BODY:
            raise ResourceExhaustedError(
                f"a message of {len(body)} bytes, at most {MAX_BODY} are possible", type="too large"
            )
        if len(files) > MAX_MESSAGE_FILES:
            raise ResourceExhaustedError(
                f"a message with {len(files)} descriptors, at most {MAX_MESSAGE_FILES} are possible"
            )
        with self._send_lock:
            while len(files) > MAX_FRAME_FILES:
                ahead, files = files[:MAX_FRAME_FILES], files[MAX_FRAME_FILES:]
                self._send_one(HEADER.pack(0, Kind.FILES, len(ahead), id), ahead)
            self._send_one(HEADER.pack(len(body), kind, len(files), id) + body, files)

    def _send_one(self, data: bytes, files: Sequence[int]) -> None:
        if self._broken is not None:
            raise ConnectionLostError(f"the connection is broken: {self._broken}")
        rest = memoryview(data)
        until = 0.0
        try:
            while rest:
                try:
                    n = self._send_some(rest, files)
                except BlockingIOError:
                    until = until or time.monotonic() + SEND_TIMEOUT
                    self._wait(select.POLLOUT, until, "the peer does not read")
                    continue
                rest, files, until = rest[n:], (), 0.0
        except (OSError, ProtocolError) as err:
            # Half a frame may be out: nothing can follow it.
            self._broken = err
            self.shutdown()
            raise ConnectionLostError(f"the connection to the server is lost: {err}") from err

    def _send_some(self, data: memoryview, files: Sequence[int]) -> int:
        flags = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
        if not files:
            return self._sock.send(data, flags)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
        return self._sock.sendmsg([data], rights, flags)

    def _wait(self, event: int, until: float, what: str) -> None:
        poll = select.poll()
        poll.register(self._sock, event)
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise ProtocolError(what)

    # ---- receiving

    def receive(self, deadline: float | None = None) -> Frame | None:
        """Waits for the next message, files frames gathered into it. Returns None at an ordinary end of the connection.

        Raises ProtocolError for what breaks the protocol and ConnectionLostError where the connection ends within a
        frame.
        """
        gathered: list[int] = []
        expected: int | None = None
        try:
            while True:
                frame = self._receive_one(deadline)
                if frame is None:
                    if gathered:
                        raise ProtocolError("the connection ended behind a files frame")
                    return None
                gathered.extend(frame.files)
                frame.files = []
                if expected is not None and frame.id != expected:
                    raise ProtocolError("another frame follows a files frame")
                if len(gathered) > MAX_MESSAGE_FILES:
                    raise ProtocolError(f"a message with more than {MAX_MESSAGE_FILES} descriptors")
                if frame.kind != Kind.FILES:
                    frame.files = gathered
                    return frame
                expected = frame.id
        except BaseException:
            close_all(gathered)
            raise

    def _receive_one(self, deadline: float | None) -> Frame | None:
        header = bytearray(HEADER.size)
        files: list[int] = []
        try:
            if not self._read(memoryview(header), files, deadline, first=True):
                return None
            length, kind, announced, id = HEADER.unpack(header)
            if length > MAX_BODY:
                raise ProtocolError(f"a frame of {length} bytes")
            if kind not in Kind.__members__.values() or (kind == Kind.FILES) != (length == 0):
                raise ProtocolError(f"a frame of kind {kind} with {length} bytes")
            if announced != len(files) or (kind == Kind.FILES and not files):
                raise ProtocolError(f"a frame announces {announced} descriptors and comes with {len(files)}")
            return Frame(kind, id, self._read_body(length), files)
        except BaseException:
            close_all(files)
            raise

    def _read_body(self, length: int) -> bytes:
        # The memory grows with what has come: announcing much costs a peer as much as sending it.
        body = bytearray(min(length, 1 << 18))
        at = 0
        surplus: list[int] = []
        while at < length:
            if at == len(body):
                body.extend(bytes(min(length, 4 * len(body)) - len(body)))
            self._read(memoryview(body)[at:], surplus, None, first=False)
            if surplus:
                close_all(surplus)
                raise ProtocolError("descriptors come within a frame")
            at = len(body)
        return bytes(body)

    def _read(self, into: memoryview, files: list[int], deadline: float | None, *, first: bool) -> bool:
        """Fills `into`, adds the descriptors that come with its first byte to `files`. Returns False at the end
        before the first byte."""
        at = 0
        while at < len(into):
            if at or not first:
                self._readable(STALL_TIMEOUT, "a frame that has begun does not go on")
            elif deadline is not None:
                self._readable(max(deadline - time.monotonic(), 0), "the peer says nothing")
            n, ancillary, flags, _ = self._recv(into[at:])
            came = _descriptors(ancillary)
            files.extend(came)
            if flags & socket.MSG_CTRUNC:
                raise ProtocolError("the kernel could not pass all descriptors")
            if n == 0:
                if at or not first:
                    raise ConnectionLostError("the connection ended within a frame")
                return False
            if came and at:
                raise ProtocolError("descriptors come behind the first byte of a frame")
            at += n
        return True

    def _recv(self, into: memoryview) -> tuple[int, list[tuple[int, int, bytes]], int, object]:
        try:
            return self._sock.recvmsg_into([into], _ROOM, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as err:
            raise ConnectionLostError(f"the connection to the server is lost: {err}") from err
        except OSError as err:
            raise ClosedError(f"the connection is closed: {err}") from err

    def _readable(self, seconds: float, what: str) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise ProtocolError(what)

    # ---- the end

    def shutdown(self) -> None:
        """Ends the connection in both directions, so that a blocked receive returns. The descriptor stays until
        close."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Closes the socket. Safe to call twice. Waits for a send in progress, since the kernel may give the number of
        the descriptor to another file at once."""
        with self._send_lock:
            self._sock.close()

    def fileno(self) -> int:
        """Returns the descriptor, -1 once closed."""
        return self._sock.fileno()


def _descriptors(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
            found.extend(numbers)
    return found
