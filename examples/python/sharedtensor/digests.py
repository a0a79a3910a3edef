"""SHA-256 digests of tensors and of whole state dicts, as the protocol defines them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .errors import DigestError, InvalidArgumentError
from .manifest import TensorSpec

Raw = Callable[[TensorSpec], "np.ndarray[Any, Any]"]
"""Returns the bits of a tensor's elements."""


def each(specs: Iterable[TensorSpec], raw: Raw) -> dict[str, bytes]:
    """Returns the digest of each tensor by name. Tied tensors are read once. Several threads compute them."""
    places: dict[tuple[Any, ...], list[TensorSpec]] = {}
    for spec in specs:
        places.setdefault((spec.storage, spec.offset, spec.dtype, spec.shape, spec.strides), []).append(spec)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "sharedtensor digest") as threads:
        found = threads.map(lambda tied: _digest(raw(tied[0])), places.values())
    return {spec.name: d for tied, d in zip(places.values(), found, strict=True) for spec in tied}


def _digest(raw: np.ndarray[Any, Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(raw).reshape(-1).view(np.uint8).data).digest()


def whole(specs: Mapping[str, TensorSpec], digests: Mapping[str, bytes]) -> bytes:
    """Returns the digest of a state dict with these digests of its tensors."""
    h = hashlib.sha256()
    for name in sorted(digests, key=str.encode):
        spec = specs[name]
        dims = " ".join(map(str, spec.shape))
        h.update(f"{len(name.encode())}:{name} {spec.dtype} [{dims}] ".encode() + digests[name])
    return h.digest()


def check(specs: Mapping[str, TensorSpec], raw: Raw, expected: bytes | str | None) -> bytes:
    """Computes all digests, compares them, and returns that of the whole. Raises DigestError."""
    want = bytes.fromhex(expected) if isinstance(expected, str) else expected
    if want is None and not any(spec.digest for spec in specs.values()):
        raise InvalidArgumentError(
            "there are no digests to compare with: publish with digests=True, or pass the digest of the version"
        )
    found = each(specs.values(), raw)
    wrong = [name for name, spec in specs.items() if spec.digest and spec.digest != found[name]]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise DigestError(f"the bytes of {wrong[0]!r}{more} do not have the digest that the publisher sent")
    got = whole(specs, found)
    if want is not None and got != want:
        raise DigestError(f"the digest of the tensors is {got.hex()}, not {want.hex()}")
    return got
