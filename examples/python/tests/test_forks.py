"""Processes that fork while their threads work, and finalizers that run while a lock is held."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import Owner, eventually

import sharedtensor as st
from sharedtensor import cuda, memory

FORKS = """
import os, signal, sys, threading, traceback
import numpy as np
import sharedtensor as st

c = st.connect(sys.argv[1], framework="numpy")
model = c.acquire("base")
stop = threading.Event()

def make():
    while not stop.is_set():
        kept = [st.empty(10, framework="numpy") for _ in range(20)]
        c.call("transform", x=np.ones(50, np.float32), scale=2.0)
        st.from_array(np.ones(7))

threads = [threading.Thread(target=make, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()

def child(i):
    x = st.from_array(np.arange(5.0))
    for _ in range(20):
        st.empty(3, framework="numpy")
    assert x.sum() == 10 and model["layers.0.weight"].shape == (64, 64)
    for each in (c.list, lambda: c.call("transform", x=x), lambda: c.publish("x", {"x": x})):
        try:
            each()
        except st.ForkError:
            continue
        raise AssertionError("the parent's client was used")
    if i % 20 == 0:
        with st.connect(sys.argv[1], framework="numpy") as own:
            assert own.call("transform", x=x.astype(np.float32), scale=2.0).sum() == 20
    c.close()

for i in range(int(sys.argv[2])):
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        code = 1
        try:
            child(i)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"child {i} ended with {status}"
stop.set()
for thread in threads:
    thread.join()
assert c.list()
print("ok")
"""


def run(script: str, *arguments: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


def test_forks_while_threads_make_arrays(module_owner: Owner) -> None:
    done = run(FORKS, module_owner.socket, "150")
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


INHERITED = """
import os, signal, sys, traceback
import numpy as np
import sharedtensor as st

c = st.connect(sys.argv[1], framework="numpy")
watch, follower, tasks = c.watch(), c.follow("base"), c.watch_tasks()
stream = c.stream("spectral_norm", a=np.eye(8, dtype=np.float32), steps=1000000)
next(stream)
pid = os.fork()
if not pid:
    signal.alarm(60)
    code = 1
    try:
        for wait in (lambda: list(stream), lambda: [tasks.next() for _ in range(99)], follower.wait_newer):
            try:
                wait()
            except st.ClosedError as err:
                assert "fork" in str(err), err
            else:
                raise AssertionError("it continued without a connection")
        list(watch)
        for each in (stream, tasks, follower, watch, c):
            each.close()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
next(stream)
assert c.list() and follower.current.version
print("ok")
"""


def test_child_uses_objects_of_its_parent(module_owner: Owner) -> None:
    done = run(INHERITED, module_owner.socket)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


SURVIVOR = """
import os, sys, time
import sharedtensor as st

c = st.connect(sys.argv[1], framework="numpy")
x = c.acquire("base")["layers.0.weight"]
if os.fork():
    print("forked", flush=True)
    time.sleep(600)
else:
    time.sleep(600)
"""


def test_child_does_not_keep_the_connection_of_its_parent(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("owner")
    command = [sys.executable, "-W", "ignore", "-c", SURVIVOR, owner.socket]
    with (
        st.connect(owner.socket, framework="numpy") as c,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent,
    ):
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline().strip() == "forked"
            assert _holders(c)
            parent.kill()
            eventually(lambda: not _holders(c), "the child keeps the lease of the parent, which was killed", 60)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def _holders(c: st.Client) -> int:
    return sum(len(version.holders) for model in c.list() for version in model.versions)


def within(seconds: float, function: Callable[[], None]) -> None:
    """Fails if the function deadlocks on a lock that its own thread holds."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "a finalizer waits for a lock that its own thread has"


def test_finalizers_never_wait_for_locks(module_owner: Owner) -> None:
    """Objects are finalized in a thread that holds every lock, because the garbage collector may run at any time."""

    def end() -> None:
        c = st.connect(module_owner.socket, framework="numpy")
        session = c._session()
        model = c.acquire("base")
        kept = [c, model, model["layers.1.weight"], st.empty(10, framework="numpy"), st.from_array(np.ones(3))]
        locks = [session._lock, session._conn._send_lock, memory._registry._lock, c._pool._shelf._lock]
        locks += [c._leases._lock, c._references._lock]
        del c, model
        for lock in locks:
            lock.acquire()
        kept.clear()
        gc.collect()
        for lock in locks:
            lock.release()

    with st.connect(module_owner.socket, framework="numpy") as c:
        before = len(c.info().sessions)
        within(60, end)
        eventually(lambda: len(c.info().sessions) <= before, "a client that has gone keeps its connection", 60)


def test_mapping_that_ended_is_not_found() -> None:
    slabs = [memory.Slab(5000) for _ in range(50)]
    places = [(slab.address, slab.nbytes) for slab in slabs]
    assert [memory.find(*place) for place in places] == slabs
    for i in (3, 17, 49, 0):
        slabs[i] = None  # type: ignore[call-overload]
        gc.collect()
        assert memory.find(*places[i]) is None
    slabs.clear()
    gc.collect()
    fresh = [memory.Slab(5000) for _ in range(50)]
    assert all(memory.find(slab.address + 100, 4000) is slab for slab in fresh)
    assert memory.find(fresh[0].address, 5001) is None


class _Gpu:
    """The device of a release."""


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> Iterator[cuda._Releases]:
    made = cuda._Releases()
    monkeypatch.setattr(cuda, "_releases", made)
    monkeypatch.setattr(cuda, "_allow_captures", lambda: None)
    monkeypatch.setattr(cuda._Releases, "RETRY", 0.005)
    yield made
    made.put(None)
    assert made._thread is not None
    made._thread.join(60)


def test_finalizer_of_gpu_memory_only_enqueues(releases: cuda._Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    answers = [False, False, True]  # a stream captures during the first attempts

    def release(gpu: object, steps: object) -> bool:
        threads.append(threading.get_ident())
        return answers.pop(0)

    monkeypatch.setattr(cuda, "_release", release)
    kept = cuda.Memory.__new__(cuda.Memory)
    kept.gpu = _Gpu()  # type: ignore[assignment]
    kept.release_with([("cuMemFree", 1)])
    del kept
    gc.collect()
    eventually(lambda: not answers, "memory is not tried again when no stream captures any more", 60)
    releases.wait(60)
    assert len(threads) == 3 and threading.get_ident() not in threads


def test_job_that_fails_does_not_end_the_thread(releases: cuda._Releases) -> None:
    def fail() -> bool:
        raise RuntimeError("the driver is gone")

    releases.start()
    releases.put(fail)
    done = threading.Event()
    releases.put(lambda: bool(done.set()) or True)  # type: ignore[func-returns-value]
    assert done.wait(60)
