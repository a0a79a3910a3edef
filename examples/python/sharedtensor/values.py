"""Arguments and results of calls: plain Python values with tensors anywhere in them, as one CBOR item and handles
beside it."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Container, Iterable, Sequence
from collections.abc import Mapping as MappingABC
from datetime import datetime, timedelta, timezone
from typing import Any

import cbor2
import numpy as np

from . import cbor, inline, layout, manifest, messages, op
from .arrays import Described, describe, is_array, numpy_view, torch_result
from .cbor import TAG_STATE_DICT, TAG_TENSOR
from .dtypes import DType
from .errors import ProtocolError, SerializationError
from .frames import Frame, close_all
from .frameworks import Framework
from .importing import check_storages, device_of, import_handles
from .inline import Inline
from .kept import Kept
from .manifest import TensorSpec, contiguous_strides
from .memory import Mapping, Slab, SlabPool, find
from .models import StateDict
from .session import Session

MAX_NESTING = 60


class Outgoing:
    """A value on its way out: its plain form, the handles of its tensors, and the descriptors to send with them.

    Tensors in shared memory are passed in place. Other tensors are copied once: from the host into the frame if they
    are small, otherwise into one slab of the pool, which `close` returns, and on a GPU into new memory of that GPU.
    Arguments in GPU memory of other libraries are passed in place if the driver shares that memory, which excludes
    torch's expandable segments. Memory that the peer may write is a separate slab, which is not reused.

    :ivar item: the encoded value.
    :ivar handles: of the memory, some of them encoded.
    :ivar files: the descriptors of the handles.
    :ivar numbered: encoded handles without descriptors of the memory that the server is to keep, by its numbers.
    :ivar settled: whether the answer reports nothing new about that memory.
    """

    def __init__(
        self,
        value: Any,
        session: Session,
        pool: SlabPool,
        *,
        writable: bool = False,
        seal: bool = False,
        kept: Kept | None = None,
        lent: Container[str] = (),
    ) -> None:
        """Encodes `value`. With `seal`, for results, its memory is closed to new writers and outlives this process.
        Raises SerializationError or CapabilityError for what cannot be sent.

        :param kept: what the server keeps of the memory of earlier calls.
        :param lent: the names of the call's arguments, whose memory needs no descriptor in its result.
        """
        self._session = session
        self._pool = pool
        self._writable = writable
        self._within = session.inline and not writable
        self._seal = seal
        self._keep = kept
        self._lent = lent
        self._slab: Slab | None = None
        self._own: list[Any] = []  # memory is known by its id until the value is encoded
        self._indices: dict[tuple[int, int, int], int] = {}
        self._tensors: list[tuple[Any, int]] = []  # with their places in _items, which `_place` fills
        self._foreign: dict[int, Any] = {}  # GPU memory of other libraries, by its address
        self._items: list[bytes] = []
        self.handles: list[Any] = []
        self.files: list[int] = []
        self.numbered: dict[int, bytes] = {}
        self.settled = True
        try:
            self._walk(value, 0)
            if self._tensors:
                self._place()
            self.item = cbor.Encoded(b"".join(self._items))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the descriptors and returns the slab. Safe to call twice."""
        close_all(self.files)
        self.files = []
        self.release()

    def release(self) -> None:
        """Returns the slab to the pool, which reuses it once no other process has it."""
        slab, self._slab = self._slab, None
        if slab is not None and not self._writable:
            self._pool.put(slab)

    # ---- the value

    def _walk(self, value: Any, depth: int) -> None:
        """Encodes a value. Each item of a mapping is taken once: a mapping may make its tensors when they are taken."""
        kind = type(value)
        if kind in _PLAIN:
            self._items.append(cbor.scalar(value))
        elif kind is dict and depth < MAX_NESTING:
            self._map(value, depth)
        elif kind is np.ndarray:
            self._tensors.append((value, len(self._items)))
            self._items.append(b"")
        elif isinstance(value, StateDict):
            self._items.append(cbor.encode(self._state_dict(value)))
        elif is_array(value):
            self._tensors.append((value, len(self._items)))
            self._items.append(b"")
        elif isinstance(value, (MappingABC, list, tuple)):
            if depth >= MAX_NESTING and len(value):
                raise SerializationError("the value nests too deeply")
            if isinstance(value, MappingABC):
                self._map(value, depth)
            else:
                self._items.append(cbor.head(4, len(value)))
                for item in value:
                    self._walk(item, depth + 1)
        else:
            self._items.append(cbor.scalar(_scalar(value)))

    def _map(self, value: MappingABC[Any, Any], depth: int) -> None:
        items = [*value.items()]
        prefix, order = cbor.keys(tuple([key if type(key) is str else _key(key) for key, _ in items]))
        self._items.append(prefix)
        for head, index in order:
            self._items.append(head)
            self._walk(items[index][1], depth + 1)

    def _place(self) -> None:
        """Encodes the tensors."""
        described: dict[int, Described] = {}  # by the ids of tensors, which exist as long as this object
        copied: dict[str, dict[str, Described]] = {}
        for array, at in self._tensors:
            d = described.get(id(array))
            if d is None:
                d = described[id(array)] = describe(array)
            memory = self._in_place(d)
            if memory is None:
                copied.setdefault(d.device, {})[str(id(array))] = d
            else:
                strides = () if d.contiguous else d.strides
                self._items[at] = _tensor(
                    self._handle(memory), d.dtype.number, d.address - memory.address, d.shape, strides
                )
        if not copied or self._place_one(copied):
            return
        places: dict[int, tuple[Any, TensorSpec]] = {}
        for place, tensors in copied.items():
            plan = layout.plan(tensors, strided=place == "cpu")
            memory = self._fill_host(plan) if place == "cpu" else self._fill_device(plan, place)
            places.update({int(spec.name): (memory, spec) for spec in plan.specs})
        for array, at in self._tensors:
            if not self._items[at]:
                memory, spec = places[id(array)]
                strides = () if spec.contiguous else spec.strides
                self._items[at] = _tensor(self._handle(memory), spec.dtype.number, spec.offset, spec.shape, strides)

    def _place_one(self, copied: dict[str, dict[str, Described]]) -> bool:
        """Encodes the only tensor that is copied if it is small and in row-major order, which needs no layout."""
        tensors = [*copied.get("cpu", {}).values()]
        if len(copied) > 1 or len(tensors) != 1 or not self._within:
            return False
        d = tensors[0]
        if not d.nbytes or d.nbytes > inline.MAX_BYTES or not d.contiguous:
            return False
        content = ctypes.string_at(d.address, d.nbytes)
        handle = self._add(inline.encode(device_of(self._session, op.HOST).uuid, content), -1)
        item = _tensor(handle, d.dtype.number, 0, d.shape, ())
        for _, at in self._tensors:
            self._items[at] = self._items[at] or item
        return True

    def _fill_host(self, plan: layout.Layout) -> Slab | Inline:
        if self._within and plan.nbytes <= inline.MAX_BYTES:
            memory = Inline(plan.nbytes, writable=True)
            plan.fill(memory)
            self._own.append(memory)
            return memory
        self._slab = Slab(plan.nbytes) if self._writable else self._pool.take(plan.nbytes)
        plan.fill(self._slab)
        return self._slab

    def _fill_device(self, plan: layout.Layout, place: str) -> Any:
        from .cuda import device, fill

        memory = fill(plan, device(int(place.partition(":")[2] or 0)))
        self._own.append(memory)
        return memory

    def _in_place(self, d: Described) -> Any | None:
        """Returns the shared memory that a tensor is in, or None if it has to be copied."""
        if not d.nbytes:
            return None
        if d.device != "cpu":
            return self._on_device(d)
        low, high = (d.address, d.address + d.nbytes) if d.contiguous else d.span
        if low < d.address:  # the protocol has no negative strides
            return None
        mapping = find(low, high - low)
        if mapping is None or (mapping.private and mapping.changed(low, high)):
            return None
        return mapping

    def _on_device(self, d: Described) -> Any | None:
        from .cuda import SharedMemory, find_memory

        memory = find_memory(d)
        if isinstance(memory, SharedMemory):
            return memory
        if self._seal:
            return None
        memory = self._foreign.setdefault(memory.address, memory)
        return memory if memory.shareable() else None

    def _state_dict(self, value: StateDict) -> cbor2.CBORTag:
        storages = [
            messages.Storage(
                nbytes=m.nbytes, device=self._device(m), type=op.HOST if isinstance(m, Mapping) else op.CUDA
            )
            for m in value.mappings
        ]
        handles = [self._handle(m) for m in value.mappings]
        return cbor2.CBORTag(TAG_STATE_DICT, [handles, manifest.pack(value.specs, storages, value.metadata).plain()])

    # ---- handles

    def _device(self, mapping: Any) -> bytes:
        if isinstance(mapping, Mapping):
            return device_of(self._session, op.HOST).uuid
        found: bytes = mapping.device
        return found

    def _handle(self, mapping: Any) -> int:
        if not isinstance(mapping, Mapping):
            return self._device_handle(mapping)
        key = (*mapping.inode(), mapping.file_offset)
        if key not in self._indices:
            self._indices[key] = self._host_handle(mapping)
        return self._indices[key]

    def _host_handle(self, mapping: Mapping) -> int:
        if isinstance(mapping, Inline):
            return self._add(inline.encode(self._device(mapping), mapping.content()), -1)
        name = mapping.name if mapping.server == self._session.hello.server else ""
        numbered, handle = False, None
        if self._keep is not None and not name and mapping is not self._slab:
            numbered, handle, settled = self._keep.use(mapping.number)
            self.settled = self.settled and settled
            if handle is not None:
                self.numbered[mapping.number] = handle
                return self._add(cbor.Encoded(handle), -1)
        device = self._device(mapping)  # raises, so before there is a descriptor
        sent = messages.Handle(
            kind="memfd",
            device=device,
            nbytes=mapping.nbytes,
            offset=mapping.file_offset,
            file=-1,
            name=name,
            storage=mapping.number if numbered else 0,
        )
        if numbered:
            self.numbered[mapping.number] = sent.encode()
        if name and name in self._lent:
            return self._add(sent, -1)
        if self._seal and isinstance(mapping, Slab):
            mapping.seal()
        sent.file = len(self.files)
        return self._add(sent, mapping.share(writable=self._writable))

    def _device_handle(self, memory: Any) -> int:
        key = (-1, id(memory), 0)
        if key not in self._indices:
            self._own.append(memory)
            handle, fd = memory.export(len(self.files))
            self._indices[key] = self._add(handle, fd)
        return self._indices[key]

    def _add(self, handle: Any, fd: int) -> int:
        self.handles.append(handle)
        if fd >= 0:
            self.files.append(fd)
        return len(self.handles) - 1


_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


@functools.lru_cache(1024)
def _tensor(handle: int, dtype: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """Returns the encoding of a tensor: its tag and five parts."""
    head = cbor.head
    parts = [_TENSOR, head(0, handle), head(0, dtype), head(0, offset), head(4, len(shape))]
    parts += [head(0, dim) for dim in shape]
    parts.append(head(4, len(strides)))
    parts += [head(0, stride) for stride in strides]
    return b"".join(parts)


_TENSOR = cbor.head(6, TAG_TENSOR) + cbor.head(4, 5)


def is_light(value: Any, limit: int = 1 << 20) -> bool:
    """Reports whether sending a value copies at most `limit` bytes and uses no GPU."""
    left = limit
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, (str, int, float, bytes, type(None))):
            continue
        if isinstance(item, StateDict):
            return False
        if isinstance(item, np.ndarray):
            left -= item.nbytes
        elif is_array(item):
            if getattr(getattr(item, "device", None), "type", "") != "cpu":
                return False
            try:
                left -= int(item.nbytes)
            except (AttributeError, RuntimeError):  # torch before 2.1, and kinds of tensors without a size
                return False
        elif isinstance(item, MappingABC):
            stack.extend(item.values())
        elif isinstance(item, (list, tuple)):
            stack.extend(item)
        left -= 64
        if left < 0:
            return False
    return True


def plain(value: Any, levels: int = MAX_NESTING) -> Any:
    """Returns a value without tensors, of at most `levels` lists and maps within each other, in the types that CBOR
    has. Raises SerializationError for what has none."""
    if not isinstance(value, (MappingABC, list, tuple)):
        return _scalar(value)
    if not levels:
        raise SerializationError("the value nests too deeply")
    if isinstance(value, MappingABC):
        return keyed((key, plain(item, levels - 1)) for key, item in value.items())
    return [plain(item, levels - 1) for item in value]


def keyed(items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns a map with keys of Python's own types. Raises SerializationError for two keys that become one."""
    found: dict[Any, Any] = {}
    for key, item in items:
        exact = _key(key)
        if exact in found:
            raise SerializationError(f"the key {exact!r} is there twice")
        found[exact] = item
    return found


def _key(key: Any) -> Any:
    if isinstance(key, np.generic) and not isinstance(key, (str, np.bool_)):
        key = key.item()
    if isinstance(key, (str, int)) and not isinstance(key, bool):
        return _exact(key)
    raise SerializationError(f"a key of type {type(key).__name__}: they are texts or whole numbers")


def _exact(value: Any) -> Any:
    """Returns a text, number or bytes as Python's own type: without the class of an enum, of numpy or of a program."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if type(value) is kind else getattr(kind, f"__{kind.__name__}__")(value)
    return bytes(memoryview(value))


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic) and not isinstance(value, (float, str, bytes)):
        item = value.item()
        value = float(item) if isinstance(item, np.floating) else item
    if value is None:
        return None
    if isinstance(value, (bool, int, float, str, bytes, bytearray, memoryview)):
        return _exact(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise SerializationError("a time without a time zone: use datetime.now(timezone.utc)")
        return value.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
    if isinstance(value, timedelta):
        return (value.days * 86400 + value.seconds) * 10**9 + value.microseconds * 1000
    if isinstance(value, os.PathLike):
        return _scalar(os.fspath(value))
    raise SerializationError(f"a value of type {type(value).__name__} cannot be sent")


def decode(
    plain: Any,
    handles: Sequence[messages.Handle],
    frame: Frame,
    session: Session,
    framework: Framework,
    owner: object = None,
) -> tuple[Any, list[Any]]:
    """Returns a value that came, with its tensors over the memory of its handles, and that memory.

    :param owner: what each mapping keeps alive.
    """
    mappings = import_handles(handles, frame, session, private=framework == "torch", within=True, owner=owner)
    return _decode(plain, mappings, framework), mappings


def decode_plain(plain: Any, framework: Framework) -> Any:
    """Returns a value that came without memory. Raises ProtocolError if it has tensors."""
    return plain if type(plain) in _PLAIN else _decode(plain, [], framework)


def _decode(plain: Any, mappings: list[Any], framework: Framework) -> Any:
    if isinstance(plain, cbor2.CBORTag):
        parts = _thaw(plain.value)
        if plain.tag == TAG_TENSOR:
            return _decode_tensor(parts, mappings, framework)
        return _decode_state_dict(parts, mappings, framework)
    if isinstance(plain, dict):
        return {key: _decode(value, mappings, framework) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_decode(value, mappings, framework) for value in plain]
    return plain


def _decode_tensor(parts: Any, mappings: list[Any], framework: Framework) -> Any:
    if not isinstance(parts, list) or len(parts) != 5 or not all(isinstance(n, int) for n in parts[:3]):
        raise ProtocolError("a tensor in a result does not have its five parts")
    handle, number, offset, shape, strides = parts
    if (
        not _integers(shape)
        or not _integers(strides)
        or len(shape) > manifest.MAX_RANK
        or any(dim < 0 for dim in shape)
    ):
        raise ProtocolError(f"a tensor in a result has the shape {shape!r}")
    if strides and (len(strides) != len(shape) or any(stride < 0 for stride in strides)):
        raise ProtocolError(f"a tensor in a result of {len(shape)} dimensions has the strides {strides}")
    if not 0 <= handle < len(mappings):
        raise ProtocolError(f"a tensor in a result names the handle {handle} of {len(mappings)}")
    mapping = mappings[handle]
    spec = TensorSpec("", DType.of_number(number), tuple(shape), tuple(strides) or contiguous_strides(shape), 0, offset)
    manifest.check_place(spec, mapping.nbytes)
    if not isinstance(mapping, Mapping):
        return mapping.tensor(spec, framework)
    if framework == "torch":
        return torch_result(mapping, spec)
    return numpy_view(mapping, spec, raw=spec.dtype.packed)


def _thaw(value: Any) -> Any:
    # cbor2 gives what is within a tag as tuples and frozen maps.
    if isinstance(value, (list, tuple)):
        return [_thaw(v) for v in value]
    if isinstance(value, MappingABC):
        return {k: _thaw(v) for k, v in value.items()}
    return value


def _integers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in value)


def _decode_state_dict(parts: Any, mappings: list[Any], framework: Framework) -> StateDict:
    if not isinstance(parts, list) or len(parts) != 2 or not _integers(parts[0]):
        raise ProtocolError("a state dict in a result does not have its two parts")
    if any(not 0 <= handle < len(mappings) for handle in parts[0]):
        raise ProtocolError(f"a state dict in a result names a handle of {len(mappings)} that is not there")
    sent = messages.Manifest.from_plain(parts[1])
    chosen = [mappings[handle] for handle in parts[0]]
    check_storages(sent.storages, chosen)
    if any(isinstance(memory, Inline) for memory in chosen):
        raise ProtocolError("the memory of a state dict is within the frame")
    specs, metadata = manifest.unpack(sent)
    return StateDict(specs, metadata, chosen, framework)
