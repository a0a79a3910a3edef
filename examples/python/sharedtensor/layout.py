"""From a state dict to one slab: which tensor goes where, and which of them share memory."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import digests
from .arrays import Described, copy_bytes, copy_elements, copy_into, describe, elements_of, numpy_view
from .errors import CapabilityError, InvalidArgumentError
from .manifest import ALIGNMENT, TensorSpec, contiguous_strides, extent
from .memory import Mapping, Slab

_MAX_STRIDED = 64
"""The strided tensors among overlapping ones that are compared with all others; with more, all count as sharing."""
_MAX_WORK = 10_000
"""The work that numpy may do to find a byte that two tensors share; beyond it they count as sharing."""


@dataclass(frozen=True)
class Copy:
    """One copy into the slab, of one of three kinds: a tensor in row-major order (`source`), the elements of a tensor
    with its strides (`source` and `spec`), or a span of addresses (neither).

    :ivar offset: of the first byte in the slab.
    :ivar nbytes: the bytes from there, if the copy writes all of them; 0 for a tensor with strides.
    """

    offset: int
    nbytes: int
    source: Described | None = None
    spec: TensorSpec | None = None
    address: int = 0


@dataclass(frozen=True)
class Layout:
    """Where each tensor goes within one slab. It depends on the tensors and on where they are relative to one another,
    not on their addresses.

    :ivar specs: the tensors in the order of the state dict.
    :ivar nbytes: of the slab.
    :ivar copies: in the order of their offsets.
    """

    specs: list[TensorSpec]
    nbytes: int
    copies: list[Copy]

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yields begin and end of each range of the slab that no copy overwrites as a whole. Peers can read it, so it
        must be zero before the copies."""
        end = 0
        for copy in self.copies:
            if not copy.nbytes:
                continue
            if copy.offset > end:
                yield end, copy.offset
            end = copy.offset + copy.nbytes
        if end < self.nbytes:
            yield end, self.nbytes

    def fill(self, slab: Mapping) -> None:
        """Copies all tensors into memory, and zeroes what is between them in a slab that was used before."""
        if isinstance(slab, Slab) and slab.writes > 1:
            for low, high in self.gaps():
                slab.clear(low, high)
        for copy in self.copies:
            if copy.source is None:
                copy_bytes(slab, copy.offset, copy.address, copy.nbytes)
            elif copy.spec is None:
                copy_into(slab, copy.offset, copy.source)
            else:
                copy_elements(slab, copy.spec, copy.source)

    def with_digests(self, slab: Mapping) -> list[TensorSpec]:
        """Returns the tensors with the SHA-256 of their bytes in the slab, in row-major order."""
        found = digests.each(self.specs, lambda spec: numpy_view(slab, spec, raw=True))
        return [spec._replace(digest=found[spec.name]) for spec in self.specs]


def describe_all(state_dict: MappingABC[str, Any]) -> dict[str, Described]:
    """Describes the tensors of a state dict.

    Raises InvalidArgumentError if it is no mapping of texts, and CapabilityError if a tensor cannot be shared.
    """
    given: Any = state_dict
    if not isinstance(given, MappingABC):
        hint = "; pass its state_dict()" if hasattr(given, "state_dict") else ""
        kind = type(given).__name__
        raise InvalidArgumentError(f"a state dict is a mapping of names to tensors, not a {kind}{hint}")
    described: dict[str, Described] = {}
    for name, value in state_dict.items():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a state dict has texts as keys, not {type(name).__name__}")
        try:
            described[name] = describe(value)
        except CapabilityError as err:
            raise CapabilityError(f"the tensor {name!r}: {err}") from err
    return described


def plan(described: dict[str, Described], *, strided: bool = True) -> Layout:
    """Lays out tensors in one slab. Tensors that share bytes share them there too; others are aligned and row-major.

    Only elements of the tensors are copied. The rest of a view's array stays out of the slab.

    :param strided: whether elements can be copied one by one. If not, tensors with strides that share bytes are
        separated, unless another tensor has all bytes between them.
    """
    specs: dict[str, TensorSpec] = {}
    copies: list[Copy] = []
    at = 0
    groups = _sharing(described)
    while groups:
        names = groups.pop(0)
        placed = _place([(name, described[name]) for name in names], at, strided)
        if placed is None:
            groups = _equal(names, described) + groups
            continue
        specs.update({spec.name: spec for spec in placed[0]})
        copies += placed[1]
        end = max(_end(spec) for spec in placed[0])
        at = -(-end // ALIGNMENT) * ALIGNMENT
    return Layout([specs[name] for name in described], at, copies)


def _place(members: list[tuple[str, Described]], at: int, strided: bool) -> tuple[list[TensorSpec], list[Copy]] | None:
    """Places tensors that share bytes at `at`. Returns None if they have to be separated."""
    first = members[0][1]
    if all(_key(d) == _key(first) for _, d in members) and (not first.dense or _row_major(first)):
        strides = contiguous_strides(first.shape)
        specs = [TensorSpec(name, first.dtype, first.shape, strides, 0, at) for name, _ in members]
        return specs, [Copy(at, first.nbytes, source=first)]
    low = min(d.span[0] for _, d in members)
    # The lead aligns the tensor with the largest elements. It does so for all, unless one is not aligned in its array.
    largest = max((d for _, d in members), key=_item)
    at += (low - largest.address) % _item(largest)
    specs = [TensorSpec(name, d.dtype, d.shape, d.strides, 0, at + d.address - low) for name, d in members]
    aligned = all(spec.offset % _item(d) == 0 for spec, (_, d) in zip(specs, members, strict=True))
    covered = _covered([d for _, d in members])
    if len(members) > 1 and not (aligned and (covered or strided)):
        return None
    if covered:
        return specs, [Copy(at, max(d.span[1] for _, d in members) - low, address=low)]
    return specs, [Copy(spec.offset, 0, source=d, spec=spec) for spec, (_, d) in zip(specs, members, strict=True)]


def _end(spec: TensorSpec) -> int:
    """Returns the offset behind the last byte of a tensor."""
    _, high = extent(spec.shape, spec.strides)
    return spec.offset + spec.dtype.nbytes(high)


def _row_major(d: Described) -> bool:
    return d.strides == contiguous_strides(d.shape)


def _key(d: Described) -> tuple[Any, ...]:
    """Returns what tensors with the same bytes, type and shape have in common."""
    return d.address, d.dtype, d.shape, d.strides


def _item(d: Described) -> int:
    """Returns the alignment of an element in bytes; a complex number has that of its parts."""
    size = max(d.dtype.bits // 8, 1)
    return size // 2 if d.dtype.title.startswith("complex") else size


def _covered(members: list[Described]) -> bool:
    """Reports whether dense tensors have all bytes from the lowest to the highest one."""
    end = min(d.span[0] for d in members)
    for low, high in sorted(d.span for d in members if d.dense):
        if low > end:
            return False
        end = max(end, high)
    return end >= max(d.span[1] for d in members)


def _equal(names: list[str], described: dict[str, Described]) -> list[list[str]]:
    """Groups tensors that are the same view."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in names:
        groups.setdefault(_key(described[name]), []).append(name)
    return list(groups.values())


def _sharing(described: dict[str, Described]) -> list[list[str]]:
    """Groups tensors that share bytes; groups and names within them in the order of the state dict."""
    order = {name: i for i, name in enumerate(described)}
    # The protocol has no negative strides: such a tensor is written out separately.
    alone = {name for name, d in described.items() if not d.nbytes or any(stride < 0 for stride in d.strides)}
    spans = sorted((d.span, name) for name, d in described.items() if name not in alone)
    near: list[list[str]] = []
    end = -1
    for (low, high), name in spans:
        if low < end:
            near[-1].append(name)
        else:
            near.append([name])
        end = max(end, high)
    groups = [[name] for name in alone]
    for names in near:
        groups += [names] if len(names) == 1 else _connected(names, described)
    for group in groups:
        group.sort(key=order.__getitem__)
    groups.sort(key=lambda group: order[group[0]])
    return groups


def _connected(names: list[str], described: dict[str, Described]) -> list[list[str]]:
    """Divides tensors whose spans overlap into groups that share bytes. Names are in the order of their spans."""
    views = _equal(names, described)
    values = [described[group[0]] for group in views]
    strided = [i for i, d in enumerate(values) if not d.dense]
    if len(strided) > _MAX_STRIDED:
        return [names]
    group_of = list(range(len(values)))  # the index of another view of the same group, or its own

    def group(i: int) -> int:
        while group_of[i] != i:
            group_of[i] = i = group_of[group_of[i]]
        return i

    last, end = 0, -1
    for i, d in enumerate(values):
        if d.dense:  # these share bytes if their spans do
            if d.span[0] < end:
                group_of[group(i)] = group(last)
            last, end = i, max(end, d.span[1])
    for i in strided:
        for j in range(len(values)):
            if group(i) != group(j) and _share(values[i], values[j]):
                group_of[group(i)] = group(j)
    found: dict[int, list[str]] = {}
    for i, group_names in enumerate(views):
        found.setdefault(group(i), []).extend(group_names)
    return list(found.values())


def _share(a: Described, b: Described) -> bool:
    """Reports whether two tensors have a byte in common. True if that takes too long to find out."""
    (a_low, a_high), (b_low, b_high) = a.span, b.span
    if a_high <= b_low or b_high <= a_low:
        return False
    try:
        return bool(np.shares_memory(elements_of(a), elements_of(b), max_work=_MAX_WORK))  # type: ignore[arg-type]
    except RuntimeError:  # numpy's TooHardError, whose place differs between versions
        return True
