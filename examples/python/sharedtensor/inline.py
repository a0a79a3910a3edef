"""Small host memory within frames: copies that belong to the receiver."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence

import numpy as np

from . import cbor, messages
from .errors import CapabilityError, ProtocolError
from .memory import Mapping

FEATURE = "inline"
"""The feature of peers that accept memory within frames."""
KIND = "inline"
MAX_BYTES = 16 << 10
"""The limit of such memory in a message, in bytes."""
_ALIGNMENT = 64
_numbers = itertools.count(-1, -1)


class Inline(Mapping):
    """Memory of this process alone. Other processes cannot map it, so that tensors over it are sent as copies."""

    __slots__ = ("_array",)

    def __init__(self, nbytes: int, *, writable: bool = False) -> None:
        """Makes memory of that many bytes, all zero."""
        self._array = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        start = self._array.ctypes.data
        self.address = start + -start % _ALIGNMENT
        self.nbytes = nbytes
        self.writable = writable
        self.private = False
        self.fd = -1
        self._inode = None
        self.number = next(_numbers)
        self.file_offset = 0
        self.mapped = True
        self.device = bytes(16)
        self.name = self.server = ""
        self.owner = None

    def share(self, *, writable: bool = False) -> int:
        """Raises CapabilityError."""
        raise CapabilityError("memory that came within a frame: other processes cannot map it")

    def inode(self) -> tuple[int, int]:
        """Returns a place that no other memory of this process has."""
        return -1, self.number

    def misfit(self, other: Mapping) -> str:
        """Returns why `replace` cannot map other memory here."""
        return "the memory is not of the same kind"

    def content(self) -> bytes:
        """Returns a copy of the bytes."""
        return ctypes.string_at(self.address, self.nbytes)


def encode(device: bytes, content: bytes) -> cbor.Encoded:
    """Returns the encoding of a handle that contains the memory."""
    parts = [_HEAD if content else _HEAD_EMPTY, device, b"\x03", cbor.head(0, len(content)), b"\x04\x00"]
    if content:
        parts += [b"\x05", cbor.head(2, len(content)), content]
    parts.append(b"\x06\x20")
    return cbor.Encoded(b"".join(parts))


_HEAD = b"\xa6\x01\x66inline\x02\x50"
_HEAD_EMPTY = b"\xa5" + _HEAD[1:]


def check(handles: Sequence[messages.Handle]) -> None:
    """Raises ProtocolError if the content of a handle does not match its fields, or if the sum is over the limit."""
    total = 0
    for handle in handles:
        if handle.kind != KIND:
            continue
        size = len(handle.blob)
        if (
            handle.nbytes != size
            or handle.offset
            or handle.file != -1
            or handle.storage
            or handle.version
            or handle.slab
        ):
            raise ProtocolError(f"a handle of {handle.nbytes} bytes at {handle.offset} has {size} within the frame")
        total += size
    if total > MAX_BYTES:
        raise ProtocolError(f"{total} bytes of memory within a frame, {MAX_BYTES} are allowed")


def take(handle: messages.Handle) -> Inline:
    """Returns the memory within a handle that was checked, as a copy."""
    memory = Inline(handle.nbytes)
    ctypes.memmove(memory.address, handle.blob, handle.nbytes)
    return memory


__all__ = ["FEATURE", "KIND", "MAX_BYTES", "Inline", "check", "encode", "take"]
