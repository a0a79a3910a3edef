"""Versions that are written in shared memory and committed without a copy."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually, mappings

import sharedtensor as st
from sharedtensor.manifest import TensorSpec

SPECS = {"w": ((300, 70), "float32"), "b": ((70,), np.float16), "none": ((0, 3), "int8"), "scalar": ((), "int64")}


def fill(w: st.VersionWriter, value: float) -> None:
    for x in w.values():
        x[...] = value


def test_commit_publishes_the_memory_that_was_written(client: st.Client) -> None:
    made = client._pool.made
    with client.create("written", SPECS) as w:
        assert list(w) == list(SPECS) and w["w"].shape == (300, 70) and not any(x.any() for x in w.values())
        fill(w, 3)
        address, inode = w["w"].ctypes.data, w.mappings[0].inode()
        first = w.commit(source="here", metadata={"step": "1"}, digests=True)
    assert w.version == first and w.commit() == first, "a version was published twice"
    m = client.acquire("written")
    assert m.version == first and m.metadata == {"step": "1"} and m.mappings[0].inode() == inode
    assert (m["w"] == 3).all() and (m["b"] == 3).all() and m["scalar"] == 3 and m["none"].shape == (0, 3)
    assert m.spec("w").digest and w["w"].ctypes.data == address
    assert client._pool.made == made + 1, "the tensors were copied to another slab"


def test_writes_after_commit_stay_in_this_process(client: st.Client) -> None:
    w = client.create("frozen", SPECS)
    fill(w, 1)
    w.commit()
    m = client.acquire("frozen")
    fill(w, 9)
    assert (m["w"] == 1).all() and (w["w"] == 9).all()
    y = client.call("transform", x=w["w"], scale=1)
    assert (y == 9).all(), "a call has received other bytes than the caller has"
    assert (client.call("transform", x=m["w"], scale=1) == 1).all()


def test_a_tensor_of_a_committed_version_is_passed_in_place(client: st.Client) -> None:
    w = client.create("in place", SPECS)
    w["w"][...] = 2
    copied = client._pool.arguments.made + client._pool.arguments.reused
    assert (client.call("transform", x=w["w"], scale=2) == 4).all()
    after = client._pool.arguments.made + client._pool.arguments.reused
    assert after == copied + 1, "memory of a version that is being written was shared"
    with pytest.raises(st.InvalidArgumentError, match="not committed"):
        client.call("transform", w)
    w.commit()
    assert (client.call("transform", x=w["w"], scale=2) == 4).all()
    assert client._pool.arguments.made + client._pool.arguments.reused == after, "shared memory was copied"


def test_memory_is_reused_and_zeroed_once_no_process_maps_it(client: st.Client) -> None:
    w = client.create("reused", SPECS)
    fill(w, 7)
    first = w.mappings[0].inode()
    w.commit()
    kept = w["w"]
    del w
    client.publish("reused", {"x": np.zeros(1)})  # the owner frees the version that nobody holds
    again = client.create("reused", SPECS)
    assert again.mappings[0].inode() != first and (kept == 7).all(), "memory under a tensor was used again"
    again.abort()
    del kept, again

    def reuses() -> bool:
        w = client.create("reused", SPECS)
        assert not any(x.any() for x in w.values()), "bytes of an earlier version are in a new one"
        fill(w, 8)
        w.commit()
        client.publish("reused", {"x": np.zeros(1)})
        return w.mappings[0].inode() == first

    eventually(reuses, "the memory is never used again")


def test_gaps_of_a_committed_slab_are_zero(client: st.Client) -> None:
    for _ in range(3):  # the later ones reuse memory
        w = client.create("gaps", SPECS)
        start = w["w"].ctypes.data
        fill(w, 5)
        np.frombuffer(w.mappings[0].buffer(), np.uint8)[84_000:84_224] = 5  # behind the tensor "w"
        w.commit()
        m = client.acquire("gaps")
        raw = np.frombuffer(bytes(m.mappings[0].view()), np.uint8).copy()
        for spec in m.specs:
            raw[spec.offset : spec.offset + spec.nbytes] = 0
        assert not raw.any(), "bytes between tensors were published"
        del w, m, start
        client.publish("gaps", {"x": np.zeros(1)})


def test_abort_and_a_dropped_writer_free_their_memory(client: st.Client) -> None:
    gc.collect()
    files, maps = descriptors(), len(mappings())
    with client.create("given up", SPECS) as w:
        x = w["w"]
    x[...] = 1  # still there
    with pytest.raises(st.ClosedError, match="aborted"):
        w.commit()
    w.abort()
    dropped = client.create("given up", SPECS)
    del w, x, dropped
    eventually(lambda: descriptors() <= files and len(mappings()) <= maps, "an aborted version keeps its memory")
    with pytest.raises(st.NotFoundError):
        client.acquire("given up")


def test_aborted_memory_is_never_used_again(client: st.Client) -> None:
    w = client.create("aborted", SPECS)
    x, inode = w["w"], w.mappings[0].inode()
    w.abort()
    del w
    for _ in range(3):
        again = client.create("aborted", SPECS)
        assert again.mappings[0].inode() != inode
        again.commit()
    x[...] = 1
    assert not client.acquire("aborted")["w"].any()


def test_ties_and_layouts(client: st.Client) -> None:
    x = np.asfortranarray(np.ones((4, 6), np.float32))
    specs = {"a": x, "tied": x, "row": x[::2, 1:3], "again": TensorSpec("again", st.DType.BFLOAT16, (4,), (1,), 0, 0)}
    w = client.create("ties", specs)
    assert w.tied() == [["a", "tied"]] and w["a"] is w["tied"]
    assert w.spec("a").strides == (1, 4) and w.spec("row").strides == (2, 1) and w.spec("again").nbytes == 8
    w["a"][1, 2] = 5
    w.commit()
    m = client.acquire("ties")
    copied = client.create("ties", m)
    assert copied.tied() == m.tied() == [["a", "tied"]] and copied.spec("a").strides == (1, 4)
    assert [s.offset for s in copied.specs] == [s.offset for s in client.create("ties", m.specs).specs]
    assert m["tied"][1, 2] == 5


@pytest.mark.parametrize(
    ("name", "specs", "message"),
    [
        ("", SPECS, "no name"),
        ("a" * 256, SPECS, "no name"),
        ("a/../b", SPECS, "no name"),
        ("a\n", SPECS, "no name"),
        ("x", {"w": ((-1,), "float32")}, "'w'"),
        ("x", {"w": ((1.5,), "float32")}, "'w'"),
        ("x", {"w": 3}, "'w'"),
        ("x", {"": ((1,), "int8")}, "empty name"),
        ("x", {"w": ((1 << 40, 1 << 40), "float32")}, "too large"),
        ("x", [TensorSpec("w", st.DType.INT8, (1,), (1,), 0, 0)] * 2, "twice"),
    ],
)
def test_what_cannot_be_created(client: st.Client, name: str, specs: object, message: str) -> None:
    before = client._pool.made
    with pytest.raises(st.InvalidArgumentError, match=message):
        client.create(name, specs)  # type: ignore[arg-type]
    assert client._pool.made == before, "memory was taken"


def test_types_that_do_not_exist(client: st.Client) -> None:
    with pytest.raises(st.CapabilityError, match="'w'"):
        client.create("x", {"w": ((1,), "float37")})
    with pytest.raises(st.CapabilityError, match="'w'"):
        client.create("x", {"w": np.array(["text"])})


def test_memory_that_the_system_does_not_have(client: st.Client) -> None:
    with pytest.raises(st.OutOfMemoryError, match="available"):
        client.create("x", {"w": ((1 << 46,), "float32")})


def test_a_refused_commit_can_be_repeated(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket, framework="numpy", reconnect=20) as c:
        w = c.create("kept", SPECS)
        fill(w, 4)
        owner.kill()
        with pytest.raises(st.UnavailableError):
            c._reconnect = 0.1
            w.commit()
        c._reconnect = 20.0
        owner.restart()
        assert w.commit() > 0
        assert (c.acquire("kept")["w"] == 4).all()


def test_a_child_of_fork_cannot_change_what_its_parent_writes(client: st.Client) -> None:
    w = client.create("forked", SPECS)
    fill(w, 2)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            fill(w, 99)
            try:
                w.commit()
            except st.ForkError:
                status = 0 if w["w"][0, 0] == 99 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (w["w"] == 2).all(), "a child has written into its parent's version"
    w.commit()
    assert (client.acquire("forked")["w"] == 2).all()


KILLED = """
import sys, sharedtensor as st
c = st.connect(sys.argv[1], framework="numpy")
w = c.create("killed", {"w": ((1000,), "float32")})
w["w"][:] = 1
print("written", flush=True)
sys.stdin.read()
"""


def test_a_killed_writer_leaves_nothing(module_owner: Owner, client: st.Client) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, module_owner.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    process.stdin.close()
    with pytest.raises(st.NotFoundError):
        client.acquire("killed")
