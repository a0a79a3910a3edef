"""Functions of a Python process that clients call through the Go owner."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, List, TypedDict  # noqa: UP035

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually, mappings

import sharedtensor as st
from sharedtensor.memory import find
from sharedtensor.workers import Function

WORKER = """
import sys, time
import numpy as np
import sharedtensor as st

def inode(x):
    from sharedtensor.memory import find
    return list(find(x.ctypes.data, x.nbytes).inode())

def scale(x, factor: float = 2.0):
    return x * np.float32(factor)

def made(n: int):
    x = st.empty(n, framework="numpy")
    x[:] = 7
    return {"x": x, "inode": inode(x)}

def steps(n: int):
    for i in range(n):
        yield np.full(3, i, np.float32)

def stuck():
    print("stuck", flush=True)
    time.sleep(600)

c = st.connect(sys.argv[1], framework="numpy", wait=20, reconnect=30)
with c.offer(calls=2, scale=scale, inode=inode, made=made, steps=steps, stuck=stuck) as offer:
    print("offered", flush=True)
    offer.wait()
"""


@pytest.fixture
def owner(make_owner: Callable[..., Owner]) -> Owner:
    """An owner that accepts offers."""
    return make_owner("serve", "--offers")


@pytest.fixture
def caller(owner: Owner) -> Iterator[st.Client]:
    with st.connect(owner.socket, framework="numpy") as c:
        yield c


@pytest.fixture
def worker(owner: Owner) -> Iterator[subprocess.Popen[str]]:
    """A process that offers functions."""
    process = subprocess.Popen([sys.executable, "-c", WORKER, owner.socket], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "offered\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def inode_of(array: Any) -> list[int]:
    mapping = find(array.ctypes.data, array.nbytes)
    assert mapping is not None
    return list(mapping.inode())


def test_tensors_are_shared_in_both_directions(caller: st.Client, worker: subprocess.Popen[str]) -> None:
    x = st.from_array(np.arange(1000, dtype=np.float32))
    assert caller.call("inode", x=x) == inode_of(x), "the worker looks at the caller's memory"
    made = caller.call("made", n=1000)
    assert made["inode"] == inode_of(made["x"]), "the caller looks at the worker's memory"
    np.testing.assert_array_equal(caller.call("scale", x=x, factor=3.0), x * 3)
    np.testing.assert_array_equal(caller.call("scale", x=np.ones(4, np.float32)), [2, 2, 2, 2])
    worker.kill()
    worker.wait()
    assert made["x"][999] == 7, "what it has made stays"


def test_go_calls_python(programs: Path, owner: Owner, worker: subprocess.Popen[str]) -> None:
    command = [str(programs / "sharedtensor"), "--socket", owner.socket]
    listed = subprocess.run([command[0], "endpoints", *command[1:]], capture_output=True, text=True, check=True).stdout
    assert f"({worker.pid})" in listed and "made" in listed
    held = subprocess.run([command[0], "holders", *command[1:]], capture_output=True, text=True, check=True).stdout
    assert "offered" in held and str(worker.pid) in held
    made = subprocess.run(
        [command[0], "call", *command[1:], "made", "n=3", "--json"], capture_output=True, text=True, check=True
    ).stdout
    assert "7" in made


def test_streams(caller: st.Client, worker: subprocess.Popen[str]) -> None:
    assert [int(x[0]) for x in caller.stream("steps", n=100)] == list(range(100))
    with caller.stream("steps", n=1_000_000) as stream:
        assert int(next(stream)[0]) == 0
    eventually(lambda: all(w.running == 0 for e in caller.endpoints() for w in e.workers), "the generator has ended")
    assert caller.call("scale", x=np.ones(1, np.float32))[0] == 2


def test_errors_keep_their_type(owner: Owner, caller: st.Client) -> None:
    def broken(kind: str) -> None:
        if kind == "key":
            raise KeyError("no such key")
        if kind == "own":
            raise st.ApplicationError("used up", type="quota", data={"left": 0})
        raise st.NotFoundError("nothing there")

    with st.connect(owner.socket) as c, c.offer(broken=broken):
        with pytest.raises(st.ApplicationError, match="no such key") as caught:
            caller.call("broken", kind="key")
        assert caught.value.type == "KeyError"
        with pytest.raises(st.ApplicationError, match="used up") as caught:
            caller.call("broken", kind="own")
        assert (caught.value.type, caught.value.data) == ("quota", {"left": 0})
        with pytest.raises(st.NotFoundError, match="nothing there"):
            caller.call("broken", kind="other")
        with pytest.raises(st.SerializationError, match="argument: "):
            caller.call("broken", sort="key")
    with pytest.raises(st.EndpointNotFoundError):
        caller.call("broken", kind="key")


def test_function_is_cancelled_without_waiters(owner: Owner, caller: st.Client) -> None:
    left = threading.Event()

    def patient() -> None:
        call = st.current_call()
        assert call.endpoint == "patient" and not call.cancelled
        if call.wait(30):
            left.set()
        call.check()

    with st.connect(owner.socket) as c, c.offer(patient=patient):
        with pytest.raises(st.DeadlineExceededError):
            caller.call("patient", timeout=0.2)
        assert left.wait(15)


def test_the_owner_caches_and_runs_tasks(owner: Owner, caller: st.Client) -> None:
    with st.connect(owner.socket) as c:
        runs: list[int] = []

        @c.endpoint(name="build", cache=True)
        def build(size: int) -> Any:
            runs.append(size)
            return np.full(size, 5, np.float32)

        @c.endpoint
        def plain(value: int) -> int:
            return value + 1

        served = threading.Thread(target=c.serve)
        served.start()
        eventually(lambda: len(caller.endpoints()) == 2, "the functions are offered")
        first, second = caller.call("build", size=8), caller.call("build", size=8)
        assert runs == [8] and inode_of(first) == inode_of(second)
        task = caller.submit("plain", value=41)
        task.wait()
        assert task.result() == 42
        [info] = [e for e in caller.endpoints() if e.name == "build"]
        assert info.cache and info.workers[0].pid == os.getpid()
        with pytest.raises(st.ProviderError, match="another description"):
            c.offer(build=plain)
    served.join(15)
    assert not served.is_alive()


def test_killed_worker(caller: st.Client, worker: subprocess.Popen[str]) -> None:
    caught: list[BaseException] = []

    def call() -> None:
        try:
            caller.call("stuck")
        except st.Error as err:
            caught.append(err)

    thread = threading.Thread(target=call)
    thread.start()
    assert worker.stdout is not None
    assert worker.stdout.readline() == "stuck\n"
    worker.send_signal(signal.SIGKILL)
    thread.join(15)
    assert len(caught) == 1 and isinstance(caught[0], st.WorkerGoneError)
    eventually(lambda: not caller.endpoints(), "its functions are withdrawn")


def test_a_worker_offers_again_to_the_next_owner(owner: Owner, worker: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.restart()
    with st.connect(owner.socket, framework="numpy") as c:
        eventually(lambda: len(c.endpoints()) == 5, "the worker is back", 30)
        assert c.call("scale", x=np.ones(2, np.float32))[1] == 2


def test_calls_leak_nothing(owner: Owner, caller: st.Client) -> None:
    def double(x: Any) -> Any:
        return x * 2

    with st.connect(owner.socket, framework="numpy", keep=0) as c, c.offer(double=double):
        x = st.from_array(np.ones(5000, np.float32))
        caller.call("double", x=x)
        files, maps = descriptors(), len(mappings())
        for _ in range(50):
            assert caller.call("double", x=x)[4999] == 2
        eventually(lambda: descriptors() <= files + 2 and len(mappings()) <= maps + 2, "memory of calls is given back")


def test_owner_without_offers(make_owner: Callable[..., Owner]) -> None:
    with st.connect(make_owner("serve").socket) as c, pytest.raises(st.UnsupportedError, match="--offers"):
        c.offer(f=time.sleep)


def test_declarations() -> None:
    def join(x: Annotated[Any, "float32[-1,3]"], n: int = 1) -> Annotated[Any, "float32[-1]"]: ...

    info = Function(join, batch=(8, 0.002)).describe("join")
    assert [f.tensor for f in info.in_fields] == ["float32[-1,3]", ""]
    assert (info.out_tensor, info.batch_max, info.batch_delay) == ("float32[-1]", 8, 2_000_000)


class Counted(TypedDict, total=False):
    count: int


class Parts(Counted):
    total: Annotated[Any, "float32[-1]"]
    names: list[str]


def test_a_typed_dict_declares_outputs() -> None:
    def split(x: Annotated[Any, "float32[-1,3]"], scale: float = 1, label: str = "", raw: bytes = b"") -> Parts: ...

    info = Function(split).describe("split")
    assert [f.type for f in info.in_fields] == ["Any", "float64", "string", "[]uint8"]
    found = [(f.name, f.type, f.optional, f.tensor) for f in info.out_fields]
    assert found == [
        ("count", "int", True, ""),
        ("total", "Any", False, "float32[-1]"),
        ("names", "[]string", False, ""),
    ]
    assert (info.out, info.out_tensor) == ("Parts", "")

    def steps(x: int) -> Iterator[Parts]:
        yield {"total": x, "names": []}

    info = Function(steps).describe("steps")
    assert (info.stream, info.out, [f.name for f in info.out_fields]) == (True, "Parts", ["count", "total", "names"])


def test_the_owner_checks_declarations(caller: st.Client) -> None:
    def join(x: Annotated[Any, "float99[-1,3]"]) -> Any: ...

    with pytest.raises(st.Error, match="float99"):
        caller.offer(join=Function(join))


def test_async_functions_of_a_blocking_client(make_owner: Callable[..., Owner]) -> None:
    """They run in an event loop of the thread, and are cancelled when the caller leaves."""
    owner = make_owner("serve", "--offers")
    ended = threading.Event()

    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x + len(st.current_call().endpoint)

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def count(n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i

    def bare(x: List) -> int:  # noqa: UP006
        return len(x)

    with st.connect(owner.socket) as worker, st.connect(owner.socket) as c:
        with worker.offer(double=double, wait=wait, count=count, bare=bare):
            assert (
                c.call("double", x=4) == 14 and list(c.stream("count", n=3)) == [0, 1, 2] and c.call("bare", x=[1]) == 1
            )
            with pytest.raises(st.DeadlineExceededError):
                c.call("wait", timeout=0.3)
            assert ended.wait(10), "the coroutine goes on"
            assert c.call("double", x=4) == 14
