"""The safetensors format, by its bytes: no data type needs to be known to numpy or torch.

A header of JSON, its length before it, then all tensors one behind the other. A tied tensor is written once, and the
text `TIED` of the metadata maps the other names to it, as the Go package does.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import Described
from .dtypes import DType
from .errors import CapabilityError, InvalidArgumentError
from .manifest import MAX_RANK, contiguous_strides, count
from .models import StateDict

MAX_HEADER = 100_000_000
TIED = "sharedtensor.tied"
"""The key of the metadata for tied names: JSON, {name that is not stored: stored name}. No other entry ties names."""


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Described], dict[str, str]]:
    """Maps a file and returns its tensors, as `Client.publish` takes them, and its metadata. Names that `TIED` records
    give the same tensor.

    Raises InvalidArgumentError for a file that breaks a rule of the format. The rules are those of the Go reader: each
    byte belongs to one tensor, names and keys occur once, and only `TIED` ties names.
    """
    found, metadata = read_stored(path)
    try:
        found.update({name: found[kept] for name, kept in ties(metadata, found).items()})
    except (ValueError, RecursionError) as err:
        raise InvalidArgumentError(f"{path}: the header of this safetensors file is not valid: {err}") from err
    return found, metadata


def read_stored(path: str | os.PathLike[str]) -> tuple[dict[str, Described], dict[str, str]]:
    """Is `read` without the names that `TIED` records."""
    size = Path(path).stat().st_size
    if size < 8:
        raise InvalidArgumentError(f"{path}: {size} bytes are no safetensors file")
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(MAX_HEADER, size - 8):
        raise InvalidArgumentError(
            f"{path}: no safetensors file, or one that was cut: a header of {length} bytes in {size}"
        )
    start = 8 + length
    try:
        header = _json(data[8:start].tobytes().decode())
        metadata = _texts("__metadata__", header.pop("__metadata__", {}))
        entries = {name: _Entry.of(name, value) for name, value in header.items()}
        _check_cover(entries, size - start)
        found = {name: entry.tensor(data, start) for name, entry in entries.items()}
    except (ValueError, RecursionError) as err:
        raise InvalidArgumentError(f"{path}: the header of this safetensors file is not valid: {err}") from err
    return found, metadata


def ties(metadata: Mapping[str, str], stored: Container[str]) -> dict[str, str]:
    """Returns the names that are not stored, each with the stored name whose tensor it is. Raises ValueError for a
    record that is not valid."""
    recorded = _texts(TIED, _json(metadata[TIED])) if TIED in metadata else {}
    for name, kept in recorded.items():
        if name in stored:
            raise ValueError(f"{name!r} is stored, and tied to {kept!r}")
        if kept not in stored:
            raise ValueError(f"{name!r} is tied to {kept!r}, which is not stored")
    return recorded


def _json(text: str) -> dict[str, Any]:
    """Parses an object whose numbers are whole and not negative. Each key occurs once."""
    if not text.startswith("{"):
        raise ValueError("it does not begin with '{'")
    value = json.loads(
        text, object_pairs_hook=_object, parse_int=_size, parse_float=_no_number, parse_constant=_no_number
    )
    found: dict[str, Any] = value
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    for text in [key for key, _ in pairs] + [value for _, value in pairs if isinstance(value, str)]:
        text.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return found


def _size(text: str) -> int:
    if len(text) > 19 or text.startswith("-") or int(text) >= 1 << 63:
        raise ValueError(f"the number {text[:30]}")
    return int(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"the number {text[:30]} is not a whole one")


def _texts(what: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"{what} is no map of texts")
    return value


@dataclass(frozen=True)
class _Entry:
    """A tensor as the header has it: `begin` and `end` count bytes behind the header."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int

    @staticmethod
    def of(name: str, value: Any) -> _Entry:
        if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r} is no object with dtype, shape and data_offsets")
        title, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
        dtype = DType.of_safetensors(title) if isinstance(title, str) else None
        if dtype is None:
            raise ValueError(f"{name!r} has the unknown type {title!r}")
        if not _is_sizes(shape) or len(shape) > MAX_RANK or not _is_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"{name!r} has the shape {shape!r} and the offsets {offsets!r}")
        elements = count(shape)
        if elements * dtype.bits >= 1 << 63 or count([dim for dim in shape if dim]) >= 1 << 63:
            raise ValueError(f"{name!r} has the shape {shape}, which is too large")
        if elements * dtype.bits % 8 or offsets[1] - offsets[0] != dtype.nbytes(elements):
            raise ValueError(f"{name!r} has {offsets[1] - offsets[0]} bytes for {dtype} of shape {shape}")
        return _Entry(dtype, tuple(shape), offsets[0], offsets[1])

    def tensor(self, data: Any, start: int) -> Described:
        """Returns the tensor over the mapped file, or over a copy if the file does not align it."""
        dtype, shape = self.dtype, self.shape
        raw = data[start + self.begin : start + self.end]
        if (start + self.begin) % dtype.bits_numpy.itemsize:
            raw = np.frombuffer(raw.tobytes(), np.uint8)
        raw = raw.view(dtype.bits_numpy)
        if not dtype.packed:
            raw = raw.reshape(shape)
        return Described(raw, dtype, shape, contiguous_strides(shape), int(raw.__array_interface__["data"][0]))


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int for n in value)


def _check_cover(entries: Mapping[str, _Entry], nbytes: int) -> None:
    """Raises ValueError unless the tensors have each byte of the file once."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            raise ValueError(f"{name!r} begins at {entry.begin}, where the tensor before it ends at {at}")
        at = entry.end
    if at != nbytes:
        raise ValueError(f"the tensors have {at} bytes, the file {nbytes}")


def write(path: str | os.PathLike[str], tensors: StateDict) -> int:
    """Writes a state dict beside `path` and renames it to that when it is whole. Returns the bytes of the file.

    Raises CapabilityError for a type that the format does not have, and for a name that ends in .gguf.
    """
    if Path(path).suffix == ".gguf":
        raise CapabilityError(f"{path}: Python writes safetensors files only: use the command sharedtensor get of Go")
    header: dict[str, Any] = {}
    metadata = dict(tensors.metadata)
    tied = _dropped(tensors, metadata.pop(TIED, ""))
    if tied:
        metadata[TIED] = json.dumps(dict(sorted(tied.items())), ensure_ascii=False, separators=(",", ":"))
    at = 0
    for spec in tensors.specs:
        if spec.name in tied:
            continue
        if spec.name == "__metadata__":
            raise InvalidArgumentError("a tensor of a safetensors file cannot have the name __metadata__")
        if not spec.dtype.safetensors:
            advice = "; the command sharedtensor get of Go writes GGUF files" if spec.dtype.block else ""
            raise CapabilityError(f"the tensor {spec.name!r}: safetensors files have no type {spec.dtype}{advice}")
        header[spec.name] = {
            "dtype": spec.dtype.safetensors,
            "shape": list(spec.shape),
            "data_offsets": [at, at + spec.nbytes],
        }
        at += spec.nbytes
    if metadata:
        header = {"__metadata__": metadata, **header}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as out:
        try:
            out.write(len(text).to_bytes(8, "little") + text)
            for name in header:
                if name != "__metadata__":
                    out.write(np.ascontiguousarray(tensors.raw(name)).reshape(-1).view(np.uint8).data)
            out.flush()
            os.fsync(out.fileno())
            os.rename(out.name, target)
        except BaseException:
            os.unlink(out.name)
            raise
    return 8 + len(text) + at


def _dropped(tensors: StateDict[Any], record: str) -> dict[str, str]:
    """Returns the names that a file does not store, each with the name that it does. A name that `record` of an earlier
    file kept is kept again, otherwise the first in alphabetical order."""
    try:
        recorded = _texts(TIED, _json(record)) if record else {}
    except (ValueError, RecursionError):
        recorded = {}
    dropped: dict[str, str] = {}
    for group in tensors.tied():
        again = [recorded[name] for name in group if recorded.get(name, name) != name and recorded[name] in group]
        kept = again[0] if again else min(group)
        dropped.update({name: kept for name in group if name != kept})
    return dropped
