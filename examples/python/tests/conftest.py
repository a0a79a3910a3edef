"""Real owners for the tests: the Go command and the Go programs of the tests, built once, each in a separate
process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sharedtensor as st

ROOT = Path(__file__).resolve().parents[3]
VECTORS = ROOT / "wire" / "testdata"


def pytest_report_header() -> list[str]:
    import numpy as np

    lines = [f"python {sys.version.split()[0]}, numpy {np.__version__}"]
    for name in ("torch", "ml_dtypes", "cbor2"):
        try:
            module = __import__(name)
            lines.append(f"{name} {getattr(module, '__version__', 'installed')}")
        except ImportError:
            lines.append(f"{name}: NOT INSTALLED, tests that need it are skipped")
    return lines


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A folder with the Go programs: sharedtensor, owner (from examples/service) and the programs of this folder."""
    given = os.environ.get("SHAREDTENSOR_PROGRAMS")
    if given:
        yield Path(given)
        return
    if shutil.which("go") is None:
        pytest.skip("go is not installed: no owner to test against")
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        command = [
            "go",
            "build",
            "-o",
            folder + "/",
            "./cmd/sharedtensor",
            "./examples/service/owner",
            "./examples/python/...",
        ]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CGO_ENABLED": "0"})
        yield Path(folder)


class Owner:
    """An owner in a separate process."""

    def __init__(self, command: list[str], socket: str, env: dict[str, str] | None = None) -> None:
        self.command = command
        self.socket = socket
        self.env = env
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, **(self.env or {})}
        process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if process.poll() is not None:
                assert process.stderr is not None
                raise AssertionError(f"{self.command}: {process.stderr.read().decode()}")
            try:
                st.connect(self.socket).close()
                return process
            except st.UnavailableError:
                time.sleep(0.02)
        raise AssertionError(f"{self.command} does not serve")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self.process.wait(30)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def restart(self) -> None:
        self.process = self._start()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.end()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path that is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="st") as name:
        yield Path(name)


@pytest.fixture
def make_owner(programs: Path, folder: Path) -> Iterator[Callable[..., Owner]]:
    """Starts owners: `make("owner")` starts examples/service, `make("serve", "name=file")` the command."""
    made: list[Owner] = []

    def make(kind: str = "owner", *args: str, socket: str = "s.sock", env: dict[str, str] | None = None) -> Owner:
        path = str(folder / socket)
        command = (
            [str(programs / "sharedtensor"), "serve", "--socket", path, *args]
            if kind == "serve"
            else [str(programs / kind), path, *args]
        )
        made.append(Owner(command, path, env))
        return made[-1]

    yield make
    for owner in made:
        owner.stop()


class Gateway:
    """A gateway in a separate process, on free ports, and with an owner that accepts offers.

    :ivar http: the URL of its HTTP listener; `grpc` is HOST:PORT and `nats` a URL.
    """

    def __init__(self, programs: Path, folder: Path, *args: str) -> None:
        self.socket = str(folder / "g.sock")
        self.owner = Owner([str(programs / "sharedtensor"), "serve", "--offers", "--socket", self.socket], self.socket)
        self.folder = folder
        self.args = args
        self.log = folder / "gateway.log"
        self.program = str(programs / "sharedtensor-gateway")
        self._workers: list[subprocess.Popen[str]] = []
        try:
            self.start("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")
        except BaseException:
            self.owner.stop()
            raise

    def start(self, http: str, grpc: str, nats: str) -> None:
        """Starts the process and waits until it serves."""
        command = [self.program, "serve", "--owner", self.socket, "--http", http, "--grpc", grpc]
        command += [
            "--nats-listen",
            nats,
            "--store",
            str(self.folder / "store"),
            "--lame-duck",
            "0s",
            "--compute-default",
            "model",
            "--stream-generate",
            *self.args,
        ]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log)
        until = time.monotonic() + 60
        while (found := re.search(r"msg=serving http=(\S+) grpc=(\S+) nats=(\S+)", self.log.read_text())) is None:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)
        self.http, self.grpc, self.nats = f"http://{found[1]}", found[2], found[3]

    def restart(self) -> None:
        """Kills the gateway and starts it again on the same ports."""
        self.process.kill()
        self.process.wait(30)
        self.start(self.http.removeprefix("http://"), self.grpc, self.nats.removeprefix("nats://"))

    def offer(self, program: str) -> None:
        """Runs a Python program that offers functions, until the gateway stops. It prints a line when it has."""
        command = [sys.executable, "-c", program, self.socket]
        env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent)}
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self._workers.append(worker)
        assert worker.stdout is not None
        assert worker.stdout.readline(), "the worker offered nothing"

    def end_worker(self) -> None:
        """Kills the worker that was started last."""
        worker = self._workers.pop()
        worker.kill()
        worker.wait(30)
        if worker.stdout is not None:
            worker.stdout.close()

    def stop(self) -> None:
        for process in [*self._workers, self.process]:
            process.kill()
            process.wait(30)
        for worker in self._workers:
            if worker.stdout is not None:
                worker.stdout.close()
        self.owner.stop()


@pytest.fixture(scope="session")
def gateway(programs: Path) -> Iterator[Gateway]:
    """A gateway for all tests that do not stop it."""
    yield from _gateway(programs)


@pytest.fixture
def own_gateway(programs: Path) -> Iterator[Gateway]:
    """A gateway that a test may stop."""
    yield from _gateway(programs)


def _gateway(programs: Path) -> Iterator[Gateway]:
    if not (programs / "sharedtensor-gateway").exists():
        pytest.skip("sharedtensor-gateway is not among the programs: .ci/remote builds it")
    with tempfile.TemporaryDirectory(prefix="st") as name:
        started = Gateway(programs, Path(name))
        yield started
        started.stop()


@pytest.fixture(scope="module")
def module_owner(programs: Path) -> Iterator[Owner]:
    """The owner of examples/service, shared by the tests of a file."""
    with tempfile.TemporaryDirectory(prefix="st") as name:
        owner = Owner([str(programs / "owner"), f"{name}/s.sock"], f"{name}/s.sock")
        yield owner
        owner.stop()


@pytest.fixture
def client(module_owner: Owner) -> Iterator[st.Client]:
    """A numpy client of that owner."""
    with st.connect(module_owner.socket, framework="numpy") as c:
        yield c


def eventually(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits for the condition, and fails if it does not become true."""
    import gc

    until = time.monotonic() + seconds
    while not condition():
        gc.collect()
        assert time.monotonic() < until, what
        time.sleep(0.02)


def descriptors() -> int:
    """Returns the number of descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def mappings() -> list[str]:
    """Returns the lines of this process's memory map for shared tensors."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]
