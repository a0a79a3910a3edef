"""Host memory: mappings of what others own, and slabs of our own, both sealed memfds.

Arrays and tensors keep the :class:`Mapping` under them alive. When the last one is gone, its pages are unmapped and its
descriptor is closed. Client, connection and server have no part in that.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import itertools
import mmap as _mmap
import os
import resource
import signal
import struct
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from . import forks, system
from .errors import (
    CapabilityError,
    Error,
    InvalidArgumentError,
    OutOfMemoryError,
    ProtocolError,
    ResourceExhaustedError,
)

F_ADD_SEALS, F_GET_SEALS, F_SETLEASE, F_SETSIG = 1033, 1034, 1024, 10
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE, F_SEAL_FUTURE_WRITE = 0x1, 0x2, 0x4, 0x8, 0x10
SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW
WRITE_SEALS = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE
MFD_NOEXEC_SEAL = 0x8
"""Flag of memfd_create since Linux 6.3: the file is not executable, and is sealed against becoming executable."""
PAGE = _mmap.PAGESIZE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MREMAP_MAYMOVE = 1
_numbers = itertools.count(1)


def _map(length: int, prot: int, flags: int, fd: int, offset: int, at: int | None = None) -> int:
    return _mapped(_libc.mmap(at, length, prot, flags, fd, offset), length)


def _mapped(address: int | None, length: int) -> int:
    """Returns the address that a system call returned. Raises OutOfMemoryError if the call failed."""
    if address is None or address == _MAP_FAILED:
        err = ctypes.get_errno()
        raise OutOfMemoryError(f"mapping {length} bytes: {os.strerror(err)}")
    return int(address)


def duplicate(address: int, length: int) -> int:
    """Maps the pages of a shared mapping a second time, with the same access, and returns the address.

    The kernel permits this also for memory that is sealed against new writable mappings.
    """
    return _mapped(_libc.mremap(address, 0, length, _MREMAP_MAYMOVE), length)


def map_private(address: int, length: int, fd: int, offset: int = 0) -> None:
    """Replaces the pages at an address by those of a file, copied on write. Threads that read meanwhile see either the
    old or the new pages."""
    flags = _mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
    _map(length, _mmap.PROT_READ | _mmap.PROT_WRITE, flags, fd, offset, address)


def _unmap(address: int, length: int, fd: int) -> None:
    """Ends a mapping. It takes no lock, since a finalizer runs in any line of any thread. After a fork parent and child
    have a mapping and a descriptor each."""
    _libc.munmap(address, length)
    os.close(fd)


class Mapping:
    """Pages of a memfd in this process. Arrays over it keep it alive.

    :ivar nbytes: the bytes that the handle names.
    :ivar address: where the first of them is.
    :ivar writable: whether a write reaches the memory; of a private mapping a write stays in this process.
    :ivar number: of the memory, for this process's life.
    :ivar fd: the descriptor, kept so that the memory can be handed back to the server that lent it.
    :ivar owner: an object that the mapping keeps alive: the lease.
    :ivar name: what the server calls memory that it lends, "" for other memory.
    """

    __slots__ = (
        "__weakref__",
        "_finalizer",
        "_inode",
        "address",
        "device",
        "fd",
        "file_offset",
        "mapped",
        "name",
        "nbytes",
        "number",
        "owner",
        "private",
        "server",
        "vacant",
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
        self._hold(base, length, fd, offset, skip)
        self.nbytes = nbytes
        self.writable = writable
        self.private = private
        self.device = device
        _registry.add(self)

    def _hold(self, base: int, length: int, fd: int, offset: int = 0, skip: int = 0) -> None:
        """Takes a mapped range and its descriptor, which end with this object."""
        self.address = base + skip
        self.nbytes = length - skip
        self.writable = False
        self.private = False
        self.fd = fd
        self._inode: tuple[int, int] | None = None
        self.number = next(_numbers)
        self.file_offset = offset
        self.mapped = True
        self.vacant = False
        self.device = bytes(16)
        self.name = ""
        self.server = ""
        self.owner: object = None
        self._finalizer = weakref.finalize(self, _unmap, base, length, fd)
        self._finalizer.atexit = False  # the kernel does that, and arrays may be in use until the very end

    def buffer(self) -> Any:
        """Returns a writable ctypes array over all bytes, which keeps the mapping alive. Writing is
        allowed only if `writable` is true."""
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

    def misfit(self, other: Mapping) -> str:
        """Returns why `replace` cannot map `other` here, or ""."""
        if type(other) is not Mapping or self.writable or self.private != other.private:
            return "the memory is not of the same kind"
        if not other.mapped or not (self.mapped or self.vacant):
            return "it is not mapped"
        if (other.nbytes, self._skip(other)) != (self.nbytes, self._skip(self)):
            return f"it has {other.nbytes} bytes at {other.file_offset}, not {self.nbytes} at {self.file_offset}"
        return ""

    @staticmethod
    def _skip(mapping: Mapping) -> int:
        return mapping.file_offset % PAGE if mapping.nbytes else 0

    def replace(self, other: Mapping) -> None:
        """Maps the memory of `other` at this mapping's addresses, so that arrays over it show other bytes. What this
        process wrote to its private pages is lost. The caller has checked `misfit`. `other` stays as it is."""
        self._map_file(other.fd, other.file_offset)
        self.mapped, self.vacant = True, False
        os.dup2(other.fd, self.fd, inheritable=False)
        self._inode, self.number = None, next(_numbers)
        self.file_offset = other.file_offset
        self.name, self.server, self.owner = other.name, other.server, other.owner

    def unmap(self) -> None:
        """Leaves the addresses without memory until `map`. Using them is a fault."""
        base, length = self._pages()
        flags = _mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        _map(length, 0, flags, -1, 0, base)
        self.mapped = False

    def vacate(self) -> None:
        """Leaves the addresses without memory until `replace`, and releases the memory."""
        self.unmap()
        self.vacant = True
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.dup2(nothing, self.fd, inheritable=False)
        finally:
            os.close(nothing)

    def map(self) -> None:
        """Maps the memory at the same addresses after `unmap`, without what this process wrote to private pages. Does
        nothing if it is mapped."""
        if not self.mapped:
            self._map_file(self.fd, self.file_offset)
            self.mapped = True

    def _pages(self) -> tuple[int, int]:
        """Returns the address and the length of the mapped pages."""
        skip = self._skip(self)
        return self.address - skip, -(-max(skip + self.nbytes, 1) // PAGE) * PAGE

    def _map_file(self, fd: int, offset: int) -> None:
        base, length = self._pages()
        start = offset - (self.address - base)
        if self.private:
            map_private(base, length, fd, start)
        else:
            _map(length, _mmap.PROT_READ, _mmap.MAP_SHARED | _MAP_FIXED, fd, start, base)

    def changed(self, low: int, high: int) -> bool:
        """Reports whether this process has written to a private mapping between two addresses: then its bytes are no
        longer the memory's."""
        return _pagemap.changed(low // PAGE, max(high - 1, low) // PAGE + 1)

    def inode(self) -> tuple[int, int]:
        """Returns device and inode of the memory: the same for all processes that have it."""
        if self._inode is None:
            st = os.fstat(self.fd)
            self._inode = st.st_dev, st.st_ino
        return self._inode

    def __repr__(self) -> str:
        kind = "writable" if self.writable else "private" if self.private else "read-only"
        return f"<sharedtensor.Mapping of {self.nbytes} bytes, {kind}>"


_UNCHANGED = bytes(top for top in range(256) if not top >> 6 or top >> 5 & 1)
"""Top bytes of entries of /proc/self/pagemap: the page is neither present nor swapped out, or it is the file's."""


class _Pagemap:
    """What the kernel reports about the pages of this process."""

    _lock: threading.Lock

    def __init__(self) -> None:
        self._fd = -1
        self._scans = True
        forks.track(self, _lock=threading.Lock, forked=_Pagemap._forked)

    def changed(self, begin: int, end: int) -> bool:
        """Reports whether any of the pages of a private mapping is this process's own, or unknown."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        if self._scans:
            try:
                return self._scan(begin, end)
            except OSError:
                self._scans = False  # before Linux 6.7
        return self._read(begin, end)

    def _scan(self, begin: int, end: int) -> bool:
        """Is `changed` with one system call, which skips what is not there."""
        region = ctypes.create_string_buffer(24)
        arguments = _SCAN.pack(
            _SCAN.size, 0, begin * PAGE, end * PAGE, 0, ctypes.addressof(region), 1, 1, _FILE, _FILE, _THERE, _FILE
        )
        found: int = fcntl.ioctl(self._fd, _PAGEMAP_SCAN, bytearray(arguments), True)
        return found > 0

    def _read(self, begin: int, end: int) -> bool:
        while begin < end:
            entries = os.pread(self._fd, 8 * min(end - begin, 1 << 16), 8 * begin)
            if not entries or entries[7::8].translate(None, _UNCHANGED):
                return True
            begin += len(entries) // 8
        return False

    def _forked(self) -> None:
        """Closes the parent's file, in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


# struct pm_scan_arg of linux/fs.h, and bits of page_region.categories. The mask and the inverted mask ask for pages
# that are not the file's, the third mask for those that are present or swapped out.
_SCAN = struct.Struct("=12Q")
_PAGEMAP_SCAN = 0xC0606610
_FILE, _THERE = 1 << 2, 1 << 3 | 1 << 4

_pagemap = _Pagemap()


class _Start(weakref.ref[Mapping]):
    """A mapping that does not live longer for it, with its address."""

    __slots__ = ("start",)
    start: int


class _Registry:
    """Finds the mapping that contains an address.

    A mapping may end in any line of any thread, also of one that has the lock. So its end is only noted, which takes
    no lock, and the next call removes it.
    """

    _lock: threading.Lock

    def __init__(self) -> None:
        self._starts: list[int] = []  # of the mappings in _found, in ascending order
        self._found: dict[int, _Start] = {}
        self._gone: deque[_Start] = deque()
        forks.track(self, _lock=threading.Lock, forked=_Registry._repair)

    def add(self, mapping: Mapping) -> None:
        ref = _Start(mapping, self._gone.append)
        ref.start = mapping.address
        with self._lock:
            self._sweep()
            if ref.start not in self._found:
                bisect.insort(self._starts, ref.start)
            self._found[ref.start] = ref

    def _sweep(self) -> None:
        """Removes mappings that have ended. The caller has the lock."""
        while self._gone:
            ref = self._gone.popleft()
            if self._found.get(ref.start) is ref:
                del self._found[ref.start]
                del self._starts[bisect.bisect_left(self._starts, ref.start)]

    def _repair(self) -> None:
        """Completes, in a forked child, what another thread of the parent had begun."""
        self._starts = sorted(self._found)

    def find(self, address: int, nbytes: int) -> Mapping | None:
        with self._lock:
            self._sweep()
            at = bisect.bisect_right(self._starts, address) - 1
            ref = self._found[self._starts[at]] if at >= 0 else None
            mapping = ref() if ref is not None else None
        if mapping is None or address + nbytes > mapping.address + mapping.nbytes:
            return None
        return mapping


_registry = _Registry()


def register(mapping: Mapping) -> None:
    """Makes a mapping findable, so that its tensors are passed in place."""
    _registry.add(mapping)


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
            private = True  # the bytes are final, so it is the same; before Linux 6.7 shared is refused
    except BaseException:
        os.close(fd)
        raise
    return Mapping(fd, offset, nbytes, writable=writable, private=private, device=device)


_LARGE = 64 << 20
"""Memory of more bytes is compared with what the system has."""


def _pages(nbytes: int) -> int:
    """Returns the size of the memfd that holds so many bytes."""
    return -(-max(nbytes, 1) // PAGE) * PAGE


def _create(size: int) -> int:
    """Returns the descriptor of a new memfd of `size` zero bytes, sealed against any other size."""
    if size > _LARGE and size > (free := system.available()):  # the kernel would kill processes to find the pages
        raise OutOfMemoryError(f"{size} bytes of shared memory: {free} are available")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            first = os.memfd_create("sharedtensor", flags | MFD_NOEXEC_SEAL)
        except OSError as err:
            if err.errno != errno.EINVAL:  # before Linux 6.3
                raise
            first = os.memfd_create("sharedtensor", flags)
        try:
            os.posix_fallocate(first, 0, size)
            # The kernel counts a descriptor that open returned as a writer, but not that of memfd_create: see
            # Slab.exclusive.
            fd = os.open(f"/proc/self/fd/{first}", os.O_RDWR | os.O_CLOEXEC)
        finally:
            os.close(first)
    except OSError as err:
        raise _refusal(size, err) from err
    try:
        # A peer that gets a read-only descriptor cannot open the file again for writing.
        os.fchmod(fd, 0o400)
        fcntl.fcntl(fd, F_ADD_SEALS, SIZE_SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _refusal(size: int, err: OSError) -> Error:
    """Returns the error for memory that the kernel refuses: only a lack of memory is OutOfMemoryError."""
    about = f"{size} bytes of shared memory: {err.strerror}"
    if err.errno in (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutOfMemoryError(about)
    if err.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return ResourceExhaustedError(f"{about}: this process may have {limit} descriptors, raise RLIMIT_NOFILE")
    if err.errno == errno.ENFILE:
        return ResourceExhaustedError(f"{about}: the system has no more descriptors, raise fs.file-max")
    return CapabilityError(f"{about}: memfd_create or /proc cannot be used here")


class Slab(Mapping):
    """A memfd of this process, mapped writable. Its size is sealed, and after `seal` no process can map it writable
    anew.

    Peers get a second, read-only description of the file. While a process has a descriptor or a mapping of it,
    the kernel refuses a write lease on ours: :meth:`exclusive` relies on this.

    :ivar writes: how often it was filled anew.
    """

    __slots__ = ("writes",)

    def __init__(self, nbytes: int) -> None:
        """Makes a slab of that many bytes, all zero. The rest of its last page is zero too. Raises
        OutOfMemoryError."""
        if nbytes < 0:
            raise InvalidArgumentError(f"{nbytes} bytes")
        super().__init__(_create(_pages(nbytes)), 0, nbytes, writable=True, private=False)
        self.writes = 1

    @property
    def size(self) -> int:
        """The bytes of the file, which every process that gets its descriptor can map: whole pages."""
        return _pages(self.nbytes)

    def reuse(self, nbytes: int) -> None:
        """Begins another use of the slab, for as many pages. Bytes behind `nbytes` are zeroed; the caller overwrites
        or zeroes all others."""
        assert _pages(nbytes) == self.size
        self.nbytes = nbytes
        self.number = next(_numbers)  # servers keep memory by number and size
        self.writes += 1
        self.clear(nbytes, self.size)

    def clear(self, low: int, high: int) -> None:
        """Zeroes the bytes from `low` to `high`."""
        ctypes.memset(self.address + low, 0, high - low)

    def seal(self) -> None:
        """Seals against new writers. This process's mapping stays writable. Raises CapabilityError before Linux
        5.1."""
        if fcntl.fcntl(self.fd, F_GET_SEALS) & WRITE_SEALS:
            return
        try:
            fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
        except OSError as err:
            if err.errno == errno.EPERM and fcntl.fcntl(self.fd, F_GET_SEALS) & WRITE_SEALS:
                return  # another thread was first
            raise CapabilityError(
                f"the memory cannot be sealed against new writers, which needs Linux 5.1: {err.strerror}"
            ) from err

    def share(self, *, writable: bool = False) -> int:
        """Returns a descriptor to send to a peer, read-only unless `writable`. The caller closes it once it is sent.

        After a writable one `exclusive` is not reliable, because peers write through this process's own description.
        """
        if writable:
            return os.dup(self.fd)
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def exclusive(self) -> bool:
        """Reports whether this slab is the only user of the memory. Descriptors that `share` returned, and
        mappings made from them, count in all processes, including this one."""
        try:
            # The kernel sends a signal if the file is opened meanwhile. Its default, SIGIO, ends the process.
            fcntl.fcntl(self.fd, F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.fd, F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
        fcntl.fcntl(self.fd, F_SETLEASE, fcntl.F_UNLCK)
        return True

    def __repr__(self) -> str:
        return f"<sharedtensor.Slab {self.number} of {self.nbytes} bytes>"


class _Shelf:
    """Free slabs of several pools, within one limit of bytes. Others may still have the memory."""

    _lock: threading.Lock

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slabs: list[tuple[SlabPool, Slab]] = []
        # The slabs are the parent's, which fills them again.
        forks.track(self, _lock=threading.Lock, forked=_Shelf.clear)

    def take(self, pool: SlabPool, size: int) -> Slab | None:
        """Returns the last slab of that size that `pool` has put here and no other process has, or None."""
        with self._lock:
            for i in range(len(self._slabs) - 1, -1, -1):
                owner, slab = self._slabs[i]
                if owner is pool and slab.size == size and slab.exclusive():
                    del self._slabs[i]
                    return slab
        return None

    def put(self, pool: SlabPool, slab: Slab) -> None:
        """Adds a slab. Over the limit, the slabs added first are dropped; peers keep their memory."""
        with self._lock:
            self._slabs.append((pool, slab))
            total = sum(s.size for _, s in self._slabs)
            first = 0
            while total > self._limit:
                total -= self._slabs[first][1].size
                first += 1
            dropped, self._slabs = self._slabs[:first], self._slabs[first:]
        del dropped  # unmapped without the lock

    @property
    def nbytes(self) -> int:
        """The bytes of all free slabs."""
        with self._lock:
            return sum(slab.size for _, slab in self._slabs)

    def clear(self) -> None:
        """Drops all slabs."""
        with self._lock:
            dropped, self._slabs = self._slabs, []
        del dropped


class SlabPool:
    """Slabs for one purpose, reused when no other process has them.

    Slabs of a pool are sealed against new writers, so that a peer cannot write to memory that another use gets.
    They are not zeroed: their user writes or clears every byte, because a peer can map all of a slab.

    :param keep: the bytes of free slabs that it keeps.
    :ivar reused: how many takes got a slab that was used before.
    :ivar made: how many made a new one.
    """

    def __init__(self, keep: int = 1 << 30, shelf: _Shelf | None = None) -> None:
        self._shelf = shelf or _Shelf(keep)
        self.reused = 0
        self.made = 0

    def take(self, nbytes: int) -> Slab:
        """Returns a slab of exactly `nbytes`, which is the caller's until `put`."""
        slab = self._shelf.take(self, _pages(nbytes))
        if slab is not None:
            slab.reuse(nbytes)
            self.reused += 1
            return slab
        self.made += 1
        slab = Slab(nbytes)
        try:
            slab.seal()
        except CapabilityError:
            pass  # an old kernel: who publishes it seals it, and gets the error
        return slab

    def put(self, slab: Slab) -> None:
        """Takes a slab back, to reuse it once no other process has it."""
        self._shelf.put(self, slab)

    @property
    def stats(self) -> PoolStats:
        """What the pool has done so far."""
        return PoolStats(self.made, self.reused)

    def close(self) -> None:
        """Drops all free slabs. Memory that others have stays theirs."""
        self._shelf.clear()


@dataclass(frozen=True)
class PoolStats:
    """What a pool has done.

    :ivar made: the number of slabs it made.
    :ivar reused: the number of times that it used one again.
    """

    made: int
    reused: int


class SlabPools:
    """The pools of a client, one for each purpose: a slab never serves two. They share one limit.

    Publications are readable by every client, arguments by the function that is called, and results by its caller.

    :param keep: the bytes of free slabs that all of them keep.
    """

    def __init__(self, keep: int = 1 << 30) -> None:
        self._shelf = _Shelf(keep)
        self.publications = SlabPool(shelf=self._shelf)
        self.arguments = SlabPool(shelf=self._shelf)
        self.results = SlabPool(shelf=self._shelf)

    @property
    def made(self) -> int:
        """How many slabs were made, for all purposes."""
        return self.publications.made + self.arguments.made + self.results.made

    @property
    def reused(self) -> int:
        """How many times a slab was reused, for all purposes."""
        return self.publications.reused + self.arguments.reused + self.results.reused

    @property
    def free(self) -> int:
        """The bytes of free slabs, for all purposes."""
        return self._shelf.nbytes

    def close(self) -> None:
        """Drops all free slabs. Memory that others have stays theirs."""
        self._shelf.clear()


def require_linux() -> None:
    """Raises CapabilityError where the kernel has no sealed memfds."""
    if not hasattr(os, "memfd_create"):
        raise CapabilityError("sharing needs Linux: this system has no memfd_create")
