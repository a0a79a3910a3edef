"""Where the socket is: the same rule as that of the owner."""

from __future__ import annotations

import os
from pathlib import Path


def socket_path(path: str | os.PathLike[str] | None = None, device_index: int = 0) -> str:
    """Returns the path of the owner's socket.

    :param path: used unchanged if given; else ``$SHARED_TENSOR_BASE_PATH-N.sock``,
        ``$XDG_RUNTIME_DIR/shared-tensor-N.sock``, or ``/tmp/shared-tensor-UID/shared-tensor-N.sock``. UID is the
        effective user. ``$TMPDIR`` does not apply.
    :param device_index: N, the index of the device that the owner serves; 0 for host memory.
    """
    if path is not None:
        return os.fspath(path)
    base = os.environ.get("SHARED_TENSOR_BASE_PATH", "")
    if not base:
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        directory = Path(runtime) if runtime else Path("/tmp") / f"shared-tensor-{os.geteuid()}"
        base = str(directory / "shared-tensor")
    return f"{base}-{device_index}.sock"
