"""Arrays in shared memory of our own, which calls take in place."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import frameworks, layout
from .arrays import copy_into, describe, numpy_view, torch_view
from .dtypes import DType
from .manifest import TensorSpec, contiguous_strides, count
from .memory import Slab
from .models import StateDict


def empty(shape: int | Sequence[int], dtype: Any = "float32", *, framework: str | None = None) -> Any:
    """Returns a tensor in shared memory, its elements zero. It is writable, and is passed to calls without a copy.

    :param dtype: a type of numpy or torch, or its name: "bfloat16".
    :param framework: "torch" or "numpy"; by default torch's if torch is installed.
    """
    dims = _dims(shape)
    kind = _dtype(dtype)
    slab = Slab(kind.nbytes(count(dims)))
    spec = TensorSpec("", kind, dims, contiguous_strides(dims), 0, 0)
    return torch_view(slab, spec) if frameworks.choose(framework) == "torch" else numpy_view(slab, spec)


zeros = empty
"""The same: fresh memory is zero."""


def from_array(array: Any) -> Any:
    """Returns a copy of an array or tensor in shared memory, of the same library."""
    d = describe(array)
    slab = Slab(d.nbytes)
    copy_into(slab, 0, d)
    spec = TensorSpec("", d.dtype, d.shape, contiguous_strides(d.shape), 0, 0)
    return torch_view(slab, spec) if frameworks.is_torch(array) else numpy_view(slab, spec)


def state_dict(
    tensors: Mapping[str, Any], *, metadata: Mapping[str, str] | None = None, framework: str | None = None
) -> StateDict:
    """Returns a copy of named tensors in one slab of shared memory. As an argument of a call it is a state dict, not
    a map."""
    plan = layout.plan(layout.describe_all(tensors))
    slab = Slab(plan.nbytes)
    plan.fill(slab)
    return StateDict(plan.specs, metadata or {}, [slab], frameworks.choose(framework))


def _dims(shape: Any) -> tuple[int, ...]:
    """Returns a shape as Python's integers: given as one number or a sequence of numbers, also of numpy."""
    try:
        return (operator.index(shape),)
    except TypeError:
        return tuple(operator.index(dim) for dim in shape)


def _dtype(dtype: Any) -> DType:
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str):
        return DType.of_name(dtype)
    torch = frameworks.loaded_torch()
    if torch is not None and isinstance(dtype, torch.dtype):
        return DType.of_name(str(dtype))
    return DType.of_numpy(np.dtype(dtype))
