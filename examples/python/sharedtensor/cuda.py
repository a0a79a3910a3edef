"""Memory of a GPU, through NVIDIA's cuda-bindings: imported from handles, allocated to be handed over, shown to torch
and cupy."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from . import forks, layout, manifest, messages, op
from .arrays import Described
from .cuda_array import CudaArray
from .dtypes import DType
from .errors import CapabilityError, ConfigurationError, OutOfMemoryError, ProtocolError
from .frames import close_all
from .frameworks import Framework, loaded_torch
from .importing import device_of
from .manifest import TensorSpec
from .memory import Slab
from .op import Op
from .operations import Operation
from .session import Session

IPC_BYTES = 64
"""What cuIpcGetMemHandle gives."""


@functools.cache
def driver() -> Any:
    """Returns the module cuda.bindings.driver, initialised. Raises ConfigurationError where it or the driver is
    missing."""
    try:
        from cuda.bindings import driver as module
    except ImportError as err:
        raise ConfigurationError(f"memory of a GPU needs the package cuda-bindings: {err}") from err
    try:
        code = module.cuInit(0)[0]
    except (RuntimeError, ImportError) as err:
        raise ConfigurationError(f"the CUDA driver cannot be loaded: {err}") from err
    if code != 0:
        raise ConfigurationError(f"the CUDA driver does not start: {code.name}")
    return module


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the driver and returns its results. Raises OutOfMemoryError, else CapabilityError with the
    driver's word."""
    code, *results = getattr(driver(), name)(*arguments)
    if code != 0:
        word = driver().cuGetErrorName(code)[1]
        text = f"{name}: {word.decode() if word else int(code)}"
        raise OutOfMemoryError(text) if int(code) == 2 else CapabilityError(text)
    return results[0] if len(results) == 1 else tuple(results) or None


class Device:
    """A GPU as this process numbers it, with its primary context, which torch and cupy use too. The context is kept
    until the end."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.handle = call("cuDeviceGet", ordinal)
        self.uuid = _uuid(self.handle)
        self.context = call("cuDevicePrimaryCtxRetain", self.handle)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current for this thread, and what was current before afterwards."""
        call("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            call("cuCtxPopCurrent")

    def properties(self) -> Any:
        """Returns the properties of memory that can be exported as a descriptor."""
        d = driver()
        p = d.CUmemAllocationProp()
        p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        p.location.id = self.ordinal
        p.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        return p

    def access(self, writable: bool) -> Any:
        """Returns the right of this GPU to memory that it maps."""
        flags = driver().CUmemAccess_flags
        found = driver().CUmemAccessDesc()
        found.location = self.properties().location
        found.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        if writable:
            found.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return found

    def granularity(self) -> int:
        """Returns what sizes of such memory are multiples of."""
        flag = driver().CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return int(call("cuMemGetAllocationGranularity", self.properties(), flag))


def _uuid(handle: Any) -> bytes:
    by_instance = "cuDeviceGetUuid_v2" if hasattr(driver(), "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
    return bytes(call(by_instance, handle).bytes)


def uuid_of(ordinal: int) -> bytes:
    """Returns the UUID of the GPU of this number, which gets no context."""
    return _uuid(call("cuDeviceGet", ordinal))


@functools.cache
def device(ordinal: int) -> Device:
    """Returns the GPU of this number in this process."""
    return Device(ordinal)


def device_by_uuid(uuid: bytes) -> Device:
    """Returns the GPU with this UUID: numbers mean nothing in another process. Raises CapabilityError where this
    process has it not."""
    for ordinal in range(int(call("cuDeviceGetCount"))):
        if _uuid(call("cuDeviceGet", ordinal)) == uuid:
            return device(ordinal)  # only this one gets a context, which takes hundreds of MiB
    raise CapabilityError(f"the memory is on the GPU {uuid.hex()}, which this process does not see")


class _Releases:
    """Frees memory of GPUs in a thread. Finalizers only enqueue: they run in any line of any thread, also while it has
    a lock or captures a stream."""

    RETRY = 0.05
    """Seconds until memory is tried again that could not be freed yet."""

    _lock: threading.Lock

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], bool] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        forks.track(self, _lock=threading.Lock, forked=_Releases._forked)

    def start(self) -> None:
        """Starts the thread, if it does not run. Called before there is anything to free."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="sharedtensor release", daemon=True)
                    self._thread.start()

    def put(self, job: Callable[[], bool] | None) -> None:
        """Has a job done, again later if it returns False. None ends the thread. Takes no lock."""
        self._jobs.put(job)

    def wait(self, seconds: float) -> None:
        """Waits until the jobs that were put before have been tried, at most so long."""
        if self._thread is None:
            return
        tried = threading.Event()

        def mark() -> bool:
            tried.set()
            return True

        self._jobs.put(mark)
        tried.wait(seconds)

    def _run(self) -> None:
        _allow_captures()
        again: list[Callable[[], bool]] = []
        while True:
            try:
                job = self._jobs.get(timeout=self.RETRY if again else None)
                if job is None:
                    return
                jobs = [job]
            except Empty:
                jobs, again = again, []
            again += [job for job in jobs if not self._done(job)]

    @staticmethod
    def _done(job: Callable[[], bool]) -> bool:
        try:
            return job()
        except Exception:
            return True  # the driver has failed; the thread stays for other jobs

    def _forked(self) -> None:
        """Drops everything in a forked child, which cannot use the driver."""
        self._jobs, self._thread = SimpleQueue(), None


_releases = _Releases()


def wait_released(seconds: float = 10) -> None:
    """Waits until memory whose last array has gone is free, at most so long. Memory stays until no stream captures."""
    _releases.wait(seconds)


def _allow_captures() -> None:
    """Lets this thread free memory while other threads capture streams, without ending their captures."""
    try:
        relaxed = driver().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        driver().cuThreadExchangeStreamCaptureMode(relaxed)
    except Exception:
        pass  # a driver or cuda-bindings without it


class Memory:
    """Memory of a GPU in this process. Arrays over it keep it alive; when the last one has gone it is unmapped.

    :ivar address: of its first byte on the device.
    :ivar device: the UUID of the GPU.
    """

    def __init__(self, gpu: Device, address: int, nbytes: int, *, writable: bool) -> None:
        self.gpu = gpu
        self.address = address
        self.nbytes = nbytes
        self.writable = writable
        self.device = gpu.uuid
        self.owner: object = None
        self.name = ""
        self.server = ""
        self._shareable: bool | None = None
        _memories.add(self)

    def release_with(self, steps: list[tuple[Any, ...]]) -> None:
        """Has calls of the driver made, in order, when the last reference to the memory has gone and the GPU has
        finished its work."""
        self._at_end(functools.partial(_release, self.gpu, steps))

    def _at_end(self, job: Callable[[], bool]) -> None:
        _releases.start()
        weakref.finalize(self, _releases.put, job).atexit = False

    def tensor(self, spec: TensorSpec, framework: Framework) -> Any:
        """Returns a tensor over the memory: torch's where torch has CUDA, else a CudaArray, which cupy, numba and
        others take."""
        array = CudaArray(self, spec)
        torch = loaded_torch()
        if framework == "torch" and torch is not None and torch.cuda.is_available() and not spec.dtype.packed:
            return torch.from_dlpack(array)
        return array

    def shareable(self) -> bool:
        """Reports whether `export` works. The driver does not share memory of cuMemCreate and of pools that other
        libraries made, such as torch's with expandable segments."""
        if self._shareable is None:
            try:
                _, fd = self.export(0)
                close_all([fd])
                self._shareable = True
            except CapabilityError:
                self._shareable = False
        return self._shareable

    def export(self, file: int) -> tuple[messages.Handle, int]:
        """Returns a handle, which names the descriptor `file` of the message, and the descriptor, -1 for none. The
        caller owns it."""
        return ipc_handle(self.gpu, self.address, self.nbytes), -1


class _File:
    """A descriptor that is closed when nothing refers to it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class SharedMemory(Memory):
    """Memory of cuMemCreate: it is passed as a descriptor, also between containers, and outlives its owner."""

    def __init__(
        self, gpu: Device, allocation: Any, offset: int, nbytes: int, *, writable: bool, file: _File | None = None
    ) -> None:
        """Maps an allocation, which it takes.

        :param file: the descriptor that the allocation was imported from. The driver exports only what this process has
            created, so `export` duplicates it.
        """
        undo: list[tuple[Any, ...]] = [("cuMemRelease", allocation)]
        unit = gpu.granularity()
        size = -(-max(offset + nbytes, 1) // unit) * unit
        try:
            with gpu.current():
                base = call("cuMemAddressReserve", size, 0, 0, 0)
                undo.insert(0, ("cuMemAddressFree", base, size))
                call("cuMemMap", base, size, 0, allocation, 0)
                undo.insert(0, ("cuMemUnmap", base, size))
                call("cuMemSetAccess", base, size, [gpu.access(writable)], 1)
        except BaseException:
            _free(gpu, undo)
            raise
        super().__init__(gpu, int(base) + offset, nbytes, writable=writable)
        self._allocation = allocation
        self._file = file
        self._offset = offset
        self._size = size
        self._release_steps = undo
        self._mapped = True
        self.release_with(undo)

    def misfit(self, other: Any) -> str:
        """Returns why `replace` cannot map `other` here, or ""."""
        if type(other) is not SharedMemory or other.gpu is not self.gpu or self.writable or other.writable:
            return "the memory is not of the same kind on the same GPU"
        if not other._mapped or not (self._mapped or self._allocation is None):
            return "it is not mapped"
        if (other.nbytes, other._offset, other._size) != (self.nbytes, self._offset, self._size):
            return f"it has {other.nbytes} bytes at {other._offset}, not {self.nbytes} at {self._offset}"
        return ""

    def replace(self, other: SharedMemory) -> None:
        """Maps the memory of `other` at this mapping's addresses, so that arrays over it show other bytes, read-only.
        It waits for the GPU's work first. The caller has checked `misfit`. `other` stays as it is.

        Raises CapabilityError with nothing changed while a stream captures."""
        base = self.address - self._offset
        former = self._allocation
        with self.gpu.current():
            call("cuCtxSynchronize")
            allocation = call("cuMemRetainAllocationHandle", other.address - other._offset)
            if former is not None:
                call("cuMemUnmap", base, self._size)
            try:
                self._map_allocation(allocation)
            except BaseException:
                call("cuMemRelease", allocation)
                if former is not None:
                    self._map_allocation(former)
                raise
            if former is not None:
                call("cuMemRelease", former)
        self._release_steps[:] = [
            ("cuMemUnmap", base, self._size),
            ("cuMemAddressFree", base, self._size),
            ("cuMemRelease", allocation),
        ]
        self._mapped = True
        self._allocation = allocation
        self._file = other._file
        self.name, self.server, self.owner = other.name, other.server, other.owner

    def unmap(self) -> None:
        """Leaves the addresses without memory until `map`, once the GPU has finished its work."""
        if not self._mapped:
            return
        with self.gpu.current():
            call("cuCtxSynchronize")
            call("cuMemUnmap", self.address - self._offset, self._size)
        self._mapped = False
        del self._release_steps[0]

    def vacate(self) -> None:
        """Leaves the addresses without memory until `replace`, and releases the memory."""
        self.unmap()
        if self._allocation is not None:
            with self.gpu.current():
                call("cuMemRelease", self._allocation)
            del self._release_steps[-1]
            self._allocation = self._file = None

    def map(self) -> None:
        """Maps the memory at the same addresses after `unmap`."""
        if self._mapped:
            return
        with self.gpu.current():
            self._map_allocation(self._allocation)
        self._release_steps.insert(0, ("cuMemUnmap", self.address - self._offset, self._size))
        self._mapped = True

    def _map_allocation(self, allocation: Any) -> None:
        base = self.address - self._offset
        call("cuMemMap", base, self._size, 0, allocation, 0)
        try:
            call("cuMemSetAccess", base, self._size, [self.gpu.access(self.writable)], 1)
        except BaseException:
            call("cuMemUnmap", base, self._size)
            raise

    @classmethod
    def allocate(cls, gpu: Device, nbytes: int) -> SharedMemory:
        """Returns fresh memory of at least that many bytes, all zero. Raises OutOfMemoryError."""
        unit = gpu.granularity()
        size = -(-max(nbytes, 1) // unit) * unit
        with gpu.current():
            try:
                allocation = call("cuMemCreate", size, gpu.properties(), 0)
            except OutOfMemoryError:
                wait_released()
                allocation = call("cuMemCreate", size, gpu.properties(), 0)
        made = cls(gpu, allocation, 0, size, writable=True)
        with gpu.current():
            call("cuMemsetD8", made.address, 0, size)  # the driver does not, and peers can read all of it
            # The driver may return before the memory is zero, and streams of programs do not wait for the default one.
            call("cuCtxSynchronize")
        return made

    def export(self, file: int) -> tuple[messages.Handle, int]:
        """Returns a handle of kind cuda-fd and its descriptor."""
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with self.gpu.current():
            call("cuCtxSynchronize")  # work on the memory is complete before it is announced
            if self._file is None:
                fd = int(call("cuMemExportToShareableHandle", self._allocation, kind, 0))
                os.set_inheritable(fd, False)
            else:
                fd = os.dup(self._file.fd)
        handle = messages.Handle(
            kind="cuda-fd", device=self.gpu.uuid, nbytes=self.nbytes, offset=self._offset, file=file, name=self.name
        )
        return handle, fd


class IpcMemory(Memory):
    """Memory of cuMemAlloc in another process, opened by its 64 bytes. A process opens each once, so that openings
    are counted here."""

    _lock: threading.Lock
    _open: dict[bytes, list[Any]] = {}  # noqa: RUF012 - blob to [base, size, how often]

    def __init__(self, gpu: Device, blob: bytes, offset: int, nbytes: int) -> None:
        with self._lock:
            if blob not in self._open:
                self._open[blob] = self._open_handle(gpu, blob)
            entry = self._open[blob]
            entry[2] += 1
            base, size, _ = entry
        if offset + nbytes > size:
            self._at_end(functools.partial(IpcMemory.close_handle, gpu, blob))
            raise ProtocolError(f"a handle of {nbytes} bytes at {offset} of memory of {size} bytes")
        super().__init__(gpu, base + offset, nbytes, writable=False)
        self._blob = blob
        self._offset = offset
        self._at_end(functools.partial(IpcMemory.close_handle, gpu, blob))

    @staticmethod
    def _open_handle(gpu: Device, blob: bytes) -> list[Any]:
        handle = driver().CUipcMemHandle()
        ctypes.memmove(int(handle.getPtr()), blob, IPC_BYTES)
        with gpu.current():
            lazy = driver().CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
            base = int(call("cuIpcOpenMemHandle", handle, lazy))
            try:
                _, size = call("cuMemGetAddressRange", base)
            except BaseException:
                call("cuIpcCloseMemHandle", base)
                raise
        return [base, int(size), 0]

    @classmethod
    def close_handle(cls, gpu: Device, blob: bytes) -> bool:
        """Ends one opening; the last one closes the memory. Returns False if that has to wait; the opening then
        stays."""
        with cls._lock:
            entry = cls._open[blob]
            if entry[2] == 1:
                if not _release(gpu, [("cuIpcCloseMemHandle", entry[0])]):
                    return False
                del cls._open[blob]
            entry[2] -= 1
            return True

    def export(self, file: int) -> tuple[messages.Handle, int]:
        """Returns the handle that it was opened by."""
        del file
        handle = messages.Handle(
            kind="cuda-ipc",
            device=self.gpu.uuid,
            nbytes=self.nbytes,
            offset=self._offset,
            blob=self._blob,
            file=-1,
            name=self.name,
        )
        return handle, -1


forks.track(IpcMemory, _lock=threading.Lock)

_CAPTURING = range(900, 910)
"""What the driver answers if a stream that captures is in the way."""


def _release(gpu: Device, steps: list[tuple[Any, ...]]) -> bool:
    """Makes calls that free memory, once the GPU has finished its work. Returns False, with nothing freed, while a
    stream captures: then the driver does not wait, and kernels may still use the memory."""
    try:
        with gpu.current():
            if int(driver().cuCtxSynchronize()[0]) in _CAPTURING:
                return False
    except CapabilityError:
        return True  # the context is gone, and the memory with it
    _free(gpu, steps)
    return True


def _free(gpu: Device, steps: list[tuple[Any, ...]]) -> None:
    """Makes calls that free memory that nothing uses."""
    try:
        with gpu.current():
            for name, *arguments in steps:
                getattr(driver(), name)(*arguments)  # best effort: after an error of a kernel all calls fail
    except CapabilityError:
        pass  # the context is gone, and the memory with it


def _all_memories() -> list[Memory]:
    while True:
        try:
            return list(_memories)
        except RuntimeError:  # another thread has added one meanwhile
            continue


_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def import_handle(handle: messages.Handle, fd: int) -> Memory:
    """Maps memory that a peer handed over, read-only. Takes `fd`. The driver's word counts, not the handle's."""
    try:
        gpu = device_by_uuid(handle.device)
        if handle.kind == "cuda-ipc":
            if len(handle.blob) != IPC_BYTES:
                raise ProtocolError(f"a handle of kind cuda-ipc with {len(handle.blob)} bytes")
            return IpcMemory(gpu, handle.blob, handle.offset, handle.nbytes)
        if fd < 0:
            raise ProtocolError("a handle of kind cuda-fd names no descriptor")
        kind = driver().CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        with gpu.current():
            allocation = call("cuMemImportFromShareableHandle", fd, kind)
        file, fd = _File(fd), -1
    finally:
        close_all([fd])
    return SharedMemory(gpu, allocation, handle.offset, handle.nbytes, writable=False, file=file)


def ipc_handle(gpu: Device, address: int, nbytes: int) -> messages.Handle:
    """Returns a handle of kind cuda-ipc for memory of cuMemAlloc, such as torch's without expandable segments.

    Raises CapabilityError for memory that cannot be shared so. The handle is of the whole allocation, base and offset
    travel apart.
    """
    with gpu.current():
        call("cuCtxSynchronize")  # work on the memory is complete before it is announced
        base, _ = call("cuMemGetAddressRange", address)
        made = call("cuIpcGetMemHandle", int(base))
        blob = ctypes.string_at(int(made.getPtr()), IPC_BYTES)
    offset = address - int(base)
    return messages.Handle(kind="cuda-ipc", device=gpu.uuid, nbytes=nbytes, offset=offset, blob=blob, file=-1)


def describe(value: Any) -> Described:
    """Describes a tensor of torch, cupy, numba or this package on a GPU."""
    if isinstance(value, CudaArray):
        s = value.spec
        return Described(value, s.dtype, s.shape, s.strides, value.address, f"cuda:{value.memory.gpu.ordinal}")
    interface = value.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    steps = manifest.contiguous_strides(shape) if strides is None else tuple(s // dtype.itemsize for s in strides)
    address = int(interface["data"][0])
    attribute = driver().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    ordinal = int(call("cuPointerGetAttribute", attribute, address)) if address else 0
    return Described(value, DType.of_numpy(dtype), shape, steps, address, f"cuda:{ordinal}")


def find_memory(d: Described) -> Memory:
    """Returns the memory that a tensor on a GPU is in, to pass it in place: ours, or that of another library by
    cuda-ipc."""
    low, high = d.span
    for memory in _all_memories():
        if memory.address <= low and high <= memory.address + memory.nbytes:
            return memory
    gpu = device(int(d.device.partition(":")[2] or 0))
    with gpu.current():
        base, size = call("cuMemGetAddressRange", low)
    foreign = Memory(gpu, int(base), int(size), writable=True)
    foreign.owner = d.value
    return foreign


def is_shared(d: Described) -> bool:
    """Reports whether a tensor on a GPU is in memory of this package."""
    low, high = d.span
    ours = (m for m in _all_memories() if isinstance(m, (SharedMemory, IpcMemory)))
    return any(m.address <= low and high <= m.address + m.nbytes for m in ours)


def publish(
    name: str,
    described: dict[str, Described],
    session: Session,
    *,
    source: str,
    metadata: Mapping[str, str],
    owner_digests: bool,
    digests: bool = False,
    rank: messages.Part | None = None,
) -> Operation[int]:
    """Hands over a state dict with tensors on GPUs: one slab for each device, filled by copies on that device."""
    places: dict[str, dict[str, Described]] = {}
    for key, d in described.items():
        places.setdefault(d.device, {})[key] = d
    handles: list[messages.Handle] = []
    storages: list[messages.Storage] = []
    files: list[int] = []
    specs: dict[str, TensorSpec] = {}
    kept: list[Any] = []
    try:
        for place, tensors in places.items():
            plan = layout.plan(tensors, strided=place == "cpu")
            slab = _fill_host(plan) if place == "cpu" else fill(plan, device(int(place.partition(":")[2] or 0)))
            kept.append(slab)
            handle, fd = _export_slab(slab, session, len(files))
            placed = plan.specs
            if digests:
                placed = plan.with_digests(slab if isinstance(slab, Slab) else _copy_to_host(slab, plan.nbytes))
            for spec in placed:
                specs[spec.name] = spec._replace(storage=len(storages))
            storages.append(messages.Storage(nbytes=slab.nbytes, device=handle.device, type=_type(place)))
            handles.append(handle)
            files.append(fd)
        packed = manifest.pack([specs[key] for key in described], storages, metadata)
    except BaseException:
        close_all(files)
        raise
    body = messages.Publish(
        name=name, manifest=packed, handles=handles, source=source, digests=owner_digests, part=rank
    )
    return Operation(
        Op.PUBLISH, body, lambda frame, _: messages.Published.decode(frame.body).version, files=files, done=kept.clear
    )


def _type(place: str) -> int:
    return op.HOST if place == "cpu" else op.CUDA


def _fill_host(plan: layout.Layout) -> Slab:
    slab = Slab(plan.nbytes)
    plan.fill(slab)
    slab.seal()
    return slab


def _copy_to_host(slab: SharedMemory, nbytes: int) -> Slab:
    """Returns a copy of memory of a GPU, which `fill` has completed, to compute its digests."""
    copied = Slab(nbytes)
    if nbytes:
        with slab.gpu.current():
            call("cuMemcpyDtoH", copied.address, slab.address, nbytes)
    return copied


def _export_slab(slab: Slab | SharedMemory, session: Session, file: int) -> tuple[messages.Handle, int]:
    if isinstance(slab, Slab):
        uuid = device_of(session, op.HOST).uuid
        return messages.Handle(kind="memfd", device=uuid, nbytes=slab.nbytes, offset=0, file=file), slab.share()
    return slab.export(file)


def fill(plan: layout.Layout, gpu: Device) -> SharedMemory:
    """Returns new memory on a GPU with copies of tensors of that GPU.

    Row-major copies of tensors with gaps are made first, because they run on a stream of torch. They stay until all has
    ended: torch gives memory that is freed to the next tensor, although a copy may still read it.
    """
    sources = [(None, copy.address) if copy.source is None else _row_major(copy.source) for copy in plan.copies]
    slab = SharedMemory.allocate(gpu, plan.nbytes)
    with gpu.current():
        call("cuCtxSynchronize")  # the tensors and their copies are complete
        for copy, (_, address) in zip(plan.copies, sources, strict=True):
            if copy.nbytes:
                call("cuMemcpyDtoD", slab.address + copy.offset, address, copy.nbytes)
        call("cuCtxSynchronize")
    del sources
    return slab


def _row_major(d: Described) -> tuple[Any, int]:
    """Returns a tensor in row-major order, and its address."""
    if manifest.is_contiguous(d.shape, d.strides):
        return d.value, d.address
    torch = loaded_torch()
    if torch is not None and isinstance(d.value, torch.Tensor):
        value = d.value.contiguous()
        return value, int(value.data_ptr())
    raise CapabilityError("a tensor on a GPU has gaps between its elements: make it contiguous first")
