"""Exceptions that arrive in any line, as those of signals' handlers do: a message that was sent or received in part is
never a part of another one."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, descriptors

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


@pytest.mark.parametrize("request_", ["ping", "acquire", "publish", "call"])
def test_a_request_cancelled_at_any_byte(module_owner: Owner, request_: str) -> None:
    requests: dict[str, Callable[[st.aio.Client], Any]] = {
        "ping": lambda c: c.ping(),
        "acquire": lambda c: c.acquire("base"),
        "publish": lambda c: c.publish("interrupted", {"x": X}),
        "call": lambda c: c.call("transform", x=X, scale=2),
    }

    async def main() -> None:
        async with await st.aio.connect(module_owner.socket, framework="numpy") as c:
            loop = asyncio.get_running_loop()
            total = lengths(module_owner, REQUESTS[request_])
            for at in range(total):
                task = asyncio.ensure_future(requests[request_](c))

                def cancel(task: asyncio.Future[Any] = task) -> None:
                    loop.call_soon_threadsafe(task.cancel)
                    time.sleep(0.001)

                slow(c.sync).arm(at, cancel)
                await asyncio.wait([task])
                slow(c.sync).armed = False
                y = await asyncio.wait_for(c.call("transform", x=X, scale=at + 1), 5)
                assert np.array_equal(y, X * (at + 1))

    asyncio.run(main())


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
