"""Tensors as the bytes of their elements: row-major and little-endian, as all protocols of the gateway send them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import frameworks, gate
from ..arrays import plain_numpy
from ..dtypes import TORCH_PACKED, DType
from ..errors import CapabilityError, ProtocolError
from ..frameworks import Framework

Array = Any
"""A numpy.ndarray, a torch.Tensor or a `RawTensor`."""


@dataclass(frozen=True)
class RawTensor:
    """A tensor as its bytes. Received tensors are of this class if numpy or torch lacks their data type.

    :ivar dtype: the type of the elements.
    :ivar shape: in elements.
    :ivar data: the elements, row-major and little-endian.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


def is_tensor(value: object) -> bool:
    """Reports whether a value is sent as a tensor."""
    return isinstance(value, (np.ndarray, RawTensor)) or frameworks.is_torch(value)


def raw(value: Array) -> RawTensor:
    """Returns a tensor as its bytes. Contiguous bytes in host memory are not copied.

    Raises CapabilityError for other values than tensors, and for types that cannot be sent.
    """
    if isinstance(value, RawTensor):
        return value
    if frameworks.is_torch(value):
        return _raw_torch(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = plain_numpy(value)
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        dtype = DType.of_numpy(array.dtype)
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return RawTensor(dtype, array.shape, flat.data)
    raise CapabilityError(f"{type(value).__name__} is neither a numpy array nor a tensor of torch")


def _raw_torch(value: Any) -> RawTensor:
    torch = frameworks.torch()
    value = gate.plain(value).cpu().contiguous()
    dtype = DType.of_name(str(value.dtype))
    shape = tuple(value.shape)
    if dtype in TORCH_PACKED:
        if not shape:
            raise CapabilityError(f"a tensor of {value.dtype} without dimensions cannot be sent")
        shape = (*shape[:-1], 2 * shape[-1])
    return RawTensor(dtype, shape, value.reshape(-1).view(torch.uint8).numpy().data)


def size_of(dtype: DType, shape: Sequence[int]) -> int:
    """Returns the bytes of a tensor. Raises ProtocolError for a negative dimension."""
    if any(dim < 0 for dim in shape):
        raise ProtocolError(f"a tensor of shape {tuple(shape)}")
    return dtype.nbytes(math.prod(shape))


def parse_dtype(name: str) -> DType:
    """Returns the type that a peer names. Raises ProtocolError."""
    try:
        return DType.of_name(name)
    except CapabilityError:
        raise ProtocolError(f"the data type {name!r} is not known") from None


def build(dtype: DType, shape: Sequence[int], data: bytes | bytearray, framework: Framework) -> Array:
    """Returns a tensor over `data`, which is copied only if it is read-only.

    The result is a `RawTensor` if the framework lacks the type. Raises ProtocolError if the sizes differ.
    """
    dims = tuple(int(dim) for dim in shape)
    if len(data) != size_of(dtype, dims):
        raise ProtocolError(f"{len(data)} bytes for a tensor of {dtype} and shape {dims}")
    if not isinstance(data, bytearray):
        data = bytearray(data)
    if framework == "torch":
        return _build_torch(dtype, dims, data)
    try:
        return np.frombuffer(data, dtype.numpy).reshape(dims)
    except CapabilityError:
        return RawTensor(dtype, dims, data)


def _build_torch(dtype: DType, shape: tuple[int, ...], data: bytearray) -> Array:
    torch = frameworks.torch()
    try:
        wanted = dtype.torch
    except CapabilityError:
        return RawTensor(dtype, shape, data)
    if dtype in TORCH_PACKED:
        if not shape or shape[-1] % 2:
            return RawTensor(dtype, shape, data)
        shape = (*shape[:-1], shape[-1] // 2)
    if not data:
        return torch.empty(shape, dtype=wanted)
    return torch.frombuffer(data, dtype=torch.uint8).view(wanted).reshape(shape)
