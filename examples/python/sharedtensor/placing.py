"""Placements: versions on other devices of their owner than that of their publication."""

from __future__ import annotations

from typing import TypeAlias

from . import op
from .errors import CapabilityError, InvalidArgumentError, UnsupportedError
from .frameworks import loaded_torch
from .importing import device_of
from .session import Session

Place: TypeAlias = object
"""A device: "cpu", "cuda", "cuda:1", a number of a GPU, a torch.device, or the UUID of a device."""
FEATURE = "placements"
"""The feature of owners that make placements."""


def kind_of(device: Place) -> tuple[str, int | None]:
    """Returns the kind and the number of a device, such as "cuda:1", ``torch.device("cpu")`` or 1. The number is None
    if the device does not name one. Raises InvalidArgumentError for other kinds than cpu and cuda."""
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, colon, number = text.partition(":")
    if kind not in ("cpu", "cuda") or bool(colon) != number.isdecimal():
        raise InvalidArgumentError(f"the device {text!r} is neither 'cpu' nor 'cuda:N'")
    return kind, int(number) if number else None


def uuid_of(device: Place, session: Session) -> bytes:
    """Returns the UUID of a device. GPUs have the numbers of this process, and "cuda" is torch's current GPU.

    :param device: as for `kind_of`, or its UUID.

    Raises UnsupportedError if the owner makes no placements, and CapabilityError if there is no such device.
    """
    if FEATURE not in session.hello.features:
        raise UnsupportedError("this owner makes no placements on devices: it is of a version without them")
    if isinstance(device, bytes):
        return device
    kind, number = kind_of(device)
    if kind == "cpu":
        return device_of(session, op.HOST).uuid
    from . import cuda

    if number is None:
        torch = loaded_torch()
        number = torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0
    count = int(cuda.call("cuDeviceGetCount"))
    if number >= count:
        raise CapabilityError(f"this process has no GPU {number}: it has {count}")
    return cuda.uuid_of(number)
