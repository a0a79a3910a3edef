"""Arrays over memory of a GPU, as torch, cupy, numba and others take them: by __cuda_array_interface__ and DLPack."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .dtypes import DType
from .errors import CapabilityError
from .manifest import TensorSpec

_CODES = {
    "bool": 6,
    "uint": 1,
    "int": 0,
    "float": 2,
    "bfloat": 4,
    "complex": 5,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
    "float6_e2m3fn": 15,
    "float6_e3m2fn": 16,
    "float4_e2m1fn": 17,
}
CUDA = 2


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1
_alive: dict[int, tuple[Any, ...]] = {}
"""What consumers of capsules still have, by the address of its record."""


def _delete(address: int) -> None:
    _alive.pop(address, None)


# Prototypes of our own: those of ctypes.pythonapi are shared by all libraries of the process, and each may set them.
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAMES = (b"dltensor", b"dltensor_versioned")


def _destroy(capsule: int) -> None:
    # A consumer renames the capsule and calls the deleter itself; one that nobody took still has its name.
    for name in _NAMES:
        if _capsule_is(capsule, name):
            _alive.pop(_capsule_pointer(capsule, name), None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


class CudaArray:
    """A tensor over memory of a GPU. It keeps the memory alive, and so does whoever takes it by DLPack or
    ``__cuda_array_interface__``.

    The bytes are the owner's and complete: no stream has to be waited for. They are mapped read-only; a kernel that
    writes to them ends the process's context.
    """

    def __init__(self, memory: Any, spec: TensorSpec) -> None:
        self.memory = memory
        self.spec = spec

    @property
    def address(self) -> int:
        """The device's address of the first element."""
        return int(self.memory.address) + self.spec.offset

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """Its data type."""
        return self.spec.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        dtype = self.spec.dtype.numpy
        if dtype.kind == "V" or not dtype.isbuiltin:
            raise AttributeError(f"__cuda_array_interface__ has no {self.spec.dtype}: use DLPack")
        strides = None if self.spec.contiguous else tuple(s * dtype.itemsize for s in self.spec.strides)
        return {
            "version": 3,
            "shape": self.spec.shape,
            "typestr": dtype.str,
            "strides": strides,
            "stream": None,
            "data": (self.address if self.spec.numel else 0, not self.memory.writable),
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, int(self.memory.gpu.ordinal)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        del stream  # the bytes are complete
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("the memory is where it is: copies are made by whoever wants one")
        versioned = max_version is not None and max_version[0] >= 1
        record = _Versioned(1, 0) if versioned else _Managed()
        n = len(self.spec.shape)
        shape, strides = (ctypes.c_int64 * n)(*self.spec.shape), (ctypes.c_int64 * n)(*self.spec.strides)
        record.tensor = _Tensor(
            self.address if self.spec.numel else None,
            *self.__dlpack_device__(),
            n,
            _data_type(self.spec.dtype),
            shape,
            strides,
            0,
        )
        record.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
        if isinstance(record, _Versioned) and not self.memory.writable:
            record.flags = _READ_ONLY
        address = ctypes.addressof(record)
        _alive[address] = (record, shape, strides, self.memory)
        return _capsule_new(address, _NAMES[versioned], ctypes.cast(_destructor, ctypes.c_void_p))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Returns a copy in the memory of the host."""
        from .cuda import call

        if not self.spec.contiguous:
            raise CapabilityError("a tensor with strides is copied by torch or cupy, not here")
        raw = np.empty(self.spec.nbytes, np.uint8)
        if raw.nbytes:
            with self.memory.gpu.current():
                call("cuMemcpyDtoH", raw.ctypes.data, self.address, raw.nbytes)
        if self.spec.dtype.packed:
            return raw
        return raw.view(self.spec.dtype.numpy).reshape(self.spec.shape)

    def __repr__(self) -> str:
        return f"<sharedtensor.CudaArray {self.spec.dtype}{list(self.spec.shape)} on cuda:{self.memory.gpu.ordinal}>"


def _data_type(dtype: DType) -> _DataType:
    code = _CODES.get(dtype.title)
    if code is None:
        code = _CODES[dtype.title.rstrip("0123456789")]
    return _DataType(code, dtype.bits, 1)
