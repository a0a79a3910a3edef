"""Memory that a peer receives contains only bytes that were published, passed or returned to it. The tests combine
every two ways to create memory, and another process maps the complete file."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import calls, catalog, layout, messages, tasks, values
from sharedtensor.arrays import numpy_view
from sharedtensor.memory import Slab, SlabPools, find
from sharedtensor.session import Session

SECRET, PUBLIC = 0xA7, 0x11


class Peer:
    """Another process that maps descriptors."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(60)
        program = str(Path(__file__).with_name("peer_program.py"))
        self.process = subprocess.Popen([sys.executable, program, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self.link = ours
        self.answers = ours.makefile("rb")

    def look(self, files: Sequence[int]) -> list[dict[str, Any]]:
        """Returns the report of the process for each descriptor."""
        socket.send_fds(self.link, [b"x"], list(files))
        found: list[dict[str, Any]] = json.loads(self.answers.readline())
        return found

    def close(self) -> None:
        self.answers.close()
        self.link.close()
        self.process.wait(30)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


Sent = tuple[Sequence[int], Callable[[], None]]
"""Descriptors for a peer, and the function that ends their use."""
Way = Callable[[Session, SlabPools, int, int], Sent]


def filled(value: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.full(nbytes, value, np.uint8)


def parts(value: int, nbytes: int) -> dict[str, Any]:
    """Two tensors, with a gap after each."""
    return {"a": filled(value, nbytes // 3), "b": filled(value, nbytes // 3)}


def views(value: int, nbytes: int) -> dict[str, Any]:
    """Views of a larger array. Some of them share bytes, and the bytes between them are secret."""
    fused = filled(SECRET, nbytes - nbytes % 12).reshape(-1, 12)
    fused[:, :6] = value
    fused[:, 9:] = value
    return {"q": fused[:, :3], "k": fused[:, 3:6], "qk": fused[:, 1:5], "w": fused[:, 9:], "w again": fused[:, 9:]}


def published(make: Callable[[int, int], Any]) -> Way:
    def way(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
        tensors = make(value, nbytes)
        tensors = tensors if isinstance(tensors, dict) else {"x": tensors}
        made = catalog.publish("x", tensors, pools, session, source="", metadata={}, digests=False, owner_digests=False)
        return made.files, made.close

    return way


def argument(make: Callable[[int, int], Any]) -> Way:
    def way(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
        made = calls.call("f", {"x": make(value, nbytes)}, pools, "numpy", lambda _: None, False, session)
        return made.files, made.close

    return way


def writable_argument(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
    made = calls.call("f", {"x": filled(value, nbytes)}, pools, "numpy", lambda _: None, True, session)
    return made.files, made.close


def task(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
    made = tasks.submit("f", {"x": filled(value, nbytes)}, pools, session)
    return made.files, made.close


def result(make: Callable[[int, int], Any]) -> Way:
    def way(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
        out = values.Outgoing(make(value, nbytes), session, pools.results, seal=True)
        return out.files, out.close

    return way


def own(session: Session, pools: SlabPools, value: int, nbytes: int) -> Sent:
    x = st.empty(nbytes, "uint8", framework="numpy")
    x[:] = value
    return result(lambda *_: x)(session, pools, value, nbytes)


WAYS: dict[str, Way] = {
    "publish": published(filled),
    "publish two": published(parts),
    "publish views": published(views),
    "argument": argument(filled),
    "argument of two": argument(parts),
    "argument of views": argument(views),
    "writable argument": writable_argument,
    "argument of a task": task,
    "result": result(filled),
    "result of two": result(parts),
    "result of views": result(views),
    "empty": own,
    "from_array": result(lambda value, nbytes: st.from_array(filled(value, nbytes))),
    "state_dict": result(lambda value, nbytes: st.state_dict(views(value, nbytes), framework="numpy")),
}


def slab_session(client: st.Client) -> Session:
    """Returns a session that sends nothing within frames."""
    session = client._session()
    session.inline = False
    return session


@pytest.mark.parametrize("make", (filled, parts, views))
def test_frame_has_no_bytes_of_other_memory(client: st.Client, make: Callable[[int, int], Any]) -> None:
    session, pools = client._session(), SlabPools()
    for nbytes in (1, 24, 200, 4096, 9000):
        filled(SECRET, 20_000)  # freed at once
        out = values.Outgoing(make(PUBLIC, max(nbytes, 24)), session, pools.arguments)
        (handle,) = out.handles
        assert not out.files and set(messages.Handle.decode(handle).blob) <= {0, PUBLIC}
        out.close()


@pytest.mark.parametrize("second", WAYS)
def test_peer_reads_no_bytes_of_other_uses(client: st.Client, peer: Peer, second: str) -> None:
    session = slab_session(client)
    pools = SlabPools()
    for first, nbytes in itertools.product(WAYS, (200, 4096, 70_000)):
        for less in (0, 64, 1000):
            files, close = WAYS[first](session, pools, SECRET, nbytes)
            peer.look(files)
            close()
            files, close = WAYS[second](session, pools, PUBLIC, max(nbytes - less, 24))
            found = peer.look(files)
            close()
            assert found and all(set(f["values"]) <= {0, PUBLIC} for f in found), (first, second, nbytes, less)
    if not second.startswith(("writable", "empty", "from_array", "state_dict")):
        assert pools.reused, "nothing was used again, so that nothing was tested"


def test_slab_is_never_reused_for_another_purpose(client: st.Client, peer: Peer) -> None:
    session, pools = slab_session(client), SlabPools()
    used: dict[str, set[tuple[int, int]]] = {"publish": set(), "argument": set(), "result": set()}
    alive = [Slab(1) for _ in range(3)]  # inode numbers are not reused while these exist
    for _ in range(5):
        for purpose, seen in used.items():
            out, close = WAYS[purpose](session, pools, PUBLIC, 5000)
            peer.look(out)
            seen.update(_inode(fd) for fd in out)
            close()
    for one, other in itertools.combinations(used.values(), 2):
        assert not one & other, "memory of one purpose was used for another"
    assert pools.reused == 12 and alive


def _inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def test_slab_has_the_size_of_its_content(client: st.Client) -> None:
    pools = SlabPools()
    for nbytes in (9000, 8200, 100):
        out = values.Outgoing({"x": filled(PUBLIC, nbytes)}, slab_session(client), pools.arguments)
        assert [handle.nbytes for handle in out.handles] == [-(-nbytes // 256) * 256]
        assert out._slab is not None and out._slab.size == -(-nbytes // 4096) * 4096
        out.close()
    assert (pools.made, pools.reused) == (2, 1)


def test_peer_can_write_only_writable_memory(client: st.Client, peer: Peer) -> None:
    session, pools = client._session(), SlabPools()
    for name, way in WAYS.items():
        files, close = way(session, pools, PUBLIC, 5000)
        for found in peer.look(files):
            assert found["writable"] == (name == "writable argument"), name
            assert found["mode"] & 0o377 == 0, f"{name} can be opened by others, written or executed"
        close()


def test_own_memory_stays_writable_after_a_call(client: st.Client, peer: Peer) -> None:
    """A slab of the program stays writable for it after it was passed for reading and for writing."""
    session, pools = client._session(), SlabPools()
    x = st.empty(1000, framework="numpy")
    for writable in (False, True, False):
        out = values.Outgoing({"x": x}, session, pools.arguments, writable=writable)
        if writable:
            assert peer.look(out.files)[0]["writable"]
        out.close()
        x[:] = 1


def test_worker_receives_read_only_arguments(make_owner: Callable[..., Owner]) -> None:
    """This holds for calls with writable arguments too, because the owner passes the descriptor to a worker."""
    owner = make_owner("serve", "--offers")

    def access(x: np.ndarray[Any, Any]) -> int:
        assert not x.flags.writeable
        mapping = find(x.ctypes.data, x.nbytes)
        if mapping is None:  # it came within the frame
            return os.O_RDONLY
        return fcntl.fcntl(mapping.fd, fcntl.F_GETFL) & os.O_ACCMODE

    with (
        st.connect(owner.socket, framework="numpy") as worker,
        worker.offer(access=access),
        st.connect(owner.socket, framework="numpy") as caller,
    ):
        for x in (st.empty(1000, framework="numpy"), np.ones(10_000, np.float32), np.ones(1000, np.float32)):
            for writable in (False, True):
                assert caller.call("access", x=x, writable=writable) == os.O_RDONLY, (type(x), writable)


def test_writable_call_after_a_withdrawn_publication(client: st.Client, peer: Peer) -> None:
    x = np.ones(3000, np.float32)
    for _ in range(3):
        client.publish("briefly", {"x": x})
        client.withdraw("briefly")
        made = calls.call("f", {"x": x}, client._pool, "numpy", lambda _: None, True, client._session())
        assert peer.look(made.files)[0]["writable"], "the function cannot write its argument"
        made.close()


def test_memory_of_a_secret_argument_is_not_published(module_owner: Owner, client: st.Client, peer: Peer) -> None:
    """Another client that maps a publication after calls with a secret does not find the secret."""
    secret = np.full(20_000, SECRET | SECRET << 8 | SECRET << 16 | SECRET << 24, np.uint32).view(np.float32)
    with st.connect(module_owner.socket, framework="numpy") as other:
        for nbytes in (80_000, 79_000, 60_001):
            client.call("transform", x=secret, scale=1.0)
            client.publish("later", {"x": filled(PUBLIC, nbytes), "y": filled(PUBLIC, 3)})
            model = other.acquire("later")
            assert set(peer.look([m.fd for m in model.mappings])[0]["values"]) <= {0, PUBLIC}
            del model
        client.withdraw("later")


@pytest.mark.parametrize("shared", [False, True])
def test_layout_does_not_depend_on_addresses(shared: bool) -> None:
    memory = np.zeros(1 << 16, np.uint8)
    start = -memory.__array_interface__["data"][0] % 256
    plans = []
    for shift in range(0, 256, 16):
        base = memory[start + shift :][: 1 << 14].view(np.float32).reshape(64, 64)
        tensors = {"a": base[1:, 3:9], "b": base[1:, 5:12], "c": base[60:, 40:], "t": base[:9].T, "d": base[30]}
        if shared:
            tensors["bytes"] = base.view(np.uint8)[5:8]
        found = layout.plan(layout.describe_all(tensors))
        plans.append((found.specs, found.nbytes, list(found.gaps())))
    assert all(each == plans[0] for each in plans)


def test_interleaved_views_are_separate() -> None:
    fused = np.arange(120, dtype=np.float32).reshape(10, 12)
    specs = {s.name: s for s in layout.plan(layout.describe_all({"q": fused[:, :4], "k": fused[:, 4:8]})).specs}
    assert all(s.contiguous for s in specs.values()), "they share no byte, and are laid out with their gaps"
    tied = layout.plan(layout.describe_all({"q": fused[:, :4], "k": fused[:, 3:8]}))
    slab = Slab(tied.nbytes)
    tied.fill(slab)
    model = st.StateDict(tied.specs, {}, [slab], "numpy")
    assert np.shares_memory(model["q"], model["k"])
    assert np.array_equal(model["q"], fused[:, :4]) and np.array_equal(model["k"], fused[:, 3:8])


def test_overlapping_views_of_any_kind_are_copied_whole() -> None:
    random = np.random.default_rng(5)
    buffer = random.integers(0, 255, 1 << 12, np.uint8)
    dtypes = [np.uint8, np.int16, np.float32, np.complex64, np.complex128]
    for _ in range(200):
        tensors = {}
        for i in range(random.integers(1, 7)):
            dtype = np.dtype(dtypes[random.integers(len(dtypes))])
            begin = int(random.integers(0, 64)) * int(random.choice([1, dtype.itemsize]))
            flat = buffer[begin:][: 512 * dtype.itemsize // 4 * 4]
            flat = flat[: len(flat) // dtype.itemsize * dtype.itemsize].view(dtype)
            rows = flat[: len(flat) // 8 * 8].reshape(-1, 8)[
                :: int(random.integers(1, 4)), :: int(random.integers(1, 4))
            ]
            tensors[str(i)] = rows.T if random.integers(2) else rows
        for strided in (True, False):
            found = layout.plan(layout.describe_all(tensors), strided=strided)
            slab = Slab(found.nbytes)
            slab.writes = 2
            _fill(slab, SECRET)
            found.fill(slab)
            model = st.StateDict(found.specs, {}, [slab], "numpy")
            for name, x in tensors.items():
                assert model[name].tobytes() == x.tobytes()
            assert strided or not any(copy.spec for copy in found.copies)
            _check_rest(found, slab)


def _fill(slab: Slab, value: int) -> None:
    np.frombuffer(slab.buffer(), np.uint8)[:] = value


def _check_rest(found: layout.Layout, slab: Slab) -> None:
    """Bytes outside of the elements of tensors are zero."""
    rest = Slab(slab.nbytes)
    np.frombuffer(rest.buffer(), np.uint8)[:] = np.frombuffer(slab.buffer(), np.uint8)
    for spec in found.specs:
        numpy_view(rest, spec, raw=True)[...] = 0
    assert not any(rest.view())


def test_pool_is_safe_for_threads() -> None:
    pools = SlabPools(keep=1 << 16)
    wrong: list[str] = []

    def work(value: int) -> None:
        pool = (pools.publications, pools.arguments, pools.results)[value % 3]
        for _ in range(300):
            slab = pool.take(5000)
            if slab.nbytes != 5000:
                wrong.append("another size")
            _fill(slab, value)
            if not (slab.view() == bytes([value]) * 5000):
                wrong.append("two have the same slab")
            pool.put(slab)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and pools.made + pools.reused == 1800
