"""Tensors in shared memory of this process, which calls take in place."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from . import frameworks, layout
from .arrays import copy_into, describe, numpy_view, torch_view
from .dtypes import DType
from .errors import CapabilityError
from .manifest import TensorSpec, contiguous_strides, dense_strides
from .memory import Slab, find
from .models import StateDict
from .tensors import NUMPY, TORCH, NumpyArray, Tensor

T = TypeVar("T")
Shape = int | Sequence[int]


@overload
def empty(shape: Shape, dtype: Any = ..., *, framework: TORCH | None = ..., device: str = ...) -> Tensor: ...
@overload
def empty(shape: Shape, dtype: Any = ..., *, framework: NUMPY, device: str = ...) -> NumpyArray: ...
def empty(shape: Shape, dtype: Any = "float32", *, framework: str | None = None, device: str = "cpu") -> Any:
    """Returns a tensor in shared memory, its elements zero. It is writable, and is passed to calls without a copy.

    :param dtype: a type of numpy or torch, or its name: "bfloat16".
    :param framework: "torch" or "numpy"; by default torch's if torch is installed.
    :param device: "cpu", or "cuda:1" for memory of a GPU, which needs cuda-bindings.
    """
    dims = _dims(shape)
    return _new(dims, contiguous_strides(dims), DType.of(dtype), frameworks.choose(framework), device)


zeros = empty
"""The same: fresh memory is zero."""


@overload
def full(shape: Shape, value: Any, dtype: Any = ..., *, framework: TORCH | None = ..., device: str = ...) -> Tensor: ...
@overload
def full(shape: Shape, value: Any, dtype: Any = ..., *, framework: NUMPY, device: str = ...) -> NumpyArray: ...
def full(shape: Shape, value: Any, dtype: Any = "float32", *, framework: str | None = None, device: str = "cpu") -> Any:
    """Returns a tensor in shared memory with all elements equal to `value`. The parameters are those of `empty`."""
    dims = _dims(shape)
    made = _new(dims, contiguous_strides(dims), DType.of(dtype), frameworks.choose(framework), device)
    return _fill(made, value)


@overload
def ones(shape: Shape, dtype: Any = ..., *, framework: TORCH | None = ..., device: str = ...) -> Tensor: ...
@overload
def ones(shape: Shape, dtype: Any = ..., *, framework: NUMPY, device: str = ...) -> NumpyArray: ...
def ones(shape: Shape, dtype: Any = "float32", *, framework: Any = None, device: str = "cpu") -> Any:
    """Returns a tensor of ones in shared memory. The parameters are those of `empty`."""
    return full(shape, 1, dtype, framework=framework, device=device)


def empty_like(tensor: T, *, dtype: Any = None, device: str | None = None) -> T:
    """Returns a tensor in shared memory with the shape, type, device and library of another one, its elements zero. A
    dense tensor's order of dimensions is kept."""
    d = describe(tensor)
    kind = d.dtype if dtype is None else DType.of(dtype)
    library = "torch" if frameworks.is_torch(tensor) else "numpy"
    strides = dense_strides(d.shape, d.strides) if not kind.packed else contiguous_strides(d.shape)
    made: T = _new(d.shape, strides, kind, library, d.device if device is None else device)
    return made


zeros_like = empty_like
"""The same: fresh memory is zero."""


def ones_like(tensor: T, *, dtype: Any = None, device: str | None = None) -> T:
    """Returns a tensor of ones, otherwise as `empty_like`."""
    return _fill(empty_like(tensor, dtype=dtype, device=device), 1)


def full_like(tensor: T, value: Any, *, dtype: Any = None, device: str | None = None) -> T:
    """Returns a tensor with all elements equal to `value`, otherwise as `empty_like`."""
    return _fill(empty_like(tensor, dtype=dtype, device=device), value)


def from_array(array: T) -> T:
    """Returns a copy of an array or tensor in shared memory, of the same library."""
    d = describe(array)
    slab = Slab(d.nbytes)
    copy_into(slab, 0, d)
    spec = TensorSpec("", d.dtype, d.shape, contiguous_strides(d.shape), 0, 0)
    view: Any = torch_view(slab, spec) if frameworks.is_torch(array) else numpy_view(slab, spec)
    made: T = view
    return made


@overload
def state_dict(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = ..., framework: TORCH | None = ...
) -> StateDict[Tensor]: ...
@overload
def state_dict(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = ..., framework: NUMPY
) -> StateDict[NumpyArray]: ...
def state_dict(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None, framework: str | None = None
) -> Any:
    """Returns a copy of named tensors in one slab of shared memory. As an argument of a call it is a state dict, not
    a map."""
    plan = layout.plan(layout.describe_all(tensors))
    slab = Slab(plan.nbytes)
    plan.fill(slab)
    return StateDict(plan.specs, metadata or {}, [slab], frameworks.choose(framework))


def is_shared(tensor: object) -> bool:
    """Reports whether a tensor is in shared memory, so that a call passes it without a copy.

    It is not if this process has changed a tensor that it acquired: the changed pages are its own. Values that are no
    tensors, and tensors of types that cannot be shared, are not shared.
    """
    try:
        d = describe(tensor)
    except CapabilityError:
        return False
    if d.device != "cpu":
        from .cuda import is_shared as is_shared_on_gpu

        return is_shared_on_gpu(d)
    if not d.nbytes or any(stride < 0 for stride in d.strides):
        return False
    low, high = d.span
    mapping = find(low, high - low)
    return mapping is not None and not (mapping.private and mapping.changed(low, high))


def _new(dims: tuple[int, ...], strides: tuple[int, ...], kind: DType, library: str, device: str) -> Any:
    spec = TensorSpec("", kind, dims, strides, 0, 0)
    name, _, ordinal = device.partition(":")
    if name == "cuda" and (not ordinal or ordinal.isdecimal()):
        from . import cuda

        memory = cuda.SharedMemory.allocate(cuda.device(int(ordinal or 0)), spec.nbytes)
        return memory.tensor(spec, frameworks.choose(library))
    if device != "cpu":
        raise CapabilityError(f"device={device!r}: it is 'cpu' or 'cuda:0'")
    slab = Slab(spec.nbytes)
    return torch_view(slab, spec) if library == "torch" else numpy_view(slab, spec)


def _fill(tensor: T, value: Any) -> T:
    made: Any = tensor
    if frameworks.is_torch(made):
        made.fill_(value)
    elif hasattr(made, "__setitem__"):
        made[...] = value
    else:
        raise CapabilityError("without torch, memory of a GPU is filled by the program, not here: use empty")
    return tensor


def _dims(shape: Any) -> tuple[int, ...]:
    """Returns a shape as Python's integers: given as one number or a sequence of numbers, also of numpy."""
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(dim) for dim in shape)
