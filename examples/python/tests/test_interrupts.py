"""Exceptions that arrive in any line, as those of signals' handlers do: a message that was sent or received in part is
never a part of another one."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually

import sharedtensor as st
from sharedtensor.frames import HEADER


class HandlerError(Exception):
    """Raised by the handler of a signal."""


class Slow:
    """A socket that sends and receives one byte at a time, and sends this process a signal after some of them.

    :ivar bytes: how many bytes have passed since `arm`.
    """

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.at = -1
        self.action: Callable[[], None] = lambda: None
        self.sending = True
        self.bytes = 0
        self.armed = False

    def arm(self, at: int, action: Callable[[], None], *, sending: bool = True) -> None:
        self.at, self.action, self.sending, self.bytes, self.armed = at, action, sending, 0, True

    def _passed(self, sending: bool) -> None:
        if self.armed and sending == self.sending:
            self.bytes += 1
            if self.bytes - 1 == self.at:
                self.armed = False
                self.action()

    def send(self, data: Any, flags: int = 0) -> int:
        n = self.real.send(bytes(memoryview(data)[:1]), flags)
        self._passed(True)
        return n

    def sendmsg(self, parts: Any, rights: Any = (), flags: int = 0) -> int:
        n = self.real.sendmsg([bytes(memoryview(parts[0])[:1])], rights, flags)
        self._passed(True)
        return n

    def recvmsg_into(self, into: Any, room: int = 0, flags: int = 0) -> Any:
        if not self.armed or self.sending:
            return self.real.recvmsg_into(into, room, flags)
        result = self.real.recvmsg_into([memoryview(into[0])[:1]], room, flags)
        self._passed(False)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def handled() -> Iterator[None]:
    def handler(*_: Any) -> None:
        raise HandlerError

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def kill(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


SIGNALS = {"KeyboardInterrupt": (signal.SIGINT, KeyboardInterrupt), "handler": (signal.SIGUSR1, HandlerError)}
X = np.arange(4, dtype=np.float32)
REQUESTS: dict[str, Callable[[st.Client[Any]], Any]] = {
    "ping": lambda c: c.ping(),
    "list": lambda c: c.list(),
    "acquire": lambda c: c.acquire("base"),
    "publish": lambda c: c.publish("interrupted", {"x": X}),
    "call": lambda c: c.call("transform", x=X, scale=2),
    "stream": lambda c: [*c.stream("spectral_norm", a=np.eye(2, dtype=np.float32), steps=2)],
    "submit": lambda c: c.submit("build_model", hidden_size=2, layers=1),
    "watch": lambda c: c.watch("base").close(),
    "watch_tasks": lambda c: c.watch_tasks().close(),
    "endpoints": lambda c: c.endpoints(),
    "digest": lambda c: c.digest("base"),
}


def works(c: st.Client[Any], scale: float) -> None:
    """A call has its own arguments. The request before it left nothing that is taken for a part of it."""
    begin = time.monotonic()
    assert np.array_equal(c.call("transform", x=X, scale=scale), X * scale)
    assert time.monotonic() - begin < 5, "the client waited for a frame that does not go on"


def slow(c: st.Client[Any]) -> Slow:
    conn = c._session()._conn
    if not isinstance(conn._sock, Slow):
        conn._sock = Slow(conn._sock)  # type: ignore[assignment]
    found: Any = conn._sock
    return found  # type: ignore[no-any-return]


def lengths(module_owner: Owner, request_: Callable[[st.Client[Any]], Any]) -> int:
    """Returns the number of bytes that a request sends."""
    with st.connect(module_owner.socket, framework="numpy") as c:
        wire = slow(c)
        wire.arm(1 << 30, lambda: None)
        try:
            request_(c)
        except st.Error:
            pass
        return wire.bytes


@pytest.mark.parametrize(
    ("name", "request_"), [*product(SIGNALS, ["ping", "call"]), *product(["KeyboardInterrupt"], REQUESTS)]
)
def test_a_request_interrupted_at_any_byte(module_owner: Owner, handled: None, request_: str, name: str) -> None:
    number, error = SIGNALS[name]
    request = REQUESTS[request_]
    total = lengths(module_owner, request)
    assert total >= HEADER.size
    open_before = descriptors()
    with st.connect(module_owner.socket, framework="numpy") as c:
        for at in range(total):
            slow(c).arm(at, kill(number))
            try:
                request(c)
            except error:
                pass
            except st.Error as err:
                assert request_ == "digest", err
            works(c, at + 1)
    eventually_equal(open_before)


def eventually_equal(want: int) -> None:
    until = time.monotonic() + 10
    while descriptors() > want + 4 and time.monotonic() < until:
        time.sleep(0.05)
    assert descriptors() <= want + 4, "descriptors leak"


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("request_", ["acquire", "call"])
def test_an_answer_interrupted_at_any_byte(module_owner: Owner, handled: None, request_: str, name: str) -> None:
    number, error = SIGNALS[name]
    request = REQUESTS[request_]
    with st.connect(module_owner.socket, framework="numpy") as c:
        for at in range(40):
            slow(c).arm(at, kill(number), sending=False)
            try:
                request(c)
            except error:
                pass
            slow(c).armed = False
            works(c, at + 1)


def test_others_are_answered_while_the_thread_that_reads_is_interrupted(module_owner: Owner, handled: None) -> None:
    """The main thread reads for all. When it is interrupted, another one reads on."""
    with st.connect(module_owner.socket, framework="numpy", reconnect=10) as c:
        done: list[Any] = []

        def call() -> None:
            for i in range(30):
                done.append(c.call("transform", x=X, scale=i)[1])

        for _ in range(5):
            done.clear()
            thread = threading.Thread(target=call)
            timer = threading.Timer(0.05, kill(signal.SIGUSR1))
            with pytest.raises(HandlerError):
                thread.start()
                timer.start()
                c.call("build_model", hidden_size=5, layers=1000, pace_ms=100)
            thread.join(20)
            assert done == [*range(30)]
        works(c, 3)


class Worked:
    """Functions that a worker offers. They record arguments that are not all of one number, and numbers that no caller
    has sent."""

    def __init__(self) -> None:
        self.sent: set[float] = set()
        self.mixed: list[Any] = []

    def next(self) -> float:
        """Returns a number for the next call."""
        self.sent.add(float(len(self.sent)))
        return len(self.sent) - 1.0

    def check(self, x: Any, scale: float) -> Any:
        if scale not in self.sent or not (np.asarray(x) == scale).all():
            self.mixed.append((np.array(x), scale))
        return np.asarray(x) * 2

    def twice(self, x: Any, scale: float) -> Any:
        return self.check(x, scale)

    def steps(self, x: Any, scale: float) -> Iterator[Any]:
        y = self.check(x, scale)
        yield from (y for _ in range(20))

    def arguments(self) -> dict[str, Any]:
        scale = self.next()
        return {"x": np.full(4, scale, np.float32), "scale": scale}


@pytest.fixture(scope="module")
def worked(programs: Path) -> Iterator[tuple[str, Worked]]:
    """An owner with a worker, in a thread of this process; the path of its socket, and what the worker has seen."""
    with tempfile.TemporaryDirectory(prefix="st") as name:
        path = f"{name}/s.sock"
        owner = Owner([str(programs / "sharedtensor"), "serve", "--offers", "--retain=2", "--socket", path], path)
        work = Worked()
        with st.connect(path, framework="numpy") as w:
            twice, steps = work.twice, work.steps
            with w.offer(
                calls=4,
                twice=twice,
                steps=steps,
                cached=st.Function(twice, cache=True),
                managed=st.Function(twice, managed=True),
                task=st.Function(twice, task=True, managed=True),
            ):
                yield path, work
        owner.stop()


class Case:
    """A client for asyncio whose socket is slow, beside a blocking one, with what requests refer to."""

    def __init__(self, c: st.aio.Client[Any], other: st.Client[Any], work: Worked) -> None:
        self.c, self.other, self.work = c, other, work
        self.used = 0
        for value in (1, 2):
            other.publish("model", {"x": X * value}, owner_digests=True)
        self.task = other.submit("task", **work.arguments())
        self.task.wait(timeout=20)
        self.result = self.task.object()  # the owner keeps it while this is here

    def unique(self, prefix: str) -> str:
        self.used += 1
        return f"{prefix}{self.used}"

    def aio_task(self) -> Any:
        return st.aio.Task(self.c, self.task.info)


async def followed(t: Case) -> None:
    async with t.c.follow("model") as models:
        async for model in models:
            model.close()
            return


async def first(items: Any) -> None:
    try:
        await anext(items)
    finally:
        await items.aclose()


async def streamed(t: Case, number: int) -> None:
    items = t.c.stream("steps", **t.work.arguments())
    try:
        for _ in range(number):
            await anext(items)
            await asyncio.sleep(0)  # a cancellation between items
        if number == 20:
            assert await anext(items, None) is None
    finally:
        await items.aclose()


async def created(t: Case) -> None:
    writer = await t.c.create("written", {"x": ((4,), "float32")})
    try:
        writer["x"][:] = 3
        await t.c.commit(writer, owner_digests=True)
    finally:
        writer.close()


async def held(t: Case) -> None:
    found = await t.c.call_object("managed", **t.work.arguments())
    try:
        await t.c.object(found.id)
    finally:
        found.release()
    await t.c.ping()


async def destroyed(t: Case) -> None:
    with t.other.call_object("managed", **t.work.arguments()) as found:
        await t.c.destroy(found.id)


async def submitted(t: Case) -> None:
    task = await t.c.submit("task", **t.work.arguments())
    await task.wait(progress=lambda _: None)


async def withdrawn(t: Case) -> None:
    t.other.publish("withdrawn", {"x": X})
    await t.c.withdraw("withdrawn")


async def acquired(t: Case) -> None:
    model = await t.c.acquire("model", wait=5)
    model.close()  # releases the lease
    await t.c.ping()


async def offered(t: Case) -> None:
    async with await t.c.offer(**{t.unique("offered"): t.work.twice}):
        pass


async def served(t: Case) -> None:
    """A worker for asyncio whose answer is on its way when its caller leaves."""
    name = t.unique("served")

    async def function(x: Any, scale: float) -> Any:
        await asyncio.sleep(0)
        return t.work.check(x, scale)

    async with await t.c.offer(**{name: function}):
        async with await st.aio.connect(t.other.path, framework="numpy") as caller:
            await caller.call(name, **t.work.arguments())


ASYNC: dict[str, Callable[[Case], Any]] = {
    "ping": lambda t: t.c.ping(),
    "list": lambda t: t.c.list(),
    "inspect": lambda t: t.c.inspect("model"),
    "info": lambda t: t.c.info(),
    "endpoints": lambda t: t.c.endpoints(),
    "acquire and release": acquired,
    "publish": lambda t: t.c.publish("published", {"x": X}, digests=True),
    "digest": lambda t: t.c.digest("model"),
    "create and commit": created,
    "withdraw": withdrawn,
    "rollback": lambda t: t.c.rollback("model"),
    "call": lambda t: t.c.call("twice", **t.work.arguments()),
    "options": lambda t: t.c.options(timeout=5).call("twice", **t.work.arguments()),
    "stream": lambda t: streamed(t, 20),
    "stream, left between items": lambda t: streamed(t, 9),
    "submit and wait": submitted,
    "task": lambda t: t.c.task(t.task.id),
    "tasks": lambda t: t.c.tasks(),
    "result": lambda t: t.aio_task().result(),
    "object of a task": lambda t: t.aio_task().object(),
    "cancel": lambda t: t.aio_task().cancel(),
    "watch_tasks": lambda t: first(t.c.watch_tasks()),
    "invalidate a call": lambda t: t.c.invalidate("cached", **t.work.arguments()),
    "invalidate": lambda t: t.c.invalidate("cached"),
    "objects": lambda t: t.c.objects(),
    "object": held,
    "destroy": destroyed,
    "watch": lambda t: first(t.c.watch("model")),
    "follow": followed,
    "offer": offered,
    "answer": served,
}


def some(total: int) -> list[int]:
    """Returns the bytes to interrupt at: the first 64, the last 16, and every 16th between."""
    return sorted({*range(min(total, 64)), *range(64, total, 16), *range(max(total - 16, 0), total)})


async def cancelled_at(t: Case, request_: str, at: int, *, sending: bool, limit: bool) -> None:
    """Makes a request and cancels it at a byte, by its task or by asyncio.timeout. Another one works then."""
    loop = asyncio.get_running_loop()

    async def run() -> None:
        if not limit:
            await ASYNC[request_](t)
            return
        async with asyncio.timeout(None) as scope:
            end.append(lambda: None if scope.expired() or task.done() else scope.reschedule(0))
            await ASYNC[request_](t)

    end: list[Callable[[], object]] = []
    task = asyncio.ensure_future(run())
    if not limit:
        end.append(task.cancel)

    def cancel() -> None:
        if not end:  # a byte of another thread, such as one that releases a lease, before the request began
            return
        loop.call_soon_threadsafe(end[0])
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.0005)  # the loop cancels while this thread is within the frame

    slow(t.c.sync).arm(at, cancel, sending=sending)
    done, _ = await asyncio.wait([task], timeout=10)
    assert done, "the request does not end"
    slow(t.c.sync).armed = False
    if not task.cancelled() and task.exception() is not None:
        assert isinstance(task.exception(), TimeoutError) and limit, repr(task.exception())
    arguments = t.work.arguments()
    y = await asyncio.wait_for(t.c.call("twice", **arguments), 5)
    assert np.array_equal(y, arguments["x"] * 2)


@pytest.mark.parametrize("request_", ASYNC)
def test_a_request_cancelled_at_any_byte(worked: tuple[str, Worked], request_: str) -> None:
    """The client works afterwards over the same connection, nothing is held any more, and no function has run on
    arguments that nobody sent."""
    path, work = worked

    async def main(other: st.Client[Any]) -> None:
        async with await st.aio.connect(path, framework="numpy") as c:
            t = Case(c, other, work)
            session = c.sync._session()
            wire = slow(c.sync)
            wire.arm(1 << 30, lambda: None)
            await ASYNC[request_](t)
            total = wire.bytes
            assert total >= HEADER.size
            for at in some(total):
                await cancelled_at(t, request_, at, sending=True, limit=False)
            if sys.version_info >= (3, 11):
                for at in some(total)[::8]:
                    await cancelled_at(t, request_, at, sending=True, limit=True)
            for at in (0, 1, 15, 16, 17, 24, 40):
                await cancelled_at(t, request_, at, sending=False, limit=False)
            assert c.sync._session() is session
            gc.collect()
            eventually(lambda: c.stats().leases == c.stats().references == 0, "the client holds something")
            eventually(lambda: _held(c) == (0, 0, 0, 0, 0), "the server keeps something for the client")

    with st.connect(path, framework="numpy") as other:
        asyncio.run(main(other))
    assert not work.mixed


def _held(c: st.aio.Client[Any]) -> tuple[int, ...]:
    """Returns what the server has for a client: leases, references, offers, watches, and requests that run."""
    info = c.sync.info()
    mine = max((s for s in info.sessions if s.pid == os.getpid()), key=lambda s: s.session)  # it has connected last
    return mine.leases, mine.objects, mine.offers, info.stats.watchers, mine.requests


def test_an_interrupted_wait_cancels_the_request(module_owner: Owner, handled: None) -> None:
    """A wait that is interrupted before a byte of the answer has arrived does not end the connection."""
    with st.connect(module_owner.socket, framework="numpy") as c:
        session = c._session()
        for _ in range(3):
            timer = threading.Timer(0.1, kill(signal.SIGUSR1))
            timer.start()
            with pytest.raises(HandlerError):
                c.call("build_model", hidden_size=6, layers=1000, pace_ms=100)
            works(c, 2)
        assert c._session() is session


STORM = """
import os, random, signal, sys, threading, time
import numpy as np
import sharedtensor as st

class HandlerError(Exception):
    pass

def handler(*_):
    raise HandlerError

def storm():
    while not stop.wait(random.uniform(0.0005, 0.004)):
        os.kill(os.getpid(), signal.SIGUSR1)

sys.unraisablehook = lambda _: None  # finalizers are interrupted too
signal.signal(signal.SIGUSR1, handler)
x = np.arange(4, dtype=np.float32)
client = st.connect(sys.argv[1], framework="numpy")
stop = threading.Event()
thread = threading.Thread(target=storm)
right, cut, until, over = 0, 0, time.monotonic() + 2, False
while not over:
    try:
        if not thread.ident:
            thread.start()
        while time.monotonic() < until:
            y = client.call("transform", x=x, scale=right % 100, timeout=20)
            if not np.array_equal(y, x * (right % 100)):
                stop.set()
                sys.exit("a wrong result")
            right += 1
        over = True
    except HandlerError:
        cut += 1
while thread.is_alive():
    try:
        stop.set()
        thread.join()
    except HandlerError:
        pass
assert right and cut
assert client.call("transform", x=x, scale=2)[1] == 2
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 runs handlers at other places")
def test_signals_at_random_moments(module_owner: Owner) -> None:
    """Each call is right or interrupted, and nothing hangs."""
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", STORM, module_owner.socket], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
