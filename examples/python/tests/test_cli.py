"""The command line in a separate process, and the files that it reads and writes."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import safetensors_file


def run(*arguments: str, socket: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "sharedtensor", "--socket", socket, *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent), "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_ls_inspect_get_put(module_owner: Owner, folder: Path) -> None:
    socket = module_owner.socket
    assert "base" in run("ls", socket=socket)
    assert "base" in run("ls", "--socket", socket, socket="/nowhere"), "also after the command"
    assert json.loads(run("ls", "--json", socket=socket))[0]["name"]
    assert "layers.0.weight  float32  64×64" in run("inspect", "base", socket=socket)
    assert len(json.loads(run("inspect", "base", "--json", socket=socket))["tensors"]) == 4
    file = folder / "base.safetensors"
    assert "4 tensors" in run("get", "base@1", "-o", str(file), socket=socket)
    assert "version 1" in run("put", f"copy={file}", socket=socket)
    with st.connect(socket, framework="numpy") as c:
        base, copy = c.acquire("base"), c.acquire("copy")
        assert all(np.array_equal(base[name], copy[name]) for name in base) and len(copy) == 4
        assert c.inspect("copy").model.versions[0].origin.source == str(file)
    np.savez(folder / "a.npz", x=np.ones(3), y=np.zeros((2, 2)))
    assert "2 tensors" in run("put", f"npz={folder}/a.npz", socket=socket)


def test_errors_name_the_remedy(module_owner: Owner, folder: Path) -> None:
    assert "nothing" in run("inspect", "nothing", socket=module_owner.socket, status=1)
    assert "NAME=FILE" in run("put", "x", socket=module_owner.socket, status=1)
    assert "No such file" in run("put", "x=/nowhere.safetensors", socket=module_owner.socket, status=1)
    assert "sharedtensor serve" in run("ls", socket=str(folder / "no.sock"), status=1)


@pytest.mark.parametrize(
    "name,data",
    [
        ("empty.npz", b""),
        ("text.npz", b"no archive"),
        ("cut.npz", b"PK\x03\x04" + bytes(40)),
        ("pickle.npz", b"\x80\x04K\x01."),
        ("single.npz", b"one"),
        ("objects.npz", b"objects"),
        ("header.npz", b"header"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_damaged_archive_is_one_line(module_owner: Owner, folder: Path, name: str, data: bytes) -> None:
    file = folder / name
    if data == b"one":
        with file.open("wb") as out:
            np.save(out, np.ones(3))
    elif data == b"objects":
        np.savez(file, x=np.array([{}], dtype=object))
    elif data == b"header":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x04\x00{'a'")
    else:
        file.write_bytes(data)
    shown = run("put", f"x={file}", socket=module_owner.socket, status=1)
    assert shown.startswith("sharedtensor: ") and shown.count("\n") == 1 and name in shown, shown


def test_closed_pipe_prints_no_traceback(module_owner: Owner) -> None:
    # The reader closes before the command writes, as head does after its first line.
    code = (
        "import os, sys; from sharedtensor.cli import main; "
        "r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.exit(main(sys.argv[1:]))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, "--socket", module_owner.socket, "ls"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env=env,
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_go_command_reads_python_files(module_owner: Owner, programs: Path, folder: Path) -> None:
    file = folder / "tied.safetensors"
    x = np.arange(6, dtype=np.float32)
    model = st.state_dict(
        {"a": x, "b": x, "t": x.reshape(2, 3).T, "none": x[:0], "h": x.astype(np.float16)}, framework="numpy"
    )
    assert safetensors_file.write(file, model) == file.stat().st_size
    seen = subprocess.run(
        [programs / "sharedtensor", "inspect", str(file)], capture_output=True, text=True, check=True
    ).stdout
    assert all(name in seen for name in ("a", "b", "t", "none", "float16"))
    tensors, _ = safetensors_file.read(file)
    assert set(tensors) == {"a", "b", "t", "none", "h"} and tensors["a"].address == tensors["b"].address
    with st.connect(module_owner.socket, framework="numpy") as c:
        c.publish("file", tensors)
        assert c.acquire("file")["t"].tolist() == x.reshape(2, 3).T.tolist()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 3) + b"{}x",
        *(
            struct.pack("<Q", len(h)) + h + bytes(8)
            for h in (
                b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}}',
                b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}',
                b'{"x":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}',
                b'{"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}',
                b'{"x":{"shape":[2]}}',
                b'{"x":3}',
            )
        ),
    ],
)
def test_invalid_safetensors_files(folder: Path, data: bytes) -> None:
    (folder / "x.safetensors").write_bytes(data)
    with pytest.raises(st.InvalidArgumentError):
        safetensors_file.read(folder / "x.safetensors")
