"""Tensors of host memory for other libraries, by DLPack: also those of types that numpy does not export."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .arrays import Array, Described, describe
from .capsules import capsule, refuse_copies
from .dtypes import DType
from .memory import Mapping, find

CPU = 1


class HostArray:
    """A tensor of host memory for consumers of DLPack, such as ``jax.dlpack.from_dlpack``, ``torch.from_dlpack`` and
    ``numpy.from_dlpack``. It keeps the memory alive, and so do they.

    Memory that this process may not write is mapped once more, copy on write: a consumer that ignores DLPack's flag for
    read-only tensors changes copies of the pages in this process.
    """

    def __init__(self, source: Described) -> None:
        self._source = source
        self._keep: Any = source.value
        self._address = source.address
        self._read_only = False
        low, high = source.span
        mapping = find(low, high - low) if source.nbytes else None
        if mapping is not None:
            self._read_only = not mapping.writable
            if self._read_only and not mapping.private:
                self._keep = _private(mapping, low, high)
                self._address += self._keep.address - low
        elif isinstance(source.value, np.ndarray):
            self._read_only = not source.value.flags.writeable

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self._source.shape

    @property
    def dtype(self) -> DType:
        """Its data type."""
        return self._source.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        del stream  # host memory has none
        refuse_copies(copy, dl_device, self.__dlpack_device__())
        s = self._source
        return capsule(
            self._address if s.nbytes else 0,
            self.__dlpack_device__(),
            s.dtype,
            s.shape,
            s.strides,
            keep=self._keep,
            read_only=self._read_only,
            max_version=max_version,
        )

    def __repr__(self) -> str:
        return f"<sharedtensor.HostArray {self.dtype}{list(self.shape)}>"


def _private(mapping: Mapping, low: int, high: int) -> Mapping:
    """Maps the bytes between two addresses of a mapping again, copy on write."""
    offset = mapping.file_offset + low - mapping.address
    made = Mapping(os.dup(mapping.fd), offset, high - low, writable=False, private=True, device=mapping.device)
    made.owner = mapping.owner
    return made


def to_dlpack(tensor: Array) -> Any:
    """Returns an object with ``__dlpack__`` over the memory of a tensor, for libraries that take tensors by DLPack.

    :param tensor: an array of numpy or a tensor of torch, in shared or ordinary memory, of any type: bfloat16 and the
        8-bit floats too, which numpy does not export. A tensor on a GPU is returned as it is.

    >>> jax.dlpack.from_dlpack(st.to_dlpack(weights["layers.0.weight"]))
    """
    d = describe(tensor)
    return HostArray(d) if d.device == "cpu" else tensor
