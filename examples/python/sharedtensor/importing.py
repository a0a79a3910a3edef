"""Handles that came, as memory: the checks of what a peer claims, and the mappings."""

from __future__ import annotations

import os
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import inline, messages, op
from .errors import CapabilityError, ProtocolError
from .frames import Frame
from .memory import Mapping, import_memfd
from .session import Session


def import_handles(
    handles: Sequence[messages.Handle],
    frame: Frame,
    session: Session,
    *,
    private: bool,
    within: bool = False,
    owner: object = None,
    spans: MappingABC[int, tuple[int, int]] | None = None,
) -> list[Any]:
    """Maps the memory of each handle, in order. Takes the descriptors of the frame that handles name.

    :param private: map host memory so that writes stay in this process, as torch needs it, which knows no read-only
        tensors.
    :param within: whether handles may contain their memory.
    :param owner: what each mapping keeps alive.
    :param spans: the bytes to map of some handles, by their index; others are not mapped. None for all.

    Raises ProtocolError if the memory of a handle does not match its fields, and CapabilityError for memory of a kind
    that this process cannot map.
    """
    if within and session.inline:
        inline.check(handles)
    else:
        within = False
    taken: set[int] = set()
    mappings: list[Any] = []
    for i, handle in enumerate(handles):
        if spans is not None and i not in spans:
            continue
        fd = _take(handle, frame, taken)
        low, high = (0, handle.nbytes) if spans is None else spans[i]
        if handle.kind == "memfd":
            if fd < 0:
                raise ProtocolError("a handle of a memfd names no descriptor")
            mapping: Any = import_memfd(fd, handle.offset + low, high - low, private=private, device=handle.device)
        elif handle.kind == inline.KIND and within:
            mapping = inline.take(handle)
        elif handle.kind in ("cuda-fd", "cuda-ipc"):
            from . import cuda

            mapping = cuda.import_handle(replace(handle, offset=handle.offset + low, nbytes=high - low), fd)
        else:
            if fd >= 0:
                os.close(fd)
            raise CapabilityError(f"a handle of kind {handle.kind!r}, which this client cannot import")
        mapping.name, mapping.server, mapping.owner = handle.name, session.hello.server, owner
        if spans is not None:
            mapping.name = ""  # a part is not the memory that the server named
        mappings.append(mapping)
    return mappings


def needs_driver(frame: Frame) -> bool:
    """Reports whether a frame may have memory of a GPU, whose import takes long. It looks for the names of the kinds of
    such handles, so other content may match too."""
    return b"cuda-" in frame.body


def _take(handle: messages.Handle, frame: Frame, taken: set[int]) -> int:
    """Returns the descriptor that a handle names, now the caller's; -1 for none."""
    at = handle.file
    if at < 0:
        return -1
    if at >= len(frame.files):
        raise ProtocolError(f"a handle names the descriptor {at} of {len(frame.files)}")
    if at in taken:
        raise ProtocolError("two handles name the same descriptor")
    taken.add(at)
    fd, frame.files[at] = frame.files[at], -1  # the frame closes what is left
    return fd


def identities(handles: Sequence[messages.Handle], frame: Frame, session: Session) -> list[tuple[Any, ...]]:
    """Returns what identifies the memory of each handle after a reconnect, before `import_handles` takes the
    descriptors: device and inode of a memfd. Memory of a GPU has no such number. It is the same only if the server has
    the same published versions, or an owner has adopted them, and the handle is equal."""
    found: list[tuple[Any, ...]] = []
    for handle in handles:
        if handle.kind == "memfd" and 0 <= handle.file < len(frame.files):
            st = os.fstat(frame.files[handle.file])
            found.append((st.st_dev, st.st_ino))
        else:
            place = handle.device, handle.nbytes, handle.offset, handle.blob
            found.append((session.published, handle.kind, *place))
    return found


def check_storages(storages: Sequence[messages.Storage], mappings: Sequence[Mapping | messages.Handle]) -> None:
    """Raises ProtocolError unless a manifest's storages are those of the handles."""
    if len(storages) != len(mappings):
        raise ProtocolError(f"a manifest of {len(storages)} storages comes with {len(mappings)} handles")
    for storage, mapping in zip(storages, mappings, strict=True):
        if storage.nbytes > mapping.nbytes:
            raise ProtocolError(f"a storage of {storage.nbytes} bytes comes with a handle of {mapping.nbytes}")


def device_of(session: Session, kind: int) -> messages.DeviceInfo:
    """Returns the server's device of a kind. Raises CapabilityError where it has none."""
    for device in session.hello.devices:
        if device.type == kind:
            return device
    kind_of_memory = "host memory" if kind == op.HOST else "GPU"
    there = ", ".join(device.name or str(device.type) for device in session.hello.devices)
    raise CapabilityError(f"the server shares no {kind_of_memory}: it has {there or 'no devices'}")
