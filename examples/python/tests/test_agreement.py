"""Rules that Go and Python share: where the socket is, who a peer is, and which requests are repeated."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from test_connection import Liar, frame

import sharedtensor as st
from sharedtensor import cbor, messages
from sharedtensor.frames import HEADER
from sharedtensor.op import Kind, Op
from sharedtensor.users import is_nobody

VARIABLES = ("SHARED_TENSOR_BASE_PATH", "NVIDIA_DRA_LOCAL_IPC_DIR", "XDG_RUNTIME_DIR", "TMPDIR")
ENVIRONMENTS = [
    {},
    {"TMPDIR": "/var/tmp"},
    {"XDG_RUNTIME_DIR": "/run/user/7"},
    {"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"},
    {"XDG_RUNTIME_DIR": ""},
    {"SHARED_TENSOR_BASE_PATH": "/x/base", "XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/var/tmp"},
    {"SHARED_TENSOR_BASE_PATH": "", "TMPDIR": "/var/tmp"},
]


def found(command: list[str], given: dict[str, str], effective: bool) -> str:
    """Returns the path of a socket that a program names where no owner is."""
    env = {k: v for k, v in os.environ.items() if k not in VARIABLES} | given
    env["PYTHONPATH"] = str(Path(st.__file__).parent.parent)

    def other_real_user() -> None:
        os.setresuid(4321, 0, 0)

    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=60, preexec_fn=other_real_user if effective else None
    )
    paths = re.findall(r"/[\w./-]+\.sock", done.stdout + done.stderr)
    assert paths, done
    return paths[0]


@pytest.mark.parametrize("effective", [False, True], ids=["one user", "set-user-ID"])
@pytest.mark.parametrize(
    "given", ENVIRONMENTS, ids=lambda given: " ".join(f"{k}={v}" for k, v in given.items()) or "none"
)
def test_the_socket_of_go_and_python(programs: Path, given: dict[str, str], effective: bool) -> None:
    if effective and os.getuid() != 0:
        pytest.skip("needs root")
    mine = found([sys.executable, "-c", "import sharedtensor; print(sharedtensor.socket_path())"], given, effective)
    theirs = found([str(programs / "sharedtensor"), "list"], given, effective)
    assert mine == theirs
    if not given:
        assert mine == f"/tmp/shared-tensor-{os.geteuid()}/shared-tensor-0.sock"


CLAIMS = json.loads((ROOT / "endpoint/internal/transport/testdata/claims.json").read_text())


@pytest.mark.parametrize("row", CLAIMS, ids=lambda row: row["name"])
def test_the_directory_of_a_claim(programs: Path, short: Path, row: dict[str, Any]) -> None:
    """Go and Python use it by the same rule. The Go tests of the rule read the same table."""
    if row.get("root") and os.getuid() != 0:
        pytest.skip("needs root")

    def expand(text: str) -> str:
        return text.replace("$T", str(short)).replace("$UID", str(os.geteuid()))

    end = expand("/shared-tensor-$UID/shared-tensor")
    claim = short / "claim"
    claim = claim.with_name("claim" + "x" * (row.get("fill", 0) - len(f"{claim}{end}")))
    target = claim
    if row.get("kind") == "link":
        target = short / "target"
        claim.symlink_to(target)
    if "mode" in row:
        target.touch() if row.get("kind") == "file" else target.mkdir()
        target.chmod(int(row["mode"], 8))
    if "uid" in row:
        os.chown(target, row["uid"], row["uid"])
    env = {"SHARED_TENSOR_BASE_PATH": expand(row.get("base", "")), "XDG_RUNTIME_DIR": row.get("runtime", "/run/user/7")}
    if "value" in row or "mode" in row:
        env["NVIDIA_DRA_LOCAL_IPC_DIR"] = expand(row.get("value", str(claim)))
    wants = {"claim": f"{claim}{end}-0.sock", "xdg": "/run/user/7/shared-tensor-0.sock"}
    want = wants.get(row["want"], expand(row["want"]))
    assert found([sys.executable, "-c", "import sharedtensor; print(sharedtensor.socket_path())"], env, False) == want
    assert found([str(programs / "sharedtensor"), "list"], env, False) == want


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short name: the paths of sockets are limited."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


USERS = json.loads((ROOT / "internal/userns/testdata/users.json").read_text())


@pytest.mark.parametrize("row", USERS, ids=lambda row: row["name"])
def test_the_overflow_user_is_nobody(tmp_path: Path, row: dict[str, Any]) -> None:
    """The Go tests of the rule read the same table."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    files = {"self/status": None if row.get("no_proc") else "", "self/uid_map": row.get("map")}
    for name, text in (files | {"sys/kernel/overflowuid": row.get("overflow")}).items():
        if text is not None:
            (tmp_path / "proc" / name).write_text(text)
    assert is_nobody(row["uid"], tmp_path) is row["nobody"]


class Faulty(Liar):
    """An owner that ends its first connections in some way when a request of one operation arrives.

    :ivar faults: what is still to happen: "leaving" says goodbye and refuses the request, "killed" ends the connection.
    :ivar sent: how often the request arrived.
    """

    def __init__(self, path: str, op: Op, answer: bytes, faults: list[str]) -> None:
        self.op, self.reply, self.faults, self.sent = op, answer, faults, 0
        super().__init__(path, lambda conn, id: None)

    def run(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn: socket.socket) -> None:
        device = messages.DeviceInfo(uuid=bytes(16), type=1)
        hello = messages.Hello(protocol=1, oldest=1, server="faulty", devices=[device], features=["conditions"])
        with conn:
            while len(head := conn.recv(16, socket.MSG_WAITALL)) == 16:
                length, kind, _, id = HEADER.unpack(head)
                body = conn.recv(length, socket.MSG_WAITALL)
                if kind == Kind.HELLO:
                    conn.sendall(frame(Kind.HELLO, 0, hello.encode()))
                elif kind == Kind.REQUEST and not self.request(conn, id, body):
                    return

    def request(self, conn: socket.socket, id: int, body: bytes) -> bool:
        """Answers a request. Returns False if the connection is to end."""
        fault, answer = "", b"\xa0"
        if cbor.decode(body, tags=cbor.VALUE_TAGS, depth=cbor.VALUE_DEPTH)[1] == self.op:
            self.sent += 1
            fault, answer = self.faults.pop(0) if self.faults else "", self.reply
        if fault == "leaving":
            conn.sendall(frame(Kind.GOODBYE, 0, messages.Goodbye(reason="upgrade").encode()))
            error = messages.ErrorMessage(code=22, type="leaving", message="the owner is shutting down")
            conn.sendall(frame(Kind.ERROR, id, error.encode()))
        elif fault != "killed":
            conn.sendall(frame(Kind.RESPONSE, id, answer))
        return fault != "killed"


LISTED = messages.Listed(models=[]).encode()
CLIENTS: dict[str, tuple[Op, bytes, Callable[[st.Client[Any]], object], list[str]]] = {
    "list": (Op.LIST, LISTED, lambda c: c.list(), ["ls"]),
    "endpoints": (
        Op.ENDPOINTS,
        messages.EndpointsListed(endpoints=[]).encode(),
        lambda c: c.endpoints(),
        ["endpoints"],
    ),
    "withdraw": (Op.WITHDRAW, messages.Withdrawn().encode(), lambda c: c.withdraw("m"), ["withdraw", "m"]),
    "rollback": (
        Op.ROLLBACK,
        messages.Published(version=2).encode(),
        lambda c: c.rollback("m", 1),
        ["rollback", "m", "1"],
    ),
}
LASTING = ["leaving"] * 9
CHANGES_NOTHING = {"list", "endpoints"}
FAULTS: list[tuple[list[str], tuple[int, bool], tuple[int, bool]]] = [
    # what happens to each request, then how often it is sent and whether it succeeds: first of requests that change
    # nothing, then of others
    ([], (1, True), (1, True)),
    (["leaving"], (2, True), (2, True)),
    (["leaving"] * 3, (4, True), (4, True)),
    (LASTING, (4, False), (4, False)),
    (["killed"], (2, True), (1, False)),
    (["killed"] * 9, (2, False), (1, False)),
    (["leaving", "killed"], (3, True), (2, False)),
    (["killed", "leaving"], (3, True), (1, False)),
]


@pytest.mark.parametrize("client", ["python", "asyncio", "python with a limit", "go"])
@pytest.mark.parametrize("name", CLIENTS)
def test_requests_are_repeated_by_one_rule(programs: Path, folder: Path, name: str, client: str) -> None:
    """Owners that leave, restart or are killed while a request is in flight."""
    op, answer, request, command = CLIENTS[name]

    async def asynchronous(path: str) -> None:
        async with await st.aio.connect(path, framework="numpy", reconnect=2) as c:
            await request(c)  # type: ignore[arg-type,misc]

    for i, (faults, nothing, change) in enumerate(FAULTS):
        path = str(folder / f"{i}.sock")
        owner = Faulty(path, op, answer, [*faults])
        if client == "go":
            done = subprocess.run(
                [str(programs / "sharedtensor"), *command, "--socket", path], capture_output=True, text=True, timeout=60
            )
            found = owner.sent, done.returncode == 0
        else:
            try:
                if client == "asyncio":
                    asyncio.run(asynchronous(path))
                else:
                    limit = 30 if "limit" in client else None
                    with st.connect(path, framework="numpy", reconnect=2, timeout=limit) as c:
                        request(c)
                found = owner.sent, True
            except (st.UnavailableError, st.ConnectionLostError):
                found = owner.sent, False
        owner.close()
        want = nothing if name in CHANGES_NOTHING else change
        if faults == LASTING and client in ("go", "python with a limit"):  # commands of Go have a time limit
            want = (10, True)
        assert found == want, faults
