"""Tasks whose owner leaves: it finishes them, and their clients get the results from it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Owner, eventually
from test_connection import frame

import sharedtensor as st
from sharedtensor import cbor, messages
from sharedtensor.frames import HEADER
from sharedtensor.op import Kind, Op

LIMIT = 60.0


class Worker:
    """A client that offers a function whose calls end when the test permits it.

    :ivar ran: the arguments of the calls that have begun.
    """

    def __init__(self, socket: str) -> None:
        self.ran: list[str] = []
        self.permitted = threading.Event()
        self.client = st.connect(socket, framework="numpy")
        self.offer = self.client.offer(calls=16, work=self.work)

    def work(self, id: str) -> str:
        self.ran.append(id)
        assert self.permitted.wait(LIMIT)
        return id

    def close(self) -> None:
        self.permitted.set()
        self.client.close()


def pid_of(socket: str) -> int:
    """Returns the process that serves; 0 for none."""
    try:
        with st.connect(socket, framework="numpy") as c:
            return c.server.pid
    except (st.UnavailableError, st.ConnectionLostError):
        return 0


@pytest.fixture
def owner(make_owner: Callable[..., Owner]) -> Iterator[Owner]:
    made = make_owner("serve", "--offers", "--grace", f"{LIMIT:g}s")
    yield made
    if (pid := pid_of(made.socket)) not in (0, made.process.pid):  # the successor
        os.kill(pid, signal.SIGKILL)


def upgrade(owner: Owner) -> None:
    before = pid_of(owner.socket)
    os.kill(before, signal.SIGUSR2)
    eventually(lambda: pid_of(owner.socket) not in (0, before), "the successor serves", LIMIT)


def stop(owner: Owner) -> None:
    before = owner.process.pid
    os.kill(before, signal.SIGTERM)
    eventually(lambda: pid_of(owner.socket) != before, "the owner refuses new clients", LIMIT)


def kill(owner: Owner) -> None:
    owner.kill()
    owner.restart()


class Moments:
    """What the test and its client wait for, in this order."""

    def __init__(self) -> None:
        self.submitted, self.left, self.asked = threading.Event(), threading.Event(), threading.Event()


def blocking(socket: str, moments: Moments) -> dict[str, Any]:
    """Submits tasks and requests their results before and after their owner has left. Returns results and errors."""

    def of(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except st.Error as err:
            return err

    with st.connect(socket, framework="numpy", reconnect=LIMIT) as c, ThreadPoolExecutor(3) as pool:
        tasks = {name: c.submit("work", id=name) for name in ("waiting", "seen", "later", "cancelled")}
        seen: list[str] = []
        found = {
            "waiting": pool.submit(of, tasks["waiting"].wait),
            "seen": pool.submit(of, lambda: tasks["seen"].wait(progress=lambda info: seen.append(info.state))),
        }
        moments.submitted.set()
        assert moments.left.wait(LIMIT)
        state = of(lambda: tasks["later"].refresh().state)
        found["later"] = pool.submit(of, tasks["later"].wait)
        cancelled = of(tasks["cancelled"].cancel)
        moments.asked.set()
        results: dict[str, Any] = {name: each.result(LIMIT) for name, each in found.items()}
        return results | {"state": state, "cancelled": cancelled, "last": seen[-1:]}


def asynchronous(socket: str, moments: Moments) -> dict[str, Any]:
    """The same with asyncio."""

    async def of(what: Any) -> Any:
        try:
            return await what
        except st.Error as err:
            return err

    async def main() -> dict[str, Any]:
        async with await st.aio.connect(socket, framework="numpy", reconnect=LIMIT) as c:
            names = ("waiting", "seen", "later", "cancelled")
            tasks = {name: await c.submit("work", id=name) for name in names}
            seen: list[str] = []
            found = {
                "waiting": asyncio.create_task(of(tasks["waiting"].wait())),
                "seen": asyncio.create_task(of(tasks["seen"].wait(progress=lambda info: seen.append(info.state)))),
            }
            await asyncio.sleep(0)
            moments.submitted.set()
            assert await asyncio.to_thread(moments.left.wait, LIMIT)
            info = await of(tasks["later"].refresh())
            state = info if isinstance(info, st.Error) else info.state
            found["later"] = asyncio.create_task(of(tasks["later"].wait()))
            cancelled = await of(tasks["cancelled"].cancel())
            moments.asked.set()
            results = {name: await each for name, each in found.items()}
            return results | {"state": state, "cancelled": cancelled, "last": seen[-1:]}

    return asyncio.run(main())


@pytest.mark.parametrize("client", [blocking, asynchronous])
@pytest.mark.parametrize("leave", [upgrade, stop, kill])
def test_tasks_outlive_the_service_of_their_owner(
    owner: Owner, leave: Callable[[Owner], None], client: Callable[..., dict[str, Any]]
) -> None:
    """A task runs once. An owner that leaves finishes it and returns its result; one that was killed is reported."""
    worker = Worker(owner.socket)
    before = pid_of(owner.socket)
    moments = Moments()
    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(client, owner.socket, moments)
            assert moments.submitted.wait(LIMIT)
            eventually(lambda: len(worker.ran) == 4, "all tasks have begun", LIMIT)
            leave(owner)
            moments.left.set()
            assert moments.asked.wait(LIMIT)
            worker.permitted.set()
            found = running.result(LIMIT)
    finally:
        moments.left.set()
        worker.close()
    assert sorted(worker.ran) == ["cancelled", "later", "seen", "waiting"]
    names = ("waiting", "seen", "later")
    if leave is kill:
        for name in (*names, "state"):
            error = found[name]
            assert isinstance(error, st.TaskNotFoundError) and isinstance(error, st.StaleHandleError), (name, error)
            assert error.reason == "server_mismatch" and error.server and "replaced" in str(error)
        return
    assert {name: found[name] for name in names} == {name: name for name in names}
    assert (found["state"], found["cancelled"], found["last"]) == ("running", True, ["completed"])
    eventually(lambda: not Path(f"/proc/{before}/exe").exists(), "the owner ends when all have their results", LIMIT)


class Successors:
    """Owners at one socket, one for each connection. The first one says goodbye when a second request of some kind is
    in flight, and answers that after the client has renewed over the second connection what it had.

    :ivar renewed: the bodies of the requests of the second connection that renew something.
    """

    def __init__(self, path: str, answers: dict[Op, list[bytes]], op: Op, renewal: Op) -> None:
        self.answers, self.op, self.renewal = answers, op, renewal
        self.renewed: list[Any] = []
        self.owed: tuple[socket.socket, int] | None = None
        self.connections: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(8)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(conn)
            threading.Thread(target=self.run, args=(conn, len(self.connections)), daemon=True).start()

    def run(self, conn: socket.socket, number: int) -> None:
        try:
            self.serve(conn, number)
        except OSError:
            pass  # the client or the test has closed the connection

    def serve(self, conn: socket.socket, number: int) -> None:
        device = messages.DeviceInfo(uuid=bytes(16), type=1)
        hello = messages.Hello(protocol=1, oldest=1, server=f"s{number}", catalog="c", devices=[device])
        sent = 0
        while len(head := conn.recv(16, socket.MSG_WAITALL)) == 16:
            length, kind, _, id = HEADER.unpack(head)
            body = conn.recv(length, socket.MSG_WAITALL)
            if kind == Kind.HELLO:
                conn.sendall(frame(Kind.HELLO, 0, hello.encode()))
                continue
            if kind != Kind.REQUEST:
                continue
            request = cbor.decode(body, tags=cbor.VALUE_TAGS, depth=cbor.VALUE_DEPTH)
            if number == 2 and request[1] == self.renewal:
                self.renewed.append(request.get(3))
            if number == 1 and request[1] == self.op:
                sent += 1
                if sent == 2:
                    conn.sendall(frame(Kind.GOODBYE, 0, messages.Goodbye(reason="upgrade").encode()))
                    self.owed = conn, id
                    continue
            answers = self.answers.get(request[1], [b"\xa0"])
            conn.sendall(frame(Kind.RESPONSE, id, answers[min(sent, len(answers)) - 1]))

    def answer(self) -> None:
        """Answers the request that is in flight."""
        assert self.owed is not None
        self.owed[0].sendall(frame(Kind.RESPONSE, self.owed[1], self.answers[self.op][1]))

    def __enter__(self) -> Successors:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        for conn in self.connections:
            conn.close()


EMPTY = messages.Manifest(
    names="", name_lengths=b"", dtypes=b"", ranks=b"", dims=b"", storage=b"", offsets=b"", storages=[]
)


def acquired(name: str, lease: int) -> bytes:
    return messages.Acquired(lease=lease, name=name, version=1, manifest=EMPTY, handles=[]).encode()


def test_a_lease_from_an_owner_that_leaves_is_renewed(folder: Path) -> None:
    """Its answer comes after the client has renewed its leases at the next owner."""
    path = str(folder / "s.sock")
    owner = Successors(path, {Op.ACQUIRE: [acquired("a", 1), acquired("b", 2)]}, Op.ACQUIRE, Op.ACQUIRE)
    with owner, ThreadPoolExecutor(1) as pool, st.connect(path, framework="numpy", reconnect=LIMIT) as c:
        a = c.acquire("a")
        acquiring = pool.submit(c.acquire, "b")
        eventually(lambda: len(owner.renewed) == 1, "the client renews the first lease", LIMIT)
        owner.answer()
        b = acquiring.result(LIMIT)
        eventually(lambda: len(owner.renewed) == 2, "the client renews the second lease", LIMIT)
        names = [messages.Acquire.from_plain(body).name for body in owner.renewed]
        assert names == ["a", "b"] and not a.stale and not b.stale
        eventually(lambda: b._lease.session is c._current, "the lease belongs to the new session", LIMIT)


def test_a_reference_from_an_owner_that_leaves_becomes_stale(folder: Path) -> None:
    """Its answer comes after the client has marked its references to objects of that owner."""
    path = str(folder / "s.sock")
    returned = [
        messages.Returned(value=id, object=messages.ObjectRef(id=id, server="s1", token=1)).encode()
        for id in ("1", "2")
    ]
    owner = Successors(path, {Op.CALL: returned}, Op.CALL, Op.WATCH_OBJECTS)
    with owner, ThreadPoolExecutor(1) as pool, st.connect(path, framework="numpy", reconnect=LIMIT) as c:
        first = c.call_object("f", 1)
        calling = pool.submit(c.call_object, "f", 2)
        eventually(lambda: bool(first.stale), "the client has another connection", LIMIT)
        owner.answer()
        second = calling.result(LIMIT)
        eventually(lambda: bool(second.stale), "the reference is stale", LIMIT)
