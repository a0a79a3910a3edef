"""The memory that the system can still give."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sharedtensor as st
from sharedtensor.system import available

MEMINFO = "MemTotal:  1000 kB\nMemAvailable:     600 kB\nSwapFree:   40 kB\nHugePages_Total: 0\n"


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({}, sys.maxsize),
        ({"proc/meminfo": MEMINFO}, 640 * 1024),
        ({"proc/meminfo": "MemAvailable: x kB\n\n:\n", "proc/self/cgroup": "\n0\n::::\n"}, sys.maxsize),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "9000\n",
                "sys/fs/cgroup/a/memory.max": "100000\n",
                "sys/fs/cgroup/a/memory.current": "90000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 2000\nactive_file 300\n",
            },
            12300,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu:/x\n2:memory:/not/here\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n",
            },
            4000,
        ),
    ],
)
def test_available(tmp_path: Path, files: dict[str, str], want: int) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available(tmp_path) == want


def test_memory_that_the_system_does_not_have_is_refused() -> None:
    with pytest.raises(st.OutOfMemoryError, match="available"):
        st.empty(1 << 45, "int8", framework="numpy")
