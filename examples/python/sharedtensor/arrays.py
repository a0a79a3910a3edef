"""Arrays and tensors over shared memory, and what memory an array or a tensor is in."""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import frameworks, gate, system
from .cuda_array import CudaArray
from .dtypes import DType
from .errors import CapabilityError
from .manifest import TensorSpec, canonical_strides, contiguous_strides, extent, is_dense
from .memory import Mapping

Array = Any
"""A numpy.ndarray or a torch.Tensor."""


def numpy_view(
    mapping: Mapping, spec: TensorSpec, *, raw: bool = False, buffer: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Returns the tensor as a numpy array over the mapping, which it keeps alive; read-only unless the memory is
    writable.

    With `raw` the elements are unsigned integers of the same size, packed types the bytes that hold them. `buffer` is
    `flat` of the mapping, if the caller has it.
    """
    dtype = spec.dtype.bits_numpy if raw else spec.dtype.numpy
    return _ndarray(spec, dtype, flat(mapping) if buffer is None else buffer)


def flat(mapping: Mapping) -> np.ndarray[Any, Any]:
    """Returns all bytes of a mapping as an array, which keeps it alive; read-only for good unless the memory is
    writable."""
    return np.asarray(_Bytes(mapping))


class _Bytes:
    """The bytes of a mapping for numpy, which asks it by __array_interface__: of a buffer numpy forgets that it is
    read-only, so that a program could switch the arrays' flag back and die by writing."""

    __slots__ = ("__array_interface__", "_mapping")

    def __init__(self, mapping: Mapping) -> None:
        self._mapping = mapping
        self.__array_interface__ = {
            "version": 3,
            "shape": (mapping.nbytes,),
            "typestr": "|u1",
            "data": (mapping.address, not mapping.writable),
        }


def writable_flat(mapping: Mapping) -> np.ndarray[Any, Any]:
    """Returns all bytes of a mapping as an array for torch, which keeps it alive."""
    return np.frombuffer(mapping.buffer(), np.uint8)


def torch_view(mapping: Mapping, spec: TensorSpec, *, buffer: np.ndarray[Any, Any] | None = None) -> Any:
    """Returns the tensor as torch's over the mapping, which it keeps alive. `buffer` is `writable_flat` of the mapping,
    if the caller has it."""
    dtype = spec.dtype.torch
    if spec.dtype.packed:
        return _packed_view(mapping, spec, dtype)
    # Bits first, then the type: torch takes from numpy only the types that numpy has by itself.
    bits = np.dtype(f"i{spec.dtype.bits // 8}") if spec.dtype.bits <= 64 else np.dtype(np.complex128)
    array = _ndarray(spec, bits, writable_flat(mapping) if buffer is None else buffer)
    tensor = frameworks.torch().from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def torch_result(mapping: Mapping, spec: TensorSpec) -> Any:
    """Returns the tensor as torch's over the mapping: for a packed type that torch cannot hold, the bytes that contain
    the elements, as uint8."""
    if spec.dtype.packed:
        try:
            return torch_view(mapping, spec)
        except CapabilityError:
            spec = TensorSpec(spec.name, DType.UINT8, (spec.nbytes,), (1,), spec.storage, spec.offset)
    return torch_view(mapping, spec)


def _packed_view(mapping: Mapping, spec: TensorSpec, dtype: Any) -> Any:
    """Returns a tensor of torch whose elements are pairs. Its last dimension has half of the elements."""
    if not spec.shape or spec.shape[-1] % 2:
        raise CapabilityError(f"torch holds pairs of {spec.dtype}, the shape is {spec.shape}: use raw(name)")
    flat_bytes = np.ndarray((spec.nbytes,), np.uint8, np.frombuffer(mapping.buffer(), np.uint8), spec.offset)
    return frameworks.torch().from_numpy(flat_bytes).view(dtype).reshape(*spec.shape[:-1], spec.shape[-1] // 2)


def _ndarray(spec: TensorSpec, dtype: np.dtype[Any], buffer: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if spec.dtype.packed:
        return np.ndarray((spec.nbytes,), dtype, buffer, spec.offset)
    if not spec.numel:
        return np.ndarray(spec.shape, dtype, buffer, 0)
    if spec.contiguous:
        return np.ndarray(spec.shape, dtype, buffer, spec.offset)
    strides = tuple(stride * dtype.itemsize for stride in spec.strides)
    return np.ndarray(spec.shape, dtype, buffer, spec.offset, strides)


@dataclass(slots=True, eq=False)
class Described:
    """An array or tensor as its parts: what type and shape it has, and where in this process its elements are.

    :ivar address: of the first element.
    :ivar strides: in elements.
    :ivar device: "cpu", or "cuda:N".
    """

    value: Array
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        if 1 in self.shape or 0 in self.shape:
            self.strides = canonical_strides(self.shape, self.strides)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements, without gaps."""
        n = 1
        for dim in self.shape:
            n *= dim
        return self.dtype.nbytes(n)

    @property
    def span(self) -> tuple[int, int]:
        """The addresses of the lowest byte and of one past the highest one."""
        low, high = extent(self.shape, self.strides)
        return self.address + low * self.dtype.bits // 8, self.address + -(-high * self.dtype.bits // 8)

    @property
    def contiguous(self) -> bool:
        """Whether the strides are those of row-major order."""
        return self.strides == contiguous_strides(self.shape)

    @property
    def dense(self) -> bool:
        """Whether the elements fill their span without gaps or overlaps, in whatever order of dimensions."""
        return is_dense(self.shape, self.strides)

    def require_host(self) -> Described:
        """Returns this tensor. Raises CapabilityError for one of a GPU, whose addresses the CPU cannot read."""
        if self.device != "cpu":
            raise CapabilityError(f"a tensor on {self.device}: pass a copy in host memory, such as cpu()")
        return self


def is_array(value: object) -> bool:
    """Reports whether a value is a tensor for this package: a numpy array with dimensions or a tensor of torch, cupy
    and the like."""
    return isinstance(value, np.ndarray) or frameworks.is_torch(value) or _on_gpu(value)


def _on_gpu(value: object) -> bool:
    return isinstance(value, CudaArray) or hasattr(value, "__cuda_array_interface__")


def describe(value: Array) -> Described:
    """Takes an array or tensor to its parts. Raises CapabilityError for those that cannot be shared."""
    if isinstance(value, Described):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return _describe_numpy(np.asanyarray(value))
    if frameworks.is_torch(value):
        return _describe_torch(value)
    if _on_gpu(value):
        from .cuda import describe as describe_cuda

        return describe_cuda(value)
    raise CapabilityError(f"{type(value).__name__} is neither a numpy array nor a tensor of torch")


def _describe_numpy(value: np.ndarray[Any, Any]) -> Described:
    value = plain_numpy(value)
    dtype = DType.of_numpy(value.dtype)
    size = value.itemsize
    strides = tuple([stride // size for stride in value.strides])
    if not value.flags.c_contiguous and any(stride % size for stride in value.strides):
        raise CapabilityError(
            "an array whose strides are no multiples of its elements, as of one field of a record: copy it first"
        )
    return Described(value, dtype, value.shape, strides, int(value.__array_interface__["data"][0]))


def plain_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Returns an array of exactly the class numpy.ndarray with the elements of `value`. Raises CapabilityError for a
    masked array."""
    if type(value) is np.ndarray:
        return value
    # np.ma is imported at its first use. A process that forks meanwhile has a child that waits for the import for ever.
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(value, masked):
        raise CapabilityError("a masked array has a mask beside its elements: pass filled() or its data")
    return np.asarray(value)


def _describe_torch(value: Any) -> Described:
    value = gate.plain(value)
    dtype = DType.of_name(str(value.dtype))
    device = "cpu" if value.device.type == "cpu" else str(value.device)
    shape, strides = torch_dims(value, dtype)
    return Described(value, dtype, shape, strides, int(value.data_ptr()), device)


def torch_dims(value: Any, dtype: DType) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns shape and strides of a plain tensor of torch, in elements of the protocol. Raises CapabilityError for a
    packed type with strides."""
    shape, strides = tuple(value.shape), tuple(value.stride())
    if not dtype.packed:
        return shape, strides
    # each element of torch has two
    if not shape or not value.is_contiguous():
        raise CapabilityError(f"a tensor of {value.dtype} with strides: make it contiguous first")
    shape = (*shape[:-1], shape[-1] * 2)
    return shape, contiguous_strides(shape)


def copy_into(mapping: Mapping, offset: int, source: Described) -> None:
    """Copies the elements of a tensor of host memory, in row-major order, to `offset`."""
    if not source.nbytes:
        return
    source.require_host()
    spec = TensorSpec("", source.dtype, source.shape, contiguous_strides(source.shape), 0, offset)
    if source.dtype.packed or source.contiguous:
        copy_bytes(mapping, offset, source.address, source.nbytes)
    elif isinstance(source.value, np.ndarray):
        target = numpy_view(mapping, spec, raw=True)
        np.copyto(target, source.value.view(target.dtype))
    else:
        torch_view(mapping, spec).copy_(source.value)


def elements_of(d: Described) -> np.ndarray[Any, Any]:
    """Returns the elements of a tensor where they are, as bits: unsigned integers of the same size, for packed types
    the bytes that hold them. It does not keep the tensor alive; for memory of a GPU it must not be read."""
    return np.asarray(_Elements(d))


class _Elements:
    """The elements of a tensor as an `__array_interface__`, for numpy."""

    __slots__ = ("__array_interface__",)

    def __init__(self, d: Described) -> None:
        bits = d.dtype.bits_numpy
        packed = d.dtype.packed
        self.__array_interface__ = {
            "version": 3,
            "shape": (d.nbytes,) if packed else d.shape,
            "typestr": bits.str,
            "strides": None if packed else tuple(stride * bits.itemsize for stride in d.strides),
            "data": (d.address, True),
        }


def copy_elements(mapping: Mapping, spec: TensorSpec, source: Described) -> None:
    """Copies the elements of a tensor of host memory to where `spec` has them, and writes nothing between them."""
    source.require_host()
    np.copyto(numpy_view(mapping, spec, raw=True), elements_of(source))


def copy_bytes(mapping: Mapping, offset: int, address: int, nbytes: int) -> None:
    """Copies bytes from an address of this process to `offset`, many of them with several threads."""
    target = mapping.address + offset
    if nbytes < _MANY or system.PROCESSORS < 2:
        ctypes.memmove(target, address, nbytes)
        return
    part = -(-nbytes // min(system.PROCESSORS, _MOST_THREADS))
    begun: list[threading.Thread] = []
    try:
        for at in range(part, nbytes, part):
            piece = (target + at, address + at, min(part, nbytes - at))
            begun.append(threading.Thread(target=ctypes.memmove, args=piece, daemon=True))
            try:
                begun[-1].start()
            except RuntimeError:  # this process can start no more threads
                ctypes.memmove(*piece)
        ctypes.memmove(target, address, part)
    finally:
        _join(begun)


_MANY = 8 << 20
_MOST_THREADS = 4


def _join(threads: list[threading.Thread]) -> None:
    """Waits for the end of threads, also if this one is interrupted: they write to memory that is reused afterwards."""
    interrupted: BaseException | None = None
    for thread in threads:
        while thread.is_alive():
            try:
                thread.join()
            except BaseException as err:
                interrupted = err
    if interrupted is not None:
        raise interrupted
