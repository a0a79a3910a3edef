"""The data types of the protocol and what numpy and torch call them."""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

import numpy as np

from . import frameworks
from .errors import CapabilityError, ProtocolError


class DType(Enum):
    """A data type: its number in the protocol, its name, its bits. The name is torch's, without ``torch.``."""

    BOOL = (1, "bool", 8)
    UINT8 = (2, "uint8", 8)
    INT8 = (3, "int8", 8)
    INT16 = (4, "int16", 16)
    UINT16 = (5, "uint16", 16)
    INT32 = (6, "int32", 32)
    UINT32 = (7, "uint32", 32)
    INT64 = (8, "int64", 64)
    UINT64 = (9, "uint64", 64)
    FLOAT16 = (10, "float16", 16)
    BFLOAT16 = (11, "bfloat16", 16)
    FLOAT32 = (12, "float32", 32)
    FLOAT64 = (13, "float64", 64)
    COMPLEX64 = (14, "complex64", 64)
    COMPLEX128 = (15, "complex128", 128)
    FLOAT8_E4M3FN = (16, "float8_e4m3fn", 8)
    FLOAT8_E5M2 = (17, "float8_e5m2", 8)
    FLOAT8_E8M0FNU = (18, "float8_e8m0fnu", 8)
    FLOAT8_E4M3FNUZ = (19, "float8_e4m3fnuz", 8)
    FLOAT8_E5M2FNUZ = (20, "float8_e5m2fnuz", 8)
    FLOAT6_E2M3FN = (21, "float6_e2m3fn", 6)
    FLOAT6_E3M2FN = (22, "float6_e3m2fn", 6)
    FLOAT4_E2M1FN = (23, "float4_e2m1fn", 4)

    def __init__(self, number: int, title: str, bits: int) -> None:
        self.number = number
        self.title = title
        self.bits = bits
        self._numpy: np.dtype[Any] | None = None  # the hash of an enum's member is slow

    def __str__(self) -> str:
        return self.title

    def nbytes(self, elements: int) -> int:
        """Returns the bytes of that many elements. Elements of 4 and 6 bits are packed, and the last byte is whole."""
        return (elements * self.bits + 7) // 8

    @property
    def packed(self) -> bool:
        """Whether elements are smaller than a byte: their tensors are handed out as the bytes that hold them."""
        return self.bits % 8 != 0

    @staticmethod
    def of_number(number: int) -> DType:
        """Returns the type with this number. Raises ProtocolError."""
        found = _BY_NUMBER.get(number)
        if found is None:
            raise ProtocolError(f"the data type {number} is not known")
        return found

    @staticmethod
    def of_name(name: str) -> DType:
        """Returns the type that torch prints as `name`, with or without ``torch.``. Raises CapabilityError."""
        found = _BY_NAME.get(name.removeprefix("torch."))
        if found is None:
            raise CapabilityError(f"the data type {name} cannot be shared")
        return found

    @staticmethod
    def of_numpy(dtype: np.dtype[Any]) -> DType:
        """Returns the type of a numpy array. Raises CapabilityError for types that cannot be shared, such as texts
        and objects."""
        if not dtype.isnative:
            raise CapabilityError(
                f"the data type {dtype.str} has the other byte order: use .astype({dtype.newbyteorder('=').str!r})"
            )
        found = _BY_NAME.get(dtype.name)
        if found is None or found.packed:
            raise CapabilityError(f"the numpy type {dtype.name} cannot be shared in place")
        return found

    @property
    def numpy(self) -> np.dtype[Any]:
        """numpy's type. Raises CapabilityError for a type of ml_dtypes if that is not installed, and for
        packed ones."""
        if self._numpy is None:
            self._numpy = _numpy_of(self)
        return self._numpy

    @property
    def bits_numpy(self) -> np.dtype[Any]:
        """numpy's unsigned type of the same size, for the bits of elements; uint8 for packed ones, itself for
        complex128."""
        return np.dtype(np.complex128) if self.bits == 128 else np.dtype(f"u{max(self.bits // 8, 1)}")

    @property
    def torch(self) -> Any:
        """torch's type. Raises CapabilityError for a type that the installed torch lacks."""
        return _torch_of(self)


_BY_NUMBER = {d.number: d for d in DType}
_BY_NAME = {d.title: d for d in DType}


def _numpy_of(dtype: DType) -> np.dtype[Any]:
    if dtype.packed:
        raise CapabilityError(f"numpy has no packed type {dtype}: raw(name) gives the bytes that hold the elements")
    try:
        return np.dtype(dtype.title)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        raise CapabilityError(
            f"numpy has no type {dtype}: install ml_dtypes, or take the bits of the elements with raw(name)"
        ) from None
    found = getattr(ml_dtypes, dtype.title, None)
    if found is None:
        raise CapabilityError(
            f"the ml_dtypes that is installed has no {dtype}: raw(name) gives the bits of the elements"
        )
    made: np.dtype[Any] = np.dtype(found)
    return made


@functools.cache
def _torch_of(dtype: DType) -> Any:
    torch = frameworks.torch()
    found = None if dtype.packed else getattr(torch, dtype.title, None)
    if found is None:
        raise CapabilityError(
            f"torch {torch.__version__} has no type {dtype}: raw(name) gives the bits of its elements"
        )
    return found
