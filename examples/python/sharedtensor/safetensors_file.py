"""The safetensors format, by its bytes: no data type needs to be known to numpy or torch.

A header of JSON, its length before it, then all tensors one behind the other. A tied tensor is written once, and the
metadata map the other names to it, as torch's helpers do.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .arrays import Described
from .dtypes import DType
from .errors import CapabilityError, InvalidArgumentError
from .manifest import contiguous_strides, count
from .models import StateDict

MAX_HEADER = 100_000_000


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Described], dict[str, str]]:
    """Maps a file and returns its tensors, as `Client.publish` takes them, and its metadata.

    Raises InvalidArgumentError for a file that is not of this format or contradicts itself.
    """
    size = Path(path).stat().st_size
    if size < 8:
        raise InvalidArgumentError(f"{path}: {size} bytes are no safetensors file")
    data = np.memmap(path, np.uint8, "r")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > min(MAX_HEADER, size - 8):
        raise InvalidArgumentError(
            f"{path}: no safetensors file, or one that was cut: a header of {length} bytes in {size}"
        )
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
        metadata = {str(k): str(v) for k, v in header.pop("__metadata__", {}).items()}
        found = {name: _tensor(data, 8 + length, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise InvalidArgumentError(f"{path}: the header of this safetensors file makes no sense: {err}") from err
    for name, kept in metadata.items():
        if kept in found and name not in found:
            found[name] = found[kept]
    return found, {k: v for k, v in metadata.items() if v not in found}


def _tensor(data: Any, start: int, entry: Mapping[str, Any]) -> Described:
    dtype = DType.of_safetensors(entry["dtype"])
    if dtype is None:
        raise ValueError(f"the type {entry['dtype']} is not known")
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if any(not isinstance(n, int) or n < 0 for n in (*shape, begin, end)) or end > len(data) - start:
        raise ValueError(f"a tensor of shape {shape} at {begin} to {end}")
    if end - begin != dtype.nbytes(count(shape)):
        raise ValueError(f"{end - begin} bytes for {dtype} of shape {shape}")
    raw = data[start + begin : start + end]
    if (start + begin) % dtype.bits_numpy.itemsize:
        raw = np.frombuffer(raw.tobytes(), np.uint8)
    raw = raw.view(dtype.bits_numpy)
    if not dtype.packed:
        raw = raw.reshape(shape)
    return Described(raw, dtype, shape, contiguous_strides(shape), int(raw.__array_interface__["data"][0]))


def write(path: str | os.PathLike[str], tensors: StateDict) -> int:
    """Writes a state dict beside `path` and renames it to that when it is whole. Returns the bytes of the file.

    Raises CapabilityError for a type that the format does not have.
    """
    header: dict[str, Any] = {}
    metadata = dict(tensors.metadata)
    first: dict[tuple[Any, ...], str] = {}
    at = 0
    for spec in tensors.specs:
        key = (spec.storage, spec.offset, spec.dtype, spec.shape, spec.strides)
        if spec.numel and key in first:
            metadata[spec.name] = first[key]
            continue
        first[key] = spec.name
        if not spec.dtype.safetensors:
            raise CapabilityError(f"the tensor {spec.name!r}: safetensors files have no type {spec.dtype}")
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
