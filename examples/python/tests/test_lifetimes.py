"""Streams, watches and clients release their resources when a program drops them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually

import sharedtensor as st
from sharedtensor import aio
from sharedtensor.lease import Lease

WORKER = """
import sys
import numpy as np
import sharedtensor as st

def steps(n: int):
    for i in range(n):
        yield np.full(3, i, np.float32)

c = st.connect(sys.argv[1], framework="numpy", wait=20)
with c.offer(steps=steps) as offer:
    print("offered", flush=True)
    offer.wait()
"""


@pytest.fixture
def streaming(make_owner: Callable[..., Owner]) -> Iterator[st.Client]:
    """A client of an owner with the stream `steps`, which returns tensors."""
    owner = make_owner("serve", "--offers")
    process = subprocess.Popen([sys.executable, "-c", WORKER, owner.socket], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "offered\n"
    with st.connect(owner.socket, framework="numpy") as c:
        yield c
    process.kill()
    process.wait()
    process.stdout.close()


def session_threads() -> int:
    return sum(t.name.startswith("sharedtensor") for t in threading.enumerate())


def leave_by_break(c: st.Client) -> None:
    stream = c.stream("steps", n=1000)
    for x in stream:
        assert x.shape == (3,)
        eventually(lambda: not stream.empty(), "no second result arrives")
        break


def test_a_stream_left_by_break_releases_its_descriptors(streaming: st.Client) -> None:
    before = descriptors()
    for _ in range(20):
        leave_by_break(streaming)
    eventually(lambda: descriptors() <= before + 2, "the results that were not read keep their descriptors")
    eventually(lambda: not streaming._session()._listeners, "the session keeps the streams")


def test_a_stream_whose_result_cannot_be_read_ends(streaming: st.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise st.CapabilityError("no such type")

    before = descriptors()
    stream = streaming.stream("steps", n=1000)
    with monkeypatch.context() as patch:
        patch.setattr("sharedtensor.values.decode", refuse)
        with pytest.raises(st.CapabilityError):
            next(stream)
    assert list(stream) == []
    eventually(lambda: descriptors() <= before + 2, "the results that were not read keep their descriptors")


def test_a_stream_closed_by_another_thread_wakes_its_reader(client: st.Client) -> None:
    stream = client.stream("spectral_norm", a=np.eye(4), steps=1)
    stream._inbox = type(stream._inbox)()  # receives nothing
    stream._stop = stream._inbox.close
    ended = threading.Event()

    def read() -> None:
        list(stream)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    stream.close()
    assert ended.wait(15)


MAKERS: dict[str, Callable[[st.Client], Any]] = {
    "watch": lambda c: c.watch("base"),
    "follower": lambda c: c.follow("base"),
    "follower in use": lambda c: following(c),
    "watch of tasks": lambda c: c.watch_tasks(),
    "stream": lambda c: c.stream("spectral_norm", a=np.eye(8, dtype=np.float32), steps=1_000_000),
}


def following(c: st.Client) -> Any:
    follower = c.follow("base")
    assert follower.current["layers.0.weight"].shape == (64, 64)
    return follower


@pytest.mark.parametrize("name", MAKERS)
def test_dropping_releases_the_client_and_its_threads(module_owner: Owner, name: str) -> None:
    eventually(lambda: session_threads() == 0, "threads of earlier tests stay")
    before = descriptors()
    c = st.connect(module_owner.socket, framework="numpy")
    gone = weakref.ref(c)
    iterator = MAKERS[name](c)
    del c
    gc.collect()
    assert gone() is not None, "the client has to live while its iterator does"
    del iterator
    eventually(lambda: gone() is None, "the client stays")
    eventually(lambda: session_threads() == 0, "the client's threads stay")
    eventually(lambda: descriptors() <= before, "descriptors stay")


@pytest.mark.parametrize("name", MAKERS)
def test_dropping_ends_the_request(client: st.Client, name: str) -> None:
    session = client._session()
    iterator = MAKERS[name](client)
    assert session._listeners
    del iterator
    eventually(lambda: not session._listeners, "the session keeps the listener")
    assert not client._watchers.members()


def test_a_watch_that_is_dropped_ends_at_the_server(module_owner: Owner, client: st.Client) -> None:
    sent: list[int] = []
    session = client._session()
    start = session.start
    session.start = lambda op, *rest, **more: (sent.append(int(op)), start(op, *rest, **more))[1]  # type: ignore[assignment]
    watch = client.watch("base")
    del watch
    eventually(lambda: sent.count(9) == 1, "no unwatch is sent")


def test_a_watch_that_is_iterated_delivers(client: st.Client) -> None:
    for event in client.watch("base"):
        if event.kind == "published":
            assert event.name == "base"
            break
    with client.follow("base") as follower:
        assert follower.wait_newer(timeout=15).name == "base"


def test_collecting_a_client_locks_no_session(module_owner: Owner) -> None:
    c = st.connect(module_owner.socket, framework="numpy")
    session = c._session()
    done = threading.Event()

    def collect() -> None:
        nonlocal c
        with session._lock:
            del c
            gc.collect()
        done.set()

    threading.Thread(target=collect, daemon=True).start()
    assert done.wait(15), "the finalizer of a client waits for a lock"
    eventually(lambda: session.closed is not None, "the session stays")


def test_lease_released_during_resume_is_released_again(client: st.Client) -> None:
    jobs: list[Callable[[], None]] = []

    class Recorder:
        closed = uid = None
        path = "/nowhere"
        hello = client.server
        published = client.server.server
        later = jobs.append

    recorder: Any = Recorder
    lease = Lease(recorder, 5, "m", 1)
    assert lease.close() and not lease.close() and len(jobs) == 1
    lease.taken_again(recorder, 6)
    assert len(jobs) == 2 and lease.session is None


def test_streams_of_asyncio_release_their_descriptors(streaming: st.Client) -> None:
    import asyncio

    async def read() -> None:
        c = aio.Client(streaming)
        for _ in range(5):
            async for x in c.stream("steps", n=1000):
                assert x.shape == (3,)
                break

    before = descriptors()
    asyncio.run(read())
    eventually(lambda: descriptors() <= before + 2, "the results that were not read keep their descriptors")


LEASE = """
import fcntl, os, subprocess, sys
from sharedtensor import memory

real = fcntl.fcntl

def opened_meanwhile(fd, operation, argument=0):
    result = real(fd, operation, argument)
    if operation == memory.F_SETLEASE and argument == fcntl.F_WRLCK:
        path = f"/proc/{os.getpid()}/fd/{fd}"
        opener = "import os, sys; os.open(sys.argv[1], os.O_RDONLY | os.O_NONBLOCK)"
        subprocess.run([sys.executable, "-c", opener, path], stderr=subprocess.DEVNULL)
    return result

slab = memory.Slab(4096)
assert slab.exclusive()
fcntl.fcntl = opened_meanwhile
slab.exclusive()
print("alive")
"""


def test_a_process_that_opens_memory_does_not_end_its_owner() -> None:
    """The kernel signals that a lease is to be given up. The signal has no effect."""
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", LEASE], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "alive", (done.returncode, done.stderr)
