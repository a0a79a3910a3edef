"""Users of peers, as the kernel reports them."""

from __future__ import annotations

from pathlib import Path

_ALL = (1 << 32) - 1
_OVERFLOW = 65534


def is_nobody(uid: int, root: Path = Path("/")) -> bool:
    """Reports whether a peer's uid may stand for any user: the kernel reports users that have no id in this user
    namespace with the overflow uid. In a namespace that maps every id it stands for one user."""
    return uid == _overflow(root) and not _maps_all(root)


def _overflow(root: Path) -> int:
    try:
        return int((root / "proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return _OVERFLOW


def _maps_all(root: Path) -> bool:
    try:
        lines = (root / "proc/self/uid_map").read_text().split("\n")
        return sum(int(line.split()[2]) for line in lines if line.strip()) >= _ALL
    except (OSError, ValueError, IndexError):
        return False
