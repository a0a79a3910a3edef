"""The manifest: tensors in columns, and the slab layout that makes one.

A manifest is what a peer sent, so :func:`unpack` believes nothing: each number is checked against what the columns and
storages can hold before anything is made of it.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from . import messages
from .dtypes import DType
from .errors import InvalidArgumentError, ProtocolError

MAX_TENSORS = 1 << 20
MAX_RANK = 64
_TOO_MANY = 1 << 63
ALIGNMENT = 256
"""Tensors begin at multiples of this within a slab."""


class TensorSpec(NamedTuple):
    """Where a tensor is and what it looks like.

    :ivar offset: bytes from the start of the storage to the first element.
    :ivar strides: in elements, one for each dimension; of a tensor that is contiguous, those of row-major order.
    :ivar digest: SHA-256 of its bytes in row-major order as the publisher claims it, or b"".
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    offset: int
    digest: bytes = b""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return count(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes its elements have, without gaps."""
        return self.dtype.nbytes(self.numel)

    @property
    def contiguous(self) -> bool:
        """Whether its elements lie one behind the other in row-major order."""
        return is_contiguous(self.shape, self.strides)


def count(shape: Sequence[int]) -> int:
    """Returns how many elements a shape has; 1 for that of a scalar."""
    return math.prod(shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of row-major order, in elements."""
    if len(shape) < 2:
        return (1,) * len(shape)
    return _row_major(tuple(shape))


@functools.lru_cache(4096)
def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Reports whether these are the strides of row-major order, those of dimensions of one element aside."""
    if 0 in shape or strides == contiguous_strides(shape):
        return True
    want = 1
    for dim, stride in zip(reversed(shape), reversed(strides), strict=True):
        if dim != 1:
            if stride != want:
                return False
            want *= dim
    return True


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Returns the lowest and one past the highest element that a tensor touches, counted from its first; (0, 0)
    without elements."""
    if 0 in shape:
        return 0, 0
    low = high = 0
    for dim, stride in zip(shape, strides, strict=True):
        step = (dim - 1) * stride
        low, high = low + min(step, 0), high + max(step, 0)
    return low, high + 1


def canonical_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides with those that reach no other element replaced by those of row-major order: of dimensions
    of one element, and of tensors without elements."""
    row_major = contiguous_strides(shape)
    if 0 in shape:
        return row_major
    return tuple(own if dim == 1 else given for dim, given, own in zip(shape, strides, row_major, strict=True))


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Reports whether the elements fill their span, each place once, in whatever order of dimensions: in ascending
    order, each stride is the product of the smaller sizes."""
    if 0 in shape:
        return True
    want = 1
    for stride, dim in sorted((stride, dim) for stride, dim in zip(strides, shape, strict=True) if dim != 1):
        if stride != want:
            return False
        want *= dim
    return True


def dense_strides(shape: tuple[int, ...], strides: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a tensor whose elements fill their span; for others those of row-major order. Raises
    InvalidArgumentError for a negative dimension."""
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(f"the shape {shape}")
    if 0 in shape or not is_dense(shape, strides) or any(stride < 0 for stride in strides):
        return contiguous_strides(shape)
    return tuple(strides)


def check_name(name: str) -> str:
    """Returns the name of a tensor or raises InvalidArgumentError."""
    if not name:
        raise InvalidArgumentError("a tensor has an empty name")
    return name


class SpecTable(Mapping[str, TensorSpec]):
    """The tensors of a manifest by their names, in its order. The columns have been checked; a TensorSpec is made
    when one is asked for."""

    def __init__(
        self,
        names: list[str],
        m: messages.Manifest,
        shapes: list[tuple[int, ...]],
        storages: Sequence[int],
        offsets: Sequence[int],
        strides: dict[int, tuple[int, ...]],
    ) -> None:
        self._index = {name: i for i, name in enumerate(names)}
        if len(self._index) != len(names):
            raise ProtocolError("a manifest has the same name twice")
        self._dtypes, self._digests = m.dtypes, m.digests
        self._shapes, self._storages, self._offsets, self._strides = shapes, storages, offsets, strides

    def __getitem__(self, name: str) -> TensorSpec:
        i = self._index[name]
        shape = self._shapes[i]
        strides = self._strides.get(i)
        return TensorSpec(
            name,
            DType.of_number(self._dtypes[i]),
            shape,
            contiguous_strides(shape) if strides is None else strides,
            self._storages[i],
            self._offsets[i],
            self._digests[32 * i : 32 * i + 32],
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)


def unpack(m: messages.Manifest) -> tuple[SpecTable, dict[str, str]]:
    """Reads the columns. Returns the tensors in their order, and the metadata. Raises ProtocolError for columns that
    cannot be."""
    lengths = _numbers("I", m.name_lengths, "name-lengths")
    n = len(lengths)
    if n > MAX_TENSORS:
        raise ProtocolError(f"a manifest of {n} tensors")
    if len(m.dtypes) != n or len(m.ranks) != n or len(m.storage) != 4 * n or len(m.offsets) != 8 * n:
        raise ProtocolError("the columns of a manifest do not have the same length")
    if m.digests and len(m.digests) != 32 * n:
        raise ProtocolError("a manifest has digests of some tensors only")
    names = _split_names(m.names, lengths)
    shapes, counts = _split_dims(_numbers("q", m.dims, "dims"), m.ranks)
    storages, offsets = _numbers("I", m.storage, "storage"), _numbers("q", m.offsets, "offsets")
    strides = _split_strides(m, shapes)
    dtypes = {number: DType.of_number(number) for number in set(m.dtypes)}
    sizes = [storage.nbytes for storage in m.storages]
    for i, storage in enumerate(storages):
        if storage >= len(sizes):
            raise ProtocolError(f"the tensor {names[i]!r} is in storage {storage} of {len(sizes)}")
        # Of a contiguous tensor the last byte is known by how many elements there are; those with strides are looked at
        # below.
        dtype = dtypes[m.dtypes[i]]
        if dtype.block is not None and (not shapes[i] or shapes[i][-1] % dtype.block[0]):
            raise ProtocolError(f"a row of the tensor {names[i]!r} is not a number of whole blocks of {dtype}")
        end = offsets[i] + dtype.nbytes(counts[i])
        if i not in strides and (offsets[i] < 0 or end > sizes[storage]):
            raise ProtocolError(f"the tensor {names[i]!r} reaches out of its storage")
    table = SpecTable(names, m, shapes, storages, offsets, strides)
    for i in strides:
        check_place(table[names[i]], sizes[storages[i]])
    return table, m.metadata


def _numbers(code: str, column: bytes, what: str) -> tuple[int, ...]:
    size = struct.calcsize("<" + code)
    if len(column) % size:
        raise ProtocolError(f"the column {what} of a manifest has {len(column)} bytes")
    return struct.unpack(f"<{len(column) // size}{code}", column)


def _split_names(text: str, lengths: Sequence[int]) -> list[str]:
    data = text.encode()
    if sum(lengths) != len(data):
        raise ProtocolError("the names of a manifest do not have the lengths that it says")
    ends = list(itertools.accumulate(lengths))
    if len(data) == len(text):  # every character is one byte
        return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    try:
        return [data[end - length : end].decode() for end, length in zip(ends, lengths, strict=True)]
    except UnicodeDecodeError:
        raise ProtocolError("a name of a manifest begins or ends within a character") from None


def _split_dims(dims: Sequence[int], ranks: bytes) -> tuple[list[tuple[int, ...]], list[int]]:
    """Returns the shape of each tensor and how many elements it has."""
    if sum(ranks) != len(dims) or (ranks and max(ranks) > MAX_RANK):
        raise ProtocolError("the dimensions of a manifest do not fit its ranks")
    if dims and min(dims) < 0:
        raise ProtocolError("a manifest has a negative dimension")
    shapes: list[tuple[int, ...]] = []
    counts: list[int] = []
    at = 0
    for rank in ranks:
        shape = tuple(dims[at : at + rank])
        at += rank
        elements = math.prod(shape)
        if elements >= _TOO_MANY or (not elements and math.prod(dim for dim in shape if dim) >= _TOO_MANY):
            raise ProtocolError(f"a manifest has a tensor of shape {shape}")
        shapes.append(shape)
        counts.append(elements)
    return shapes, counts


def _split_strides(m: messages.Manifest, dims: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    strided, strides = _numbers("I", m.strided, "strided"), _numbers("q", m.strides, "strides")
    found: dict[int, tuple[int, ...]] = {}
    at, last = 0, -1
    for i in strided:
        if i <= last or i >= len(dims):
            raise ProtocolError("the column strided of a manifest is not ascending, or names no tensor")
        rank = len(dims[i])
        found[i] = tuple(strides[at : at + rank])
        if any(stride < 0 for stride in found[i]):
            raise ProtocolError("a manifest has a tensor with a negative stride")
        at, last = at + rank, i
    if at != len(strides):
        raise ProtocolError("the column strides of a manifest does not fit its tensors")
    return found


def check_place(spec: TensorSpec, nbytes: int) -> None:
    """Raises ProtocolError unless all elements of a tensor lie within a storage of that many bytes."""
    if spec.dtype.packed and not spec.contiguous:
        raise ProtocolError(f"the tensor {spec.name!r} is packed and has strides")
    low, high = extent(spec.shape, spec.strides)
    begin = spec.offset + spec.dtype.nbytes(low)
    end = spec.offset + spec.dtype.nbytes(high)
    if spec.offset < 0 or begin < 0 or end > nbytes:
        raise ProtocolError(f"the tensor {spec.name!r} reaches out of its storage")


def pack(
    specs: Sequence[TensorSpec], storages: list[messages.Storage], metadata: Mapping[str, str]
) -> messages.Manifest:
    """Makes the columns. Raises InvalidArgumentError for what no manifest can say."""
    if len(specs) > MAX_TENSORS:
        raise InvalidArgumentError(f"{len(specs)} tensors, at most {MAX_TENSORS} go into a manifest")
    names = [check_name(spec.name) for spec in specs]
    strided = [i for i, spec in enumerate(specs) if not spec.contiguous]
    ranks = [len(spec.shape) for spec in specs]
    if ranks and max(ranks) > MAX_RANK:
        raise InvalidArgumentError(f"a tensor of {max(ranks)} dimensions, at most {MAX_RANK} are possible")
    digests = b"".join(spec.digest for spec in specs)
    return messages.Manifest(
        names="".join(names),
        name_lengths=_column("I", [len(name.encode()) for name in names]),
        dtypes=bytes(spec.dtype.number for spec in specs),
        ranks=bytes(ranks),
        dims=_column("q", [dim for spec in specs for dim in spec.shape]),
        storage=_column("I", [spec.storage for spec in specs]),
        offsets=_column("q", [spec.offset for spec in specs]),
        strided=_column("I", strided),
        strides=_column("q", [stride for i in strided for stride in specs[i].strides]),
        digests=digests if len(digests) == 32 * len(specs) else b"",
        storages=storages,
        metadata=dict(metadata),
    )


def _column(code: str, numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}{code}", *numbers)
