"""Arrays over memory of a GPU, as torch, cupy, numba and others take them: by __cuda_array_interface__ and DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np

from .capsules import capsule, refuse_copies
from .dtypes import DType
from .errors import CapabilityError
from .manifest import TensorSpec

CUDA = 2


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
        refuse_copies(copy, dl_device, self.__dlpack_device__())
        return capsule(
            self.address if self.spec.numel else 0,
            self.__dlpack_device__(),
            self.spec.dtype,
            self.spec.shape,
            self.spec.strides,
            keep=self.memory,
            read_only=not self.memory.writable,
            max_version=max_version,
        )

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
