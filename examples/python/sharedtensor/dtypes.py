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
    # The block-quantised types of GGUF, with the elements and bytes of a block. Elements have no size of their own.
    Q4_0 = (66, "q4_0", 0, (32, 18))
    Q4_1 = (67, "q4_1", 0, (32, 20))
    Q5_0 = (70, "q5_0", 0, (32, 22))
    Q5_1 = (71, "q5_1", 0, (32, 24))
    Q8_0 = (72, "q8_0", 0, (32, 34))
    Q8_1 = (73, "q8_1", 0, (32, 36))
    Q2_K = (74, "q2_k", 0, (256, 84))
    Q3_K = (75, "q3_k", 0, (256, 110))
    Q4_K = (76, "q4_k", 0, (256, 144))
    Q5_K = (77, "q5_k", 0, (256, 176))
    Q6_K = (78, "q6_k", 0, (256, 210))
    Q8_K = (79, "q8_k", 0, (256, 292))
    IQ2_XXS = (80, "iq2_xxs", 0, (256, 66))
    IQ2_XS = (81, "iq2_xs", 0, (256, 74))
    IQ3_XXS = (82, "iq3_xxs", 0, (256, 98))
    IQ1_S = (83, "iq1_s", 0, (256, 50))
    IQ4_NL = (84, "iq4_nl", 0, (32, 18))
    IQ3_S = (85, "iq3_s", 0, (256, 110))
    IQ2_S = (86, "iq2_s", 0, (256, 82))
    IQ4_XS = (87, "iq4_xs", 0, (256, 136))
    IQ1_M = (93, "iq1_m", 0, (256, 56))
    TQ1_0 = (98, "tq1_0", 0, (256, 54))
    TQ2_0 = (99, "tq2_0", 0, (256, 66))
    MXFP4 = (103, "mxfp4", 0, (32, 17))
    NVFP4 = (104, "nvfp4", 0, (64, 36))
    Q1_0 = (105, "q1_0", 0, (128, 18))
    Q2_0 = (106, "q2_0", 0, (64, 18))

    def __init__(self, number: int, title: str, bits: int, block: tuple[int, int] | None = None) -> None:
        self.number = number
        self.title = title
        self.bits = bits
        self.block = block
        self._numpy: np.dtype[Any] | None = None  # the hash of an enum's member is slow

    def __str__(self) -> str:
        return self.title

    def nbytes(self, elements: int) -> int:
        """Returns the bytes of that many elements. Elements of 4 and 6 bits are packed. The last byte or block is
        whole."""
        if self.block is not None:
            return -(-elements // self.block[0]) * self.block[1]
        return (elements * self.bits + 7) // 8

    @property
    def packed(self) -> bool:
        """Whether elements share a byte or a block: their tensors are returned as the bytes that contain them."""
        return self.bits % 8 != 0 or self.block is not None

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
        name = name.removeprefix("torch.")
        found = _BY_NAME.get(name) or next((d for d, packed in TORCH_PACKED.items() if packed == name), None)
        if found is None:
            raise CapabilityError(f"the data type {name} cannot be shared")
        return found

    @staticmethod
    def of_safetensors(name: str) -> DType | None:
        """Returns the type with this name in safetensors files, or None."""
        return _SAFETENSORS.get(name)

    @property
    def safetensors(self) -> str:
        """The name in safetensors files, "" for a type that they lack."""
        return _TO_SAFETENSORS.get(self, "")

    @staticmethod
    @functools.lru_cache(maxsize=256)  # numpy computes the name of a type each time
    def of_numpy(dtype: np.dtype[Any]) -> DType:
        """Returns the type of a numpy array. Raises CapabilityError for types that cannot be shared, such as texts
        and objects."""
        found = _BY_DTYPE.get(dtype)
        if found is not None:
            return found
        if not dtype.isnative:
            raise CapabilityError(
                f"the data type {dtype.str} has the other byte order: use .astype({dtype.newbyteorder('=').str!r})"
            )
        found = _BY_NAME.get(dtype.name)
        if found is None or found.packed:
            raise CapabilityError(f"the numpy type {dtype.name} cannot be shared in place")
        _BY_DTYPE[dtype] = found
        return found

    @staticmethod
    def of(dtype: Any) -> DType:
        """Returns the type for a type of numpy or torch, or the name of one. Raises CapabilityError."""
        if isinstance(dtype, DType):
            return dtype
        if isinstance(dtype, str):
            return DType.of_name(dtype)
        torch = frameworks.loaded_torch()
        if torch is not None and isinstance(dtype, torch.dtype):
            return DType.of_name(str(dtype))
        return DType.of_numpy(np.dtype(dtype))

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


_BY_DTYPE: dict[np.dtype[Any], DType] = {}
_BY_NUMBER = {d.number: d for d in DType}
_BY_NAME = {d.title: d for d in DType}
_SAFETENSORS = {
    "BOOL": DType.BOOL,
    "F4": DType.FLOAT4_E2M1FN,
    "F6_E2M3": DType.FLOAT6_E2M3FN,
    "F6_E3M2": DType.FLOAT6_E3M2FN,
    "U8": DType.UINT8,
    "I8": DType.INT8,
    "I16": DType.INT16,
    "U16": DType.UINT16,
    "I32": DType.INT32,
    "U32": DType.UINT32,
    "I64": DType.INT64,
    "U64": DType.UINT64,
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "C64": DType.COMPLEX64,
    "F8_E4M3": DType.FLOAT8_E4M3FN,
    "F8_E5M2": DType.FLOAT8_E5M2,
    "F8_E8M0": DType.FLOAT8_E8M0FNU,
    "F8_E4M3FNUZ": DType.FLOAT8_E4M3FNUZ,
    "F8_E5M2FNUZ": DType.FLOAT8_E5M2FNUZ,
}
_TO_SAFETENSORS = {dtype: name for name, dtype in _SAFETENSORS.items()}
TORCH_PACKED = {DType.FLOAT4_E2M1FN: "float4_e2m1fn_x2"}
"""torch's types for packed elements, of which each has two of the protocol's."""


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
    found = getattr(torch, TORCH_PACKED.get(dtype, "" if dtype.packed else dtype.title), None)
    if found is None:
        raise CapabilityError(
            f"torch {torch.__version__} has no type {dtype}: raw(name) gives the bits of its elements"
        )
    return found
