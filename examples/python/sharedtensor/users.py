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
        return _number((root / "proc/sys/kernel/overflowuid").read_text().strip())
    except (OSError, ValueError):
        return _OVERFLOW


def _maps_all(root: Path) -> bool:
    try:
        lines = (root / "proc/self/uid_map").read_text().splitlines()
    except FileNotFoundError:
        return (root / "proc/self/status").exists()  # a kernel without user namespaces
    except OSError:
        return False
    try:
        ranges = [[_number(text) for text in line.split()] for line in lines]
        return sum(count for _, _, count in ranges) >= _ALL
    except ValueError:
        return False


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > _ALL:
        raise ValueError(f"{text!r} is no id")
    return int(text)
