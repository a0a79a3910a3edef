"""Host memory: mappings of what others own, and slabs of our own, both sealed memfds.

A :class:`Mapping` lives as long as an array or tensor over it does: these keep it alive, and when the last one has gone
its pages are unmapped and its descriptor is closed. Nothing else decides that, neither the client nor the connection
nor the server.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import itertools
import mmap as _mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from .errors import CapabilityError, InvalidArgumentError, OutOfMemoryError, ProtocolError

F_ADD_SEALS, F_GET_SEALS, F_SETLEASE = 1033, 1034, 1024
F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 0x2, 0x4, 0x8, 0x10
SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW
PAGE = _mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_NORESERVE = 0x4000


def _map(length: int, prot: int, flags: int, fd: int, offset: int) -> int:
    address = _libc.mmap(None, length, prot, flags, fd, offset)
    if address is None or address == _MAP_FAILED:
        err = ctypes.get_errno()
        raise OutOfMemoryError(f"mapping {length} bytes: {os.strerror(err)}")
    return int(address)


def _unmap(address: int, length: int, fd: int) -> None:
    # After a fork parent and child have a mapping and a descriptor each, and each gives its own back.
    _libc.munmap(address, length)
    os.close(fd)


class Mapping:
    """Pages of a memfd in this process. Arrays over it keep it alive.

    :ivar nbytes: the bytes that the handle names.
    :ivar address: where the first of them is.
    :ivar writable: whether a write reaches the memory; of a private mapping a write stays in this process.
    :ivar fd: the descriptor, kept so that the memory can be handed back to the server that lent it.
    :ivar owner: what has to live as long as the memory: the lease.
    :ivar name: what the server calls memory that it lends, "" for other memory.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "address",
        "device",
        "fd",
        "file_offset",
        "name",
        "nbytes",
        "owner",
        "private",
        "server",
        "writable",
    )

    def __init__(
        self, fd: int, offset: int, nbytes: int, *, writable: bool, private: bool, device: bytes = bytes(16)
    ) -> None:
        """Maps `nbytes` at `offset` of `fd`, which it takes."""
        start = offset - offset % PAGE if nbytes else 0
        skip = offset - start if nbytes else 0
        length = -(-max(skip + nbytes, 1) // PAGE) * PAGE
        prot = _mmap.PROT_READ | (_mmap.PROT_WRITE if writable or private else 0)
        flags = (_mmap.MAP_PRIVATE | _MAP_NORESERVE) if private else _mmap.MAP_SHARED
        try:
            base = _map(length, prot, flags, fd, start)
        except BaseException:
            os.close(fd)
            raise
        self.address = base + skip
        self.nbytes = nbytes
        self.writable = writable
        self.private = private
        self.fd = fd
        self.file_offset = offset
        self.device = device
        self.name = ""
        self.server = ""
        self.owner: object = None
        self._finalizer = weakref.finalize(self, _unmap, base, length, fd)
        self._finalizer.atexit = False  # the kernel does that, and arrays may be in use until the very end
        _registry.add(self)

    def buffer(self) -> Any:
        """Returns a writable ctypes array over all bytes, which keeps the mapping alive. It does not say that
        writing is allowed."""
        buffer = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        setattr(buffer, "_mapping", self)  # noqa: B010
        return buffer

    def view(self) -> memoryview:
        """Returns the bytes; read-only unless the memory is writable."""
        view = memoryview(self.buffer()).cast("B")
        return view if self.writable else view.toreadonly()

    def share(self, *, writable: bool = False) -> int:
        """Returns a descriptor to send to a peer, which the caller closes. `writable` lets the peer write, where the
        memory allows it."""
        del writable
        return os.dup(self.fd)

    def changed(self, low: int, high: int) -> bool:
        """Reports whether this process has written to a private mapping between two addresses: then its bytes are no
        longer the memory's."""
        first, last = low // PAGE, max(high - 1, low) // PAGE
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            at = first
            while at <= last:
                entries = np.frombuffer(os.pread(pagemap.fileno(), 8 * min(last - at + 1, 1 << 16), 8 * at), np.uint64)
                if not len(entries):
                    return True  # the kernel does not say
                there = (entries >> np.uint64(62)) != 0  # present, or swapped out
                of_file = (entries >> np.uint64(61)) & np.uint64(1) != 0
                if bool(np.any(there & ~of_file)):
                    return True
                at += len(entries)
        return False

    def inode(self) -> tuple[int, int]:
        """Returns device and inode of the memory: the same for all processes that have it."""
        st = os.fstat(self.fd)
        return st.st_dev, st.st_ino

    def __repr__(self) -> str:
        kind = "writable" if self.writable else "private" if self.private else "read-only"
        return f"<sharedtensor.Mapping of {self.nbytes} bytes, {kind}>"


class _Registry:
    """Finds the mapping that an address lies in."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a finalizer may run within add
        self._starts: list[int] = []
        self._found: dict[int, weakref.ref[Mapping]] = {}

    def add(self, mapping: Mapping) -> None:
        start = mapping.address
        with self._lock:
            if start not in self._found:
                bisect.insort(self._starts, start)
            self._found[start] = weakref.ref(mapping, lambda ref: self._drop(start, ref))

    def _drop(self, start: int, ref: weakref.ref[Mapping]) -> None:
        with self._lock:
            if self._found.get(start) is ref:
                del self._found[start]
                self._starts.remove(start)

    def find(self, address: int, nbytes: int) -> Mapping | None:
        with self._lock:
            at = bisect.bisect_right(self._starts, address) - 1
            # The garbage collector may take a mapping off the list between any two lines: then the next lower one is
            # looked at.
            start = next(iter(self._starts[at : at + 1]), -1) if at >= 0 else -1
            ref = self._found.get(start)
            mapping = ref() if ref is not None else None
        if mapping is None or address + nbytes > mapping.address + mapping.nbytes:
            return None
        return mapping


_registry = _Registry()


def find(address: int, nbytes: int) -> Mapping | None:
    """Returns the mapping that has all of these bytes, or None for ordinary memory."""
    return _registry.find(address, nbytes)


def import_memfd(
    fd: int, offset: int, nbytes: int, *, writable: bool = False, private: bool = False, device: bytes = bytes(16)
) -> Mapping:
    """Maps memory that a peer handed over. Takes `fd`.

    The descriptor is a claim: raises ProtocolError unless it is a memfd, sealed against shrinking and growing, and
    large enough.
    """
    try:
        try:
            seals = fcntl.fcntl(fd, F_GET_SEALS)
        except OSError as err:
            raise ProtocolError(f"a handle's descriptor is no memfd: {err}") from err
        if seals & SIZE_SEALS != SIZE_SEALS:
            raise ProtocolError("a handle's memfd is not sealed against shrinking and growing")
        size = os.fstat(fd).st_size
        if offset < 0 or nbytes < 0 or offset + nbytes > size:
            raise ProtocolError(f"a handle of {nbytes} bytes at {offset} of a memfd of {size} bytes")
        if not writable and not private and seals & F_SEAL_WRITE:
            private = True  # nobody writes any more, so it is the same; before Linux 6.7 shared is refused
    except BaseException:
        os.close(fd)
        raise
    return Mapping(fd, offset, nbytes, writable=writable, private=private, device=device)


_numbers = itertools.count(1)


class Slab(Mapping):
    """A memfd of our own, mapped writable, sealed against shrinking and growing, and after `seal` against new writers.

    It is handed to others by a second, read-only description of the file. While any descriptor or mapping made from
    that one is open in any process, the kernel refuses a write lease on ours: so :meth:`exclusive` knows whether others
    can look at the memory.

    :ivar number: of the slab, for this process's life.
    :ivar writes: how often it was filled anew.
    """

    __slots__ = ("number", "writes")

    def __init__(self, nbytes: int) -> None:
        """Makes a slab of at least that many bytes, all zero. Raises OutOfMemoryError."""
        if nbytes < 0:
            raise InvalidArgumentError(f"{nbytes} bytes")
        size = -(-max(nbytes, 1) // PAGE) * PAGE
        first = os.memfd_create("sharedtensor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(first, 0, size)
            # A description of our own making counts as the file's writer, that of memfd_create does not: see exclusive.
            fd = os.open(f"/proc/self/fd/{first}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as err:
            raise OutOfMemoryError(f"{size} bytes of shared memory: {err.strerror}") from err
        finally:
            os.close(first)
        fcntl.fcntl(fd, F_ADD_SEALS, SIZE_SEALS)
        super().__init__(fd, 0, size, writable=True, private=False)
        self.number = next(_numbers)
        self.writes = 1

    def seal(self) -> None:
        """Seals against new writers. Our own mapping stays writable, nobody else can make one."""
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)

    def share(self, *, writable: bool = False) -> int:
        """Returns a descriptor of its own to hand to others, read-only unless `writable`. The caller closes it once
        it is sent."""
        return os.open(f"/proc/self/fd/{self.fd}", (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)

    def exclusive(self) -> bool:
        """Reports whether no other process has the memory open or mapped, and no array here was made from what was
        handed out."""
        try:
            fcntl.fcntl(self.fd, F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self.fd, F_SETLEASE, fcntl.F_UNLCK)
        return True

    def __repr__(self) -> str:
        return f"<sharedtensor.Slab {self.number} of {self.nbytes} bytes>"


class SlabPool:
    """Slabs that come back: of those handed out before, one that nobody looks at any more is used again.

    :param keep: how many bytes of slabs it keeps beyond those that others still have.
    """

    def __init__(self, keep: int = 1 << 30) -> None:
        self.keep = keep
        self.reused = 0
        self.made = 0
        self._lock = threading.Lock()
        self._slabs: list[Slab] = []

    def take(self, nbytes: int) -> Slab:
        """Returns a slab of at least `nbytes` that is the caller's until `put`."""
        with self._lock:
            fitting = sorted(
                (s for s in self._slabs if nbytes <= s.nbytes <= max(2 * nbytes, 1 << 16)), key=lambda s: s.nbytes
            )
            for slab in fitting:
                if slab.exclusive():
                    self._slabs.remove(slab)
                    self.reused += 1
                    slab.writes += 1
                    return slab
        self.made += 1
        return Slab(nbytes)

    def put(self, slab: Slab) -> None:
        """Takes a slab that was handed to others, for use again once they have left it."""
        with self._lock:
            self._slabs.append(slab)
            total = sum(s.nbytes for s in self._slabs)
            while total > self.keep and self._slabs:
                total -= self._slabs.pop(0).nbytes  # others keep its memory for as long as they need it

    def close(self) -> None:
        """Lets go of all slabs. Memory that others have stays theirs."""
        with self._lock:
            self._slabs.clear()


def require_linux() -> None:
    """Raises CapabilityError where the kernel has no sealed memfds."""
    if not hasattr(os, "memfd_create"):
        raise CapabilityError("sharing needs Linux: this system has no memfd_create")
