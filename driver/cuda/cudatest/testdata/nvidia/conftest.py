"""Tests of NVIDIA's Python packages on the stand-in for libcuda. They need LD_LIBRARY_PATH to name the folder of the stand-in.

    cc -std=gnu11 -O2 -fPIC -shared -fvisibility=hidden -pthread -Wl,-soname,libcuda.so.1 \
        -o /tmp/fake/libcuda.so.1 driver/cuda/cudatest/libcuda/*.c -ldl -lm
    LD_LIBRARY_PATH=/tmp/fake FAKECUDA_DEVICES=2 pytest driver/cuda/cudatest/testdata/nvidia
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest

PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .global .align 4 .b8 table[16];
.visible .entry fill(.param .u64 p, .param .u32 value, .param .u32 n) { ret; }
.visible .entry setcondition(.param .u64 handle, .param .u32 value) { ret; }
.visible .entry countdown(.param .u64 p, .param .u64 handle) { ret; }
"""


@pytest.fixture(scope="session", autouse=True)
def library() -> ctypes.CDLL:
    """The stand-in, which NVIDIA's packages load by name."""
    os.environ.setdefault("FAKECUDA_DEVICES", "2")
    library = ctypes.CDLL("libcuda.so.1")
    if not hasattr(library, "fakecudaLive"):
        pytest.exit("libcuda.so.1 is not the stand-in: set LD_LIBRARY_PATH", 2)
    library.fakecudaLive.restype = ctypes.c_int64
    return library


@pytest.fixture
def leaks(library: ctypes.CDLL) -> Iterator[None]:
    """Fails the test if it leaves allocations, mappings, streams or events."""
    kinds = [b"allocations", b"mappings", b"handles", b"ipc", b"host"]
    before = [library.fakecudaLive(kind) for kind in kinds]
    yield
    assert [library.fakecudaLive(kind) for kind in kinds] == before, kinds
