"""From a state dict to one slab: which tensor goes where, and which of them share memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Any

import numpy as np

from .arrays import Described, copy_bytes, copy_into, describe, numpy_view
from .errors import CapabilityError, InvalidArgumentError
from .manifest import ALIGNMENT, TensorSpec, contiguous_strides
from .memory import Mapping


@dataclass(frozen=True)
class _Copy:
    """One thing to copy into the slab: a tensor by its elements, or a span of addresses byte by byte."""

    offset: int
    source: Described | None
    address: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """Where each tensor goes within one slab.

    :ivar specs: the tensors in the order of the state dict.
    :ivar nbytes: of the slab.
    """

    specs: list[TensorSpec]
    nbytes: int
    copies: list[_Copy]

    def fill(self, slab: Mapping) -> None:
        """Copies all tensors into the slab."""
        for copy in self.copies:
            if copy.source is not None:
                copy_into(slab, copy.offset, copy.source)
            else:
                copy_bytes(slab, copy.offset, copy.address, copy.nbytes)

    def with_digests(self, slab: Mapping) -> list[TensorSpec]:
        """Returns the tensors with the SHA-256 of what lies in the slab, in row-major order."""
        done: dict[tuple[Any, ...], bytes] = {}
        specs = []
        for spec in self.specs:
            key = (spec.offset, spec.dtype, spec.shape, spec.strides)
            if key not in done:
                array = np.ascontiguousarray(numpy_view(slab, spec, raw=True)).reshape(-1)
                done[key] = hashlib.sha256(array.view(np.uint8).data).digest()
            specs.append(spec._replace(digest=done[key]))
        return specs


def describe_all(state_dict: MappingABC[str, Any]) -> dict[str, Described]:
    """Takes the tensors of a state dict to their parts. Raises InvalidArgumentError for what is no state dict,
    CapabilityError for a tensor that cannot be shared, by its name."""
    described: dict[str, Described] = {}
    for name, value in state_dict.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a state dict has texts as keys, not {type(name).__name__}")
        try:
            described[name] = describe(value)
        except CapabilityError as err:
            raise CapabilityError(f"the tensor {name!r}: {err}") from err
    return described


def plan(described: dict[str, Described]) -> Layout:
    """Lays out host tensors. Those that share memory share it in the slab too; others get their own, aligned."""
    groups = _overlapping(described)
    specs: dict[str, TensorSpec] = {}
    copies: list[_Copy] = []
    at = 0
    for names in groups:
        first = described[names[0]]
        if all(_same(described[name], first) for name in names) and not (first.dense and not _row_major(first)):
            strides = contiguous_strides(first.shape)
            for name in names:
                specs[name] = TensorSpec(name, first.dtype, first.shape, strides, 0, at)
            copies.append(_Copy(at, first, 0, first.nbytes))
            size = first.nbytes
        else:
            low = min(described[name].span[0] for name in names)
            at += low % ALIGNMENT  # keeps each of them as aligned as it was
            size = max(described[name].span[1] for name in names) - low
            for name in names:
                d = described[name]
                specs[name] = TensorSpec(name, d.dtype, d.shape, d.strides, 0, at + d.address - low)
            copies.append(_Copy(at, None, low, size))
        at = -(-(at + size) // ALIGNMENT) * ALIGNMENT
    return Layout([specs[name] for name in described], at, copies)


def _row_major(d: Described) -> bool:
    return d.strides == contiguous_strides(d.shape)


def _same(a: Described, b: Described) -> bool:
    return (a.address, a.dtype, a.shape, a.strides) == (b.address, b.dtype, b.shape, b.strides)


def _overlapping(described: dict[str, Described]) -> list[list[str]]:
    """Groups tensors whose bytes overlap; groups and names within them in the order of the state dict."""
    order = {name: i for i, name in enumerate(described)}
    # The protocol has no negative strides: such a tensor is written out by itself.
    alone = {name for name, d in described.items() if not d.nbytes or any(stride < 0 for stride in d.strides)}
    spans = sorted((d.span, name) for name, d in described.items() if name not in alone)
    groups: list[list[str]] = [[name] for name in alone]
    end = -1
    for (low, high), name in spans:
        if low < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, high)
    for group in groups:
        group.sort(key=order.__getitem__)
    groups.sort(key=lambda group: order[group[0]])
    return groups
