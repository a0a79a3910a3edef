"""Lost connections, killed owners, and servers that break the protocol."""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually, mappings

import sharedtensor as st
from sharedtensor import cbor, messages
from sharedtensor.frames import HEADER
from sharedtensor.memory import Slab
from sharedtensor.op import Kind
from sharedtensor.session import Session

Make = Callable[..., Owner]


def test_missing_owner(folder: Path) -> None:
    with pytest.raises(st.UnavailableError, match="sharedtensor serve"):
        st.connect(folder / "s.sock")
    with pytest.raises(st.UnavailableError, match="too long"):
        st.connect("/tmp/" + "x" * 200)
    begin = time.monotonic()
    with pytest.raises(st.UnavailableError):
        st.connect(folder / "s.sock", wait=0.4)
    assert time.monotonic() - begin > 0.2


def test_the_default_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED_TENSOR_BASE_PATH", "/x/base")
    assert st.socket_path() == "/x/base-0.sock" and st.socket_path(device_index=3) == "/x/base-3.sock"
    monkeypatch.delenv("SHARED_TENSOR_BASE_PATH")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert st.socket_path() == "/run/user/7/shared-tensor-0.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert st.socket_path() == f"/tmp/shared-tensor-{os.getuid()}/shared-tensor-0.sock"


def test_owner_killed_and_restarted(make_owner: Make) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket, framework="numpy") as c:
        w = c.acquire("base")
        x, want = w["layers.0.weight"], w["layers.0.weight"].copy()
        events: list[st.Event] = []
        watch = c.watch("base")
        reader = threading.Thread(target=lambda: events.extend(watch), daemon=True)
        reader.start()
        eventually(lambda: any(e.kind == "published" for e in events), "no event at first")
        owner.kill()
        eventually(lambda: any(e.kind == "disconnected" for e in events), "the watch does not hear of the loss")
        assert np.array_equal(x, want)
        owner.restart()
        assert c.list()[0].name == "base", "a request does not connect again"
        eventually(lambda: bool(w.stale), "a lease on a server that is gone is not stale")
        eventually(lambda: sum(e.kind == "published" for e in events) >= 2, "the watch does not go on")
        assert np.array_equal(x, want)
        assert not c.acquire("base").stale
        watch.close()
        reader.join(5)


def test_leases_are_resumed_on_the_same_server(make_owner: Make) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket, framework="numpy") as c, st.connect(owner.socket, framework="numpy") as other:
        other.publish("m", {"x": np.ones(3)})
        held = [c.acquire("m", 1)]
        managed = c.call_object("build_model", hidden_size=20, layers=1)
        kept = other.call_object("build_model", hidden_size=20, layers=1)  # keeps the object alive
        lost = c._current
        lost._conn.shutdown()  # type: ignore[union-attr]
        eventually(lambda: c._current is not lost, "nothing connects again")
        eventually(lambda: held[0]._lease.session is c._current, "the lease is not taken again")
        other.publish("m", {"x": np.ones(3)})
        assert not held[0].stale
        eventually(lambda: managed._reference.session is c._current, "the reference is not taken again")
        versions = {v.version: len(v.holders) for m in other.list() if m.name == "m" for v in m.versions}
        assert versions == {1: 1, 2: 0}
        held.clear()
        eventually(
            lambda: [v.version for m in other.list() if m.name == "m" for v in m.versions] == [2], "the lease stays"
        )
        assert managed.id == kept.id and managed.release() and not managed.release()


def test_killed_client_releases_everything(make_owner: Make) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket) as c:
        pid = os.fork()
        if pid == 0:
            mine = st.connect(owner.socket, framework="numpy")
            kept = mine.acquire("base")
            os.write(1, b"")
            assert kept
            time.sleep(60)
            os._exit(0)
        eventually(lambda: bool(c.list()[0].versions[0].holders), "the child holds nothing")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        eventually(lambda: not c.list()[0].versions[0].holders, "the lease of a killed process stays")


def test_follower_returns_the_newest(make_owner: Make) -> None:
    owner = make_owner("owner")
    with st.connect(owner.socket, framework="numpy") as c, st.connect(owner.socket, framework="numpy") as trainer:
        with c.follow("policy") as f:
            with pytest.raises(st.DeadlineExceededError):
                f.wait_newer(timeout=0.1)
            for step in range(1, 6):
                trainer.publish("policy", {"w": np.full(10, step)})
            model = f.wait_newer(3, timeout=10)
            assert model.version == 5 and model["w"][0] == 5
            assert f.current is model and f.newest == 5
            threading.Timer(0.2, lambda: trainer.publish("policy", {"w": np.full(10, 6)})).start()
            assert f.wait_newer(timeout=10)["w"][0] == 6
            owner.kill()
            owner.restart()
            with st.connect(owner.socket) as again:
                again.publish("policy", {"w": np.full(10, 70)})
            newest = f.wait_newer(timeout=20)
            assert newest.version == 1 and newest["w"][0] == 70, "another server counts anew"
        with pytest.raises(st.ClosedError):
            f.wait_newer()
        model = c.acquire("policy", wait=1)
        threading.Timer(0.2, lambda: c.publish("later", {"w": np.ones(1)})).start()
        assert c.acquire("later", wait=10)["w"][0] == 1 and model.version == 1


def test_followers_end_with_their_client(module_owner: Owner) -> None:
    c = st.connect(module_owner.socket, framework="numpy")
    follower, ended = c.follow("never"), threading.Event()

    def read() -> None:
        assert list(follower) == []
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    time.sleep(0.1)
    c.close()
    assert ended.wait(10), "who waits for a version waits for ever"
    with pytest.raises(st.ClosedError, match="client"):
        follower.wait_newer()


def test_a_closed_client(make_owner: Make) -> None:
    gc_fds = descriptors()
    c = st.connect(make_owner("owner").socket, framework="numpy")
    x = c.acquire("base")["layers.0.weight"]
    c.close()
    c.close()
    with pytest.raises(st.ClosedError):
        c.list()
    assert "closed" in repr(c) and x.shape == (64, 64)
    del x
    eventually(lambda: descriptors() <= gc_fds + 1, "descriptors stay")  # one is the owner's stderr


def test_a_hundred_clients_leak_nothing(module_owner: Owner) -> None:
    eventually(lambda: not any("receive" in t.name for t in threading.enumerate()), "threads of earlier tests stay")
    before = descriptors(), len(mappings()), threading.active_count()
    for _ in range(100):
        c = st.connect(module_owner.socket, framework="numpy")
        c.call("transform", x=np.ones(8, np.float32), scale=2)
        c.acquire("base")["layers.0.weight"]
        del c
    eventually(lambda: (descriptors(), len(mappings()), threading.active_count()) <= before, "something stays")


class Liar:
    """A server that answers the first request with the given bytes."""

    def __init__(self, path: str, answer: Callable[[socket.socket, int], None], hello: bytes | None = None) -> None:
        self.answer = answer
        self.hello = hello
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with conn:
                try:
                    self.serve(conn)
                except OSError:
                    pass

    def serve(self, conn: socket.socket) -> None:
        header = conn.recv(16, socket.MSG_WAITALL)
        conn.recv(HEADER.unpack(header)[0], socket.MSG_WAITALL)
        device = messages.DeviceInfo(uuid=bytes(16), type=1)
        hello = self.hello or frame(
            1, 0, messages.Hello(protocol=1, oldest=1, server="liar", devices=[device]).encode()
        )
        conn.sendall(hello)
        header = conn.recv(16, socket.MSG_WAITALL)
        if len(header) == 16:
            length, _, _, id = HEADER.unpack(header)
            conn.recv(length, socket.MSG_WAITALL)
            self.answer(conn, id)
            conn.recv(1)

    def close(self) -> None:
        self.listener.close()


def frame(kind: int, id: int, body: bytes, files: int = 0) -> bytes:
    return HEADER.pack(len(body), kind, files, id) + body


def send_with(conn: socket.socket, data: bytes, fds: list[int]) -> None:
    conn.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def acquired(handles: list[messages.Handle], manifest: messages.Manifest | None = None) -> bytes:
    if manifest is None:
        names = "x"
        manifest = messages.Manifest(
            names=names,
            name_lengths=struct.pack("<I", 1),
            dtypes=b"\x0c",
            ranks=b"\x01",
            dims=struct.pack("<q", 1024),
            storage=bytes(4),
            offsets=bytes(8),
            storages=[messages.Storage(nbytes=4096, device=bytes(16), type=1)],
        )
    return messages.Acquired(lease=1, name="m", version=1, manifest=manifest, handles=handles).encode()


def handle(**changes: object) -> messages.Handle:
    values: dict[str, object] = {
        "kind": "memfd",
        "device": bytes(16),
        "nbytes": 4096,
        "offset": 0,
        "file": 0,
        **changes,
    }
    return messages.Handle(**values)  # type: ignore[arg-type]


def unsealed() -> int:
    fd = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.truncate(fd, 8192)
    return fd


def sealed() -> int:
    return Slab(8192).share()


GOOD = acquired([handle()])
LIES: dict[str, Callable[[socket.socket, int], None]] = {
    "an unsealed memfd": lambda c, id: send_with(c, frame(3, id, GOOD, 1), [unsealed()]),
    "a pipe": lambda c, id: send_with(c, frame(3, id, GOOD, 1), [os.pipe()[0]]),
    "more bytes than the memfd has": lambda c, id: send_with(
        c, frame(3, id, acquired([handle(nbytes=1 << 40)]), 1), [sealed()]
    ),
    "an offset beyond the end": lambda c, id: send_with(
        c, frame(3, id, acquired([handle(offset=1 << 62)]), 1), [sealed()]
    ),
    "a descriptor that is not there": lambda c, id: send_with(
        c, frame(3, id, acquired([handle(file=5)]), 1), [sealed()]
    ),
    "two handles of one descriptor": lambda c, id: send_with(
        c, frame(3, id, acquired([handle(), handle()]), 1), [sealed()]
    ),
    "fewer handles than storages": lambda c, id: c.sendall(frame(3, id, acquired([]))),
    "a storage larger than its handle": lambda c, id: send_with(
        c, frame(3, id, acquired([handle(nbytes=100)]), 1), [sealed()]
    ),
    "a kind that is not known": lambda c, id: c.sendall(frame(3, id, acquired([handle(kind="rdma", file=-1)]))),
    "fewer descriptors than announced": lambda c, id: c.sendall(frame(3, id, GOOD, 1)),
    "descriptors that nobody announced": lambda c, id: send_with(c, frame(3, id, acquired([])), [sealed()]),
    "an answer to another request": lambda c, id: c.sendall(frame(3, id + 7, b"\xa0")),
    "a request": lambda c, id: c.sendall(frame(2, id, b"\xa0")),
    "a frame of an unknown kind": lambda c, id: c.sendall(frame(9, id, b"\xa0")),
    "a frame of 4 GiB": lambda c, id: c.sendall(HEADER.pack(0xFFFFFFFF, 3, 0, id)),
    "half a frame": lambda c, id: (c.sendall(frame(3, id, b"\xa0" * 50)[:30]), c.shutdown(socket.SHUT_RDWR))[0],
    "no CBOR": lambda c, id: c.sendall(frame(3, id, b"\xff\xff")),
    "a text where a number belongs": lambda c, id: c.sendall(frame(3, id, cbor.encode({1: "x"}))),
    "the end": lambda c, id: c.shutdown(socket.SHUT_RDWR),
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_hostile_server(folder: Path, lie: str) -> None:
    liar = Liar(str(folder / "s.sock"), LIES[lie])
    c = st.connect(folder / "s.sock", framework="numpy", reconnect=0)
    with pytest.raises((st.ProtocolError, st.CapabilityError, st.ConnectionLostError)):
        c.acquire("m", timeout=5)["x"]
    c.close()
    liar.close()


class Leaver(Liar):
    """An owner that says goodbye to its first connections and refuses the request that was sent before."""

    def __init__(self, path: str, answer: bytes, leaving: int = 1) -> None:
        self.left = 0

        def serve(conn: socket.socket, id: int) -> None:
            if self.left == leaving:
                conn.sendall(frame(Kind.RESPONSE, id, answer))
                return
            self.left += 1
            conn.sendall(frame(Kind.GOODBYE, 0, messages.Goodbye(reason="upgrade").encode()))
            error = messages.ErrorMessage(code=22, type="leaving", message="the owner is shutting down")
            conn.sendall(frame(Kind.ERROR, id, error.encode()))

        super().__init__(path, serve)


REQUESTS: dict[str, tuple[bytes, Callable[[st.Client], object], object]] = {
    "publish": (
        messages.Published(version=7).encode(),
        lambda c: c.publish("m", {"x": np.ones(4, np.float32)}),
        7,
    ),
    "withdraw": (messages.Withdrawn().encode(), lambda c: c.withdraw("m"), None),
    "call": (messages.Returned(value=5).encode(), lambda c: c.call("f", np.ones(4, np.float32)), 5),
    "stream": (b"\xa0", lambda c: list(c.stream("f", 1)), []),
}


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_that_did_not_run_is_sent_to_the_next_owner(folder: Path, request_: str) -> None:
    answer, request, want = REQUESTS[request_]
    owner = Leaver(str(folder / "s.sock"), answer, leaving=2)
    with st.connect(folder / "s.sock", framework="numpy") as c:
        assert request(c) == want
        assert owner.left == 2
    owner.close()
    lasting = Leaver(str(folder / "l.sock"), answer, leaving=100)
    with st.connect(folder / "l.sock", framework="numpy", reconnect=1) as c:
        with pytest.raises(st.UnavailableError, match="shutting down"):
            request(c)
        assert lasting.left == 4
    lasting.close()
    left = Leaver(str(folder / "o.sock"), answer)
    with st.connect(folder / "o.sock", framework="numpy", reconnect=0) as c, pytest.raises(st.UnavailableError):
        request(c)
    left.close()


def test_an_upgrade_loses_no_publication(make_owner: Make) -> None:
    owner = make_owner("serve", "--offers")
    done = threading.Event()
    counts = [0] * 3
    failed: list[BaseException] = []

    def publish(i: int) -> None:
        with st.connect(owner.socket, framework="numpy") as c:
            while not done.is_set():
                try:
                    version = c.publish(f"m{i}", {"x": np.ones(4, np.float32)})
                    assert version == counts[i] + 1
                    counts[i] += 1
                    c.list()
                except BaseException as err:
                    failed.append(err)
                    return

    threads = [threading.Thread(target=publish, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    pids = [owner.process.pid]
    try:
        with st.connect(owner.socket) as c:
            for _ in range(3):
                os.kill(pids[-1], signal.SIGUSR2)
                eventually(lambda: c.server.pid != pids[-1], "the owner is replaced", 60)
                pids.append(c.server.pid)
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
        if pids[-1] != owner.process.pid:
            os.kill(pids[-1], signal.SIGTERM)
    assert not failed
    assert min(counts) > 0


def test_hostile_manifests() -> None:
    from sharedtensor import manifest

    base = {
        "names": "xy",
        "name_lengths": struct.pack("<II", 1, 1),
        "dtypes": b"\x0c\x02",
        "ranks": b"\x01\x00",
        "dims": struct.pack("<q", 4),
        "storage": bytes(8),
        "offsets": struct.pack("<qq", 0, 15),
        "storages": [messages.Storage(nbytes=16, device=bytes(16), type=1)],
    }
    assert len(manifest.unpack(messages.Manifest(**base))[0]) == 2  # type: ignore[arg-type]
    for change in (
        {"names": "x"},
        {"names": "xx"},
        {"name_lengths": b"\1"},
        {"dtypes": b"\x0c"},
        {"dtypes": b"\x0c\x63"},
        {"ranks": b"\x01\x01"},
        {"dims": struct.pack("<q", 5)},
        {"dims": struct.pack("<q", -1)},
        {"dims": struct.pack("<q", 1 << 61)},
        {"dims": b""},
        {"storage": struct.pack("<II", 0, 1)},
        {"offsets": struct.pack("<qq", 0, 16)},
        {"offsets": struct.pack("<qq", -4, 0)},
        {"offsets": struct.pack("<qq", 1 << 62, 0)},
        {"digests": bytes(32)},
        {"strided": struct.pack("<I", 5)},
        {"strided": struct.pack("<I", 0)},
        {"strided": struct.pack("<I", 0), "strides": struct.pack("<q", -1)},
        {"strided": struct.pack("<I", 0), "strides": struct.pack("<q", 1 << 60)},
        {"storages": []},
        {"names": "ä", "name_lengths": struct.pack("<II", 1, 1)},
    ):
        with pytest.raises(st.ProtocolError):
            manifest.unpack(messages.Manifest(**{**base, **change}))  # type: ignore[arg-type]


def test_hostile_hellos(folder: Path) -> None:
    for i, (hello, error) in enumerate(
        [
            (frame(1, 0, messages.Hello(protocol=9, oldest=5).encode()), st.ProtocolError),
            (
                frame(4, 0, messages.ErrorMessage(code=22, message="stopping", type="unavailable").encode()),
                st.UnavailableError,
            ),
            (frame(7, 0, b"\xa0"), st.UnavailableError),
            (frame(3, 1, b"\xa0"), st.ProtocolError),
            (frame(1, 0, b"\xbf\xff"), st.ProtocolError),
        ]
    ):
        liar = Liar(str(folder / f"{i}.sock"), lambda c, id: None, hello)
        with pytest.raises(error):
            st.connect(folder / f"{i}.sock")
        liar.close()


def test_error_matches_all_its_classes() -> None:
    from sharedtensor.wire_errors import exception_of

    cause = messages.ErrorMessage(code=25, message="no memory", type="out of memory")
    details = messages.ErrorDetails(classes=[messages.ErrorClass(code=21, type="unsupported")], cause=cause)
    err = exception_of(messages.ErrorMessage(code=4, message="no such device", type="capability", data=details.plain()))
    assert isinstance(err, st.CapabilityError) and isinstance(err, st.UnsupportedError) and err.code == 4
    assert isinstance(err.__cause__, st.OutOfMemoryError) and isinstance(err.__cause__, MemoryError)
    own = exception_of(messages.ErrorMessage(code=999, message="?", type="*fs.PathError", data={"path": "x"}))
    assert isinstance(own, st.InternalError) and own.data == {"path": "x"} and own.type == "*fs.PathError"
    deep = cause
    for _ in range(100):
        deep = messages.ErrorMessage(code=5, message="x", data=messages.ErrorDetails(cause=deep).plain())
    assert exception_of(deep).code == 5


def test_a_stopped_owner_is_unavailable(folder: Path) -> None:
    """A socket that nobody accepts from answers like an owner that is stopped."""
    path = str(folder / "stopped.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(st.UnavailableError, match=f"{path} does not answer"):
            Session(path, on_end=lambda _: None, timeout=0.2)
