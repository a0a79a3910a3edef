"""Capsules of DLPack: the records of dlpack.h, and their lives."""

from __future__ import annotations

import ctypes
from typing import Any

from .dtypes import DType
from .errors import CapabilityError

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


def capsule(
    address: int,
    device: tuple[int, int],
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    keep: Any,
    read_only: bool,
    max_version: tuple[int, int] | None,
) -> Any:
    """Returns a capsule for a tensor. It keeps `keep` alive until the consumer releases the tensor.

    :param max_version: of DLPack that the consumer knows; None for one that knows no versions.
    """
    versioned = max_version is not None and max_version[0] >= 1
    record = _Versioned(1, 0) if versioned else _Managed()
    n = len(shape)
    dims, steps = (ctypes.c_int64 * n)(*shape), (ctypes.c_int64 * n)(*strides)
    record.tensor = _Tensor(address or None, *device, n, _data_type(dtype), dims, steps, 0)
    record.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    if isinstance(record, _Versioned) and read_only:
        record.flags = _READ_ONLY
    at = ctypes.addressof(record)
    _alive[at] = (record, dims, steps, keep)
    return _capsule_new(at, _NAMES[versioned], ctypes.cast(_destructor, ctypes.c_void_p))


def refuse_copies(copy: bool | None, wanted: tuple[int, int] | None, device: tuple[int, int]) -> None:
    """Raises BufferError if a consumer requests a copy or another device."""
    if copy or (wanted is not None and tuple(wanted) != device):
        raise BufferError("the memory is shared in place: copy the tensor after the import")


def _data_type(dtype: DType) -> _DataType:
    code = _CODES.get(dtype.title)
    if code is None:
        code = _CODES.get(dtype.title.rstrip("0123456789"))
    if code is None:
        raise CapabilityError(f"DLPack has no type {dtype}: pass the bytes, which raw(name) returns")
    return _DataType(code, dtype.bits, 1)
