"""Values as the bodies of items: safetensors for dicts of tensors, bytes as they are, and CBOR for everything else.

In CBOR a tensor is a map with the key "$tensor" and the bytes of its elements. No type executes anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import cbor
from ..dtypes import DType
from ..errors import ProtocolError, SerializationError
from ..frameworks import Framework
from .elements import Array, build, is_tensor, parse_dtype, raw, size_of

BYTES = "application/octet-stream"
CBOR = "application/vnd.sharedtensor.value+cbor"
JSON = "application/json"
SAFETENSORS = "application/vnd.safetensors"

_MAX_DEPTH = 64


def encode(value: Any) -> tuple[str, bytes]:
    """Returns the media type and the body of a value. Raises SerializationError for types that cannot be sent."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return BYTES, bytes(value)
    if _is_state_dict(value):
        return SAFETENSORS, to_safetensors(value)
    return CBOR, cbor.encode(_plain(value, 0))


def decode(media_type: str, body: bytes, framework: Framework) -> Any:
    """Returns the value of an item; bytes for unknown media types. Raises ProtocolError for damaged bodies."""
    try:
        if media_type == SAFETENSORS:
            return from_safetensors(body, framework)
        if media_type == CBOR:
            return _value(cbor.decode(body), framework)
        if media_type == JSON:
            return json.loads(body)
    except (ValueError, KeyError, TypeError) as err:
        if isinstance(err, ProtocolError):
            raise
        raise ProtocolError(f"an item of type {media_type} is damaged: {err}") from err
    return body


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(k, str) and k != "__metadata__" and is_tensor(v) for k, v in value.items())
        and all(raw(v).dtype.safetensors for v in value.values())
    )


def _plain(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise SerializationError(f"values are nested deeper than {_MAX_DEPTH}")
    if is_tensor(value):
        sent = raw(value)
        return {"$tensor": {"dtype": sent.dtype.title, "shape": list(sent.shape), "data": bytes(sent.data)}}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, Mapping):
        return {_plain(k, depth + 1): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, depth + 1) for inner in value]
    raise SerializationError(f"a value of type {type(value).__name__} cannot be sent")


def _value(value: Any, framework: Framework) -> Any:
    if isinstance(value, list):
        return [_value(inner, framework) for inner in value]
    if not isinstance(value, dict):
        return value
    if list(value) == ["$tensor"]:
        sent = value["$tensor"]
        return build(parse_dtype(sent["dtype"]), sent["shape"], sent["data"], framework)
    return {key: _value(inner, framework) for key, inner in value.items()}


def to_safetensors(tensors: Mapping[str, Array]) -> bytes:
    """Returns a safetensors file. Raises SerializationError for types that the format lacks."""
    header: dict[str, Any] = {}
    pieces: list[Any] = []
    at = 0
    for name, value in tensors.items():
        sent = raw(value)
        if not sent.dtype.safetensors:
            raise SerializationError(f"the tensor {name!r}: safetensors files have no type {sent.dtype}")
        size = size_of(sent.dtype, sent.shape)
        header[name] = {"dtype": sent.dtype.safetensors, "shape": list(sent.shape), "data_offsets": [at, at + size]}
        pieces.append(sent.data)
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def from_safetensors(body: bytes, framework: Framework) -> dict[str, Array]:
    """Returns the tensors of a safetensors file. Raises ProtocolError or ValueError if it is damaged."""
    start = 8 + int.from_bytes(body[:8], "little")
    if len(body) < 8 or start > len(body):
        raise ProtocolError("a safetensors file without its whole header")
    header = json.loads(body[8:start])
    metadata = header.pop("__metadata__", {})
    found: dict[str, Array] = {}
    for name, entry in header.items():
        dtype = DType.of_safetensors(entry["dtype"])
        if dtype is None:
            raise ProtocolError(f"the tensor {name!r} has the unknown type {entry['dtype']!r}")
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= len(body) - start:
            raise ProtocolError(f"the tensor {name!r} is outside the file")
        found[name] = build(dtype, entry["shape"], bytearray(body[start + begin : start + end]), framework)
    for name, kept in metadata.items():  # tied tensors are written once
        if kept in found and name not in found:
            found[name] = found[kept]
    return found
