"""Values in the gateway's JSON: tensors, bytes and numbers that JSON lacks are objects with one key."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ProtocolError, SerializationError
from ..frameworks import Framework
from .elements import RawTensor, build, is_tensor, parse_dtype, raw

_MAX_DEPTH = 64


def to_json(value: Any, depth: int = 0) -> Any:
    """Returns a value that json.dumps accepts. Raises SerializationError for types that cannot be sent."""
    if depth > _MAX_DEPTH:
        raise SerializationError(f"values are nested deeper than {_MAX_DEPTH}")
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": _name(value)}
    if isinstance(value, np.generic) and value.ndim == 0 and isinstance(value.item(), (bool, int, float)):
        return to_json(value.item(), depth)
    if is_tensor(value):
        return {"$tensor": _tensor(raw(value))}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            raise SerializationError("the keys of a dict must be strings")
        return {key: to_json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(inner, depth + 1) for inner in value]
    raise SerializationError(f"a value of type {type(value).__name__} cannot be sent")


def _name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _tensor(value: RawTensor) -> dict[str, Any]:
    data = base64.b64encode(value.data).decode()
    return {"dtype": value.dtype.title, "shape": list(value.shape), "data": data}


def from_json(value: Any, framework: Framework) -> Any:
    """Returns the value of parsed JSON. State dicts become dicts of tensors."""
    if isinstance(value, list):
        return [from_json(inner, framework) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        key, inner = next(iter(value.items()))
        if key == "$tensor":
            return _from_tensor(inner, framework)
        if key == "$bytes":
            return base64.b64decode(inner, validate=True)
        if key == "$float":
            return float(inner)
        if key == "$state_dict":
            return _from_state_dict(inner, framework)
    return {key: from_json(inner, framework) for key, inner in value.items()}


def _from_tensor(sent: Any, framework: Framework) -> Any:
    if not isinstance(sent, dict) or "data" not in sent:
        raise ProtocolError("a tensor of the response has no data")
    data = bytearray(base64.b64decode(sent["data"], validate=True))
    return build(parse_dtype(sent["dtype"]), sent.get("shape") or (), data, framework)


def _from_state_dict(sent: Any, framework: Framework) -> dict[str, Any]:
    return {name: from_json(sent["tensors"][name], framework) for name in sent["names"]}
