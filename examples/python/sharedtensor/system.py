"""How much memory the system can still give, as driver/host of the Go library computes it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
"""The processors that this process may use."""

_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
}


def available(root: Path = Path("/")) -> int:
    """Returns the bytes that can be allocated before the kernel kills processes: those of the system and of this
    process's control groups. It is an estimate, because other processes allocate too. Without information it is
    sys.maxsize."""
    memory = _table(root / "proc/meminfo")
    free = (memory["MemAvailable"] + memory.get("SwapFree", 0)) * 1024 if memory.get("MemAvailable") else sys.maxsize
    return min([free, *_rooms(root)])


def _rooms(root: Path) -> Iterator[int]:
    """Yields the bytes that each control group above this process may still allocate."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top, limit, usage = _GROUPS[2]
        elif "memory" in controllers.split(","):
            top, limit, usage = _GROUPS[1]
        else:
            continue
        group = PurePosixPath("/", path)
        # In a container the path may be the host's and not exist; the folder at the top is then this process's group.
        for each in (group, *group.parents):
            folder = root / top / each.relative_to("/")
            room = _room(folder, limit, usage)
            if room is not None:
                yield room


def _room(folder: Path, limit: str, usage: str) -> int | None:
    """Returns the room in a control group; None without a limit. Its page cache counts as free."""
    try:
        most, used = int(_read(folder / limit)), int(_read(folder / usage))
    except ValueError:
        return None  # "max", or no such file
    stat = _table(folder / "memory.stat")
    cache = max(sum(stat.get(p + name, 0) for name in ("inactive_file", "active_file")) for p in ("", "total_"))
    return max(most - max(used - cache, 0), 0)


def _table(path: Path) -> dict[str, int]:
    """Reads lines of a name and a number."""
    rows = {}
    for line in _read(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdecimal():
            rows[words[0]] = int(words[1])
    return rows


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
