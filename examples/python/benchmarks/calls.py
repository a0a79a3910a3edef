"""Small calls, calls with a tensor, and calls of asyncio, each beside its rival in the same run.

    go build -o /tmp/st/ ./examples/python/internal/benchowner ./cmd/sharedtensor
    python examples/python/benchmarks/calls.py --programs /tmp/st

A line has the median of the rounds in microseconds and the ratio to its rival. Rivals that are not installed are left
out. The machine must be idle: other work changes both figures.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing as mp
import pickle
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sharedtensor as st

VALUES = {"name": "x", "scale": 2.0, "steps": [1, 2, 3]}
WORKER = """
import sys
import sharedtensor as st
with st.connect(sys.argv[1], framework=sys.argv[2]) as c, c.offer(first=lambda x: x):
    print("ready", flush=True)
    sys.stdin.read()
"""


def median(work: Callable[[], object], seconds: float) -> float:
    """Returns the median time of runs in seconds."""
    times = []
    for _ in range(20):
        work()
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def compare(title: str, mine: Callable[[], object], rival: Callable[[], object], target: float, options: Any) -> None:
    """Prints the medians of both, which take turns, and the ratio."""
    pairs = [(median(mine, options.seconds), median(rival, options.seconds)) for _ in range(options.rounds)]
    a, b = (statistics.median(side) * 1e6 for side in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    print(f"{title:58} {a:10.1f} µs {b:10.1f} µs {ratio:7.2f}   target {target:.1f}", flush=True)


def echo(path: str) -> None:
    """Is the process behind the bare socket: it answers pickles."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    conn, _ = listener.accept()
    while head := conn.recv(4, socket.MSG_WAITALL):
        pickle.loads(conn.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))
        body = pickle.dumps({"value": 1.0})
        conn.sendall(struct.pack(">I", len(body)) + body)


def torch_echo(asked: Any, answered: Any) -> None:
    """Is the process behind torch's queues: it returns each tensor."""
    while (x := asked.get()) is not None:
        answered.put(x)


def bare(path: str) -> Callable[[], object]:
    """Starts the process of `echo` and returns what calls it."""
    mp.get_context("spawn").Process(target=echo, args=(path,), daemon=True).start()
    conn = socket.socket(socket.AF_UNIX)
    until = time.monotonic() + 20
    while True:
        try:
            conn.connect(path)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)

    def call() -> object:
        body = pickle.dumps(VALUES)
        conn.sendall(struct.pack(">I", len(body)) + body)
        size = struct.unpack(">I", conn.recv(4, socket.MSG_WAITALL))[0]
        return pickle.loads(conn.recv(size, socket.MSG_WAITALL))

    return call


def workers(options: Any, folder: str) -> None:
    """A tensor goes to a Python worker and back, beside torch's queues."""
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: no rival for workers")
        return
    import torch
    import torch.multiprocessing as tmp

    path = f"{folder}/w.sock"
    owner = subprocess.Popen([options.programs / "sharedtensor", "serve", "--offers", "--socket", path])
    context = tmp.get_context("spawn")
    asked, answered = context.Queue(), context.Queue()
    process = context.Process(target=torch_echo, args=(asked, answered), daemon=True)
    process.start()
    try:
        with st.connect(path, wait=20, framework="torch") as client:
            worker = subprocess.Popen(
                [sys.executable, "-c", WORKER, path, "torch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert worker.stdout is not None and worker.stdout.readline()
            for mib in (1, 1024) if options.large else (1,):
                x = st.empty((mib << 18,), framework="torch")
                x.fill_(1)
                shared = torch.ones(mib << 18).share_memory_()

                def rival(shared: Any = shared) -> object:
                    asked.put(shared)
                    return answered.get()

                compare(
                    f"Python worker and back, {mib} MiB (torch queues)",
                    lambda x=x: client.call("first", x=x),  # type: ignore[misc]
                    rival,
                    1.0,
                    options,
                )
            worker.kill()
            worker.wait()
    finally:
        asked.put(None)
        owner.terminate()
        owner.wait()


async def many(client: st.aio.Client[Any], seconds: float) -> float:
    """Returns the calls in a second of 64 coroutines."""
    done = 0
    until = time.perf_counter() + seconds

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < until:
            await client.ping()
            done += 1

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(64)))
    return done / (time.perf_counter() - begin)


async def many_grpc(path: str, seconds: float) -> float:
    """The same with grpc.aio, over a Unix socket to a server of grpc.aio."""
    import grpc

    done = 0
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method = channel.unary_unary("/bench/ping")
        await method(b"", wait_for_ready=True)
        begin = time.perf_counter()
        until = begin + seconds

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() < until:
                await method(b"")
                done += 1

        await asyncio.gather(*(caller() for _ in range(64)))
        return done / (time.perf_counter() - begin)


def grpc_server(path: str) -> None:
    """Is the server of `many_grpc`."""
    import grpc

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            async def ping(request: bytes, context: Any) -> bytes:
                return request

            return grpc.unary_unary_rpc_method_handler(ping)

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handler(),))
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        await server.wait_for_termination()

    asyncio.run(serve())


def concurrent(client: st.Client[Any], options: Any, folder: str) -> None:
    """64 calls at once."""
    if importlib.util.find_spec("grpc") is None:
        print("grpcio is not installed: no rival for asyncio")
        return
    path = f"{folder}/g.sock"
    mp.get_context("spawn").Process(target=grpc_server, args=(path,), daemon=True).start()

    async def both() -> list[tuple[float, float]]:
        a = st.aio.Client(client)
        return [(await many(a, options.seconds), await many_grpc(path, options.seconds)) for _ in range(options.rounds)]

    pairs = asyncio.run(both())
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    title = "asyncio, 64 at once (grpc.aio), calls in a second"
    print(f"{title:58} {a:13.0f} {b:13.0f} {ratio:7.2f}   target 3.0 or more")


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True, help="the folder with benchowner and sharedtensor")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each side of a round")
    parser.add_argument("--large", action="store_true", help="also 1 GiB to a Python worker")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        path = f"{folder}/s.sock"
        owner = subprocess.Popen([options.programs / "benchowner", path])
        try:
            with st.connect(path, wait=20, framework="numpy") as client:
                x = st.empty((1 << 18,), framework="numpy")
                x[:] = 1

                def plain() -> object:
                    return client.call("plain", **VALUES)

                compare("Python to Go, a ping (socket, pickle)", client.ping, bare(f"{folder}/p.sock"), 0.6, options)
                compare("Python to Go, no tensor (socket, pickle)", plain, bare(f"{folder}/b.sock"), 0.6, options)
                small = np.ones(256, np.float32)
                held = st.empty((256,), framework="numpy")
                held[:] = 1
                compare("Python to Go, 1 KiB (no tensor)", lambda: client.call("first", x=small), plain, 1.4, options)
                compare("the same in shared memory", lambda: client.call("first", x=held), plain, 1.4, options)
                compare("1 KiB to Go and back (no tensor)", lambda: client.call("copy", x=small), plain, 1.4, options)
                compare("Python to Go, 1 MiB (no tensor)", lambda: client.call("first", x=x), plain, 1.2, options)
                concurrent(client, options, folder)
        finally:
            owner.terminate()
            owner.wait()
        workers(options, folder)


if __name__ == "__main__":
    main()
