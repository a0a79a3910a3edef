"""Models in the layout of their file: GGUF with block-quantised types, and safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import safetensors_file
from sharedtensor.dtypes import DType


def write_gguf(path: Path, blocks: bytes) -> None:
    """Writes a GGUF file with one Q4_0 tensor of two rows of 32 elements, and one value of metadata."""
    key, name = b"general.name", b"w"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 1)
    head += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, 4) + b"tiny"
    head += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, 32, 2, 2, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + blocks)


def test_file_layouts(make_owner: Callable[..., Owner], tmp_path: Path) -> None:
    blocks = bytes(range(36))
    write_gguf(tmp_path / "m.gguf", blocks)
    data = struct.pack("<8f", *range(8))
    header = json.dumps({"x": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    owner = make_owner("serve", "--file-layout", f"m={tmp_path / 'm.gguf'}", f"x={tmp_path / 'x.safetensors'}")
    with st.connect(owner.socket, framework="numpy") as client:
        eventually(lambda: len(client.list()) == 2, "the models are loaded")
        m = client.acquire("m")
        assert m.metadata["general.name"] == "tiny"
        assert m.raw("w").tobytes() == blocks
        with pytest.raises(st.CapabilityError, match="raw"):
            m["w"]
        original = (tmp_path / "m.gguf").read_bytes()
        assert Path(m.file()).read_bytes()[: len(original)] == original
        copy = tmp_path / "copy.safetensors"
        with pytest.raises(st.CapabilityError, match="GGUF"):
            safetensors_file.write(copy, m)
        x = client.acquire("x")
        with pytest.raises(st.CapabilityError, match="of Go"):
            safetensors_file.write(tmp_path / "copy.gguf", x)
        assert not copy.exists() and not (tmp_path / "copy.gguf").exists()
        slab = Path(x.file()).read_bytes()
        (length,) = struct.unpack_from("<Q", slab)
        begin, end = json.loads(slab[8 : 8 + length])["x"]["data_offsets"]
        assert 8 + length + end == len(slab), "a strict reader refuses bytes behind the last tensor"
        assert np.array_equal(np.frombuffer(slab[8 + length + begin :], "<f4"), np.arange(8, dtype=np.float32))


def test_block_sizes() -> None:
    assert (DType.Q4_0.number, DType.Q4_0.block, DType.Q4_0.nbytes(64)) == (66, (32, 18), 36)
    assert DType.Q6_K.nbytes(256) == 210
    assert DType.of_name("q8_0") is DType.Q8_0
    assert all(d.packed == (d.block is not None or d.bits < 8) for d in DType)
