"""Owners that leave: both clients repeat what did not run, and what waits for an owner never hangs."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Owner, eventually
from test_connection import Leaver, Liar, frame

import sharedtensor as st
from sharedtensor import messages
from sharedtensor.op import EventKind, Kind

ANSWERS: dict[str, tuple[bytes, Callable[[Any], Awaitable[Any]]]] = {
    "ping": (messages.Pong().encode(), lambda c: c.ping()),
    "list": (messages.Listed(models=[]).encode(), lambda c: c.list()),
    "publish": (messages.Published(version=7).encode(), lambda c: c.publish("m", {"x": np.ones(4, np.float32)})),
    "withdraw": (messages.Withdrawn().encode(), lambda c: c.withdraw("m")),
    "call": (messages.Returned(value=5).encode(), lambda c: c.call("f", 1)),
    "call with a tensor": (messages.Returned(value=5).encode(), lambda c: c.call("f", np.ones(1 << 19, np.float32))),
    "stream": (b"\xa0", lambda c: collect(c.stream("f", 1))),
    "options": (messages.Returned(value=5).encode(), lambda c: c.options(returns=int).call("f", 1)),
}


async def collect(items: Any) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize("name", ANSWERS)
def test_asyncio_repeats_what_the_blocking_client_repeats(folder: Path, name: str) -> None:
    answer, request = ANSWERS[name]

    async def main(path: Path, leaving: int, reconnect: float) -> tuple[Any, int]:
        owner = Leaver(str(path), answer, leaving=leaving)
        try:
            async with await st.aio.connect(path, framework="numpy", reconnect=reconnect) as c:
                try:
                    await asyncio.wait_for(request(c), 20)
                    return None, owner.left
                except st.UnavailableError as err:
                    return err, owner.left
        finally:
            owner.close()

    assert asyncio.run(main(folder / "a.sock", 2, 10)) == (None, 2)
    error, left = asyncio.run(main(folder / "b.sock", 100, 1))
    assert isinstance(error, st.UnavailableError) and left == 4
    error, left = asyncio.run(main(folder / "c.sock", 100, 0))
    assert isinstance(error, st.UnavailableError) and left == 1


def test_no_stream_is_repeated_after_its_first_result(folder: Path) -> None:
    """The blocking client and that of asyncio report that the server leaves."""
    served = []

    def serve(conn: socket.socket, id: int) -> None:
        served.append(id)
        conn.sendall(frame(Kind.EVENT, id, messages.StreamItem(value=1).encode()))
        conn.sendall(frame(Kind.GOODBYE, 0, messages.Goodbye(reason="upgrade").encode()))
        error = messages.ErrorMessage(code=22, type="leaving", message="the owner is shutting down")
        conn.sendall(frame(Kind.ERROR, id, error.encode()))

    owner = Liar(str(folder / "s.sock"), serve)
    with st.connect(folder / "s.sock", framework="numpy") as c:
        found: list[Any] = []
        with pytest.raises(st.UnavailableError):
            found.extend(iter(c.stream("f", 1)))
        stream = c.stream("f", 1)
        assert next(stream) == 1
        with pytest.raises(st.UnavailableError):
            next(stream)

    async def main() -> list[Any]:
        items = []
        async with await st.aio.connect(folder / "s.sock", framework="numpy") as a:
            with pytest.raises(st.UnavailableError):
                async for item in a.stream("f", 1):
                    items.append(item)
        return items

    assert asyncio.run(main()) == [1] and len(served) == 3
    owner.close()


class Fickle:
    """An owner whose first connections, and each at some later time, get a hello and a goodbye at once. It sends
    events to the watches of the last one."""

    def __init__(self, path: str, leaving: int) -> None:
        self.left = 0
        self.leaving = leaving
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.conns: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.conns.append(conn)
            self._greet(conn)

    def _greet(self, conn: socket.socket) -> None:
        try:
            conn.sendall(frame(Kind.HELLO, 0, messages.Hello(protocol=1, oldest=1, server=f"s{self.left}").encode()))
            if self.left < self.leaving:
                self.left += 1
                conn.sendall(frame(Kind.GOODBYE, 0, messages.Goodbye(reason="upgrade").encode()))
                conn.close()
                return
        except OSError:
            return
        threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        try:
            reader = conn.makefile("rb")
            while header := reader.read(16):
                kind, id = header[5], int.from_bytes(header[8:], "big")
                body = reader.read(int.from_bytes(header[:4], "big"))
                if kind != Kind.REQUEST:
                    continue
                if messages.Request.decode(body).op == 8:  # watch
                    conn.sendall(frame(Kind.RESPONSE, id, b"\xa0"))
                    event = messages.Event(seq=1, kind=EventKind.PUBLISHED, name="m", version=5)
                    conn.sendall(frame(Kind.EVENT, id, event.encode()))
                else:
                    conn.sendall(frame(Kind.RESPONSE, id, b"\xa0"))
        except OSError:
            pass

    def drop(self, leaving: int) -> None:
        """Ends the connections. The next ones get a goodbye at once."""
        self.left, self.leaving = 0, leaving
        for conn in self.conns:
            try:
                conn.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for conn in self.conns:
            conn.close()


def test_followers_survive_owners_that_say_goodbye_at_once(folder: Path) -> None:
    owner = Fickle(str(folder / "s.sock"), 0)
    with st.connect(folder / "s.sock", framework="numpy") as c:
        follower = c.follow("m")
        eventually(lambda: follower.newest == 5, "no event")
        for _ in range(5):
            owner.drop(leaving=3)
            eventually(lambda: owner.left == 3, "nothing connects again")
            eventually(lambda: c.connected and follower.newest == 5, "the follower is not renewed")
    owner.close()


def test_what_waits_ends_if_the_client_does_not_reconnect(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("serve", "--offers")
    with st.connect(owner.socket, framework="numpy", reconnect=0) as c:
        follower, watch, tasks = c.follow("never"), c.watch("never"), c.watch_tasks()
        offer = c.offer(f=lambda: 1)
        errors: list[BaseException] = []

        def wait(what: Callable[[], Any]) -> threading.Thread:
            def run() -> None:
                try:
                    what()
                except st.Error as err:
                    errors.append(err)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            return thread

        waits = [follower.wait_newer, lambda: [*watch], lambda: [*tasks], offer.wait]
        threads = [wait(what) for what in waits]
        owner.kill()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads), "a wait hangs"
        assert len(errors) == 4 and all(isinstance(err, st.ConnectionLostError) for err in errors), errors


def test_followers_end_if_the_next_server_refuses_the_client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Fickle(str(folder / "s.sock"), 0)
    with st.connect(folder / "s.sock", framework="numpy") as c:
        follower = c.follow("never")
        monkeypatch.setattr("sharedtensor.session.is_nobody", lambda uid: True)
        owner.drop(0)
        with pytest.raises(st.PermissionDeniedError, match="user namespace"):
            follower.wait_newer(timeout=10)
    owner.close()


def test_a_process_without_descriptors_names_its_limit(module_owner: Owner) -> None:
    program = """
import os, resource, sys
import sharedtensor as st
c = st.connect(sys.argv[1], framework="numpy")
kept = c.acquire("base")  # what it opens once is open
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
used = []
for what in (lambda: c.acquire("base"), lambda: st.connect(sys.argv[1])):
    try:
        while True:
            used.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        what()
        print("no error")
    except st.ResourceExhaustedError as err:
        assert "256" in str(err) and "RLIMIT_NOFILE" in str(err), err
for fd in used:
    os.close(fd)
print(len(c.acquire("base")))
"""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 256
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", program, module_owner.socket], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.strip().isdecimal(), done.stdout + done.stderr


def test_no_limit(folder: Path) -> None:
    """A request without a limit outlasts the client's default."""

    def serve(conn: socket.socket, id: int) -> None:
        time.sleep(1.5)
        conn.sendall(frame(Kind.RESPONSE, id, messages.Returned(value=3).encode()))

    requests: list[Callable[[st.Client], Any]] = [
        lambda c: c.call("f", 1, timeout=st.NO_LIMIT),
        lambda c: c.options(timeout=st.NO_LIMIT).call("f", 1),
        lambda c: asyncio.run(st.aio.Client(c).call("f", 1, timeout=st.NO_LIMIT)),  # type: ignore[arg-type]
    ]
    owner = Liar(str(folder / "s.sock"), serve)
    for request in requests:
        with st.connect(folder / "s.sock", framework="numpy", timeout=0.1) as c:
            assert request(c) == 3
    with st.connect(folder / "s.sock", framework="numpy", timeout=0.1) as c:
        with pytest.raises(st.InvalidArgumentError):
            c.call("f", 1, timeout=float("nan"))
    owner.close()
