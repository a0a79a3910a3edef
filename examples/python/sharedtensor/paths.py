"""Where the socket is: the same rule as that of the owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .users import is_nobody

# Socket paths have at most 107 bytes. The rest of a path is at most -4294967295.sock.keep.
_MAX_CLAIM_BASE = 107 - 21


def socket_path(path: str | os.PathLike[str] | None = None, device_index: int = 0) -> str:
    """Returns the path of the owner's socket.

    :param path: used unchanged if given; else ``$SHARED_TENSOR_BASE_PATH-N.sock``,
        ``$NVIDIA_DRA_LOCAL_IPC_DIR/shared-tensor-UID/shared-tensor-N.sock`` if that directory is usable,
        ``$XDG_RUNTIME_DIR/shared-tensor-N.sock``, or ``/tmp/shared-tensor-UID/shared-tensor-N.sock``. UID is the
        effective user. ``$TMPDIR`` does not apply.
    :param device_index: N, the index of the device that the owner serves; 0 for host memory.
    """
    if path is not None:
        return os.fspath(path)
    base = os.environ.get("SHARED_TENSOR_BASE_PATH", "") or _claim_base()
    if not base:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        directory = Path(runtime) if runtime else Path("/tmp") / _private_name()
        base = str(directory / "shared-tensor")
    return f"{base}-{device_index}.sock"


def _private_name() -> str:
    return f"shared-tensor-{os.geteuid()}"


def _claim_base() -> str:
    """Returns the base path in the directory of a GPU claim, or "" if none is usable. PROTOCOL.md has the rule."""
    directory = os.environ.get("NVIDIA_DRA_LOCAL_IPC_DIR", "").rstrip("/")  # with a slash, lstat would follow a link
    base = f"{directory}/{_private_name()}/shared-tensor"
    if not directory.startswith("/") or len(os.fsencode(base)) > _MAX_CLAIM_BASE:
        return ""
    try:
        info = os.lstat(directory)
    except OSError:
        return ""
    trusted = info.st_uid == 0 or (info.st_uid == os.geteuid() and not is_nobody(info.st_uid))
    safe = not info.st_mode & 0o022 or bool(info.st_mode & stat.S_ISVTX)
    usable = stat.S_ISDIR(info.st_mode) and trusted and safe
    return base if usable and os.access(directory, os.W_OK | os.X_OK, effective_ids=True) else ""
