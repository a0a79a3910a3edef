"""Figures of the Python client beside what people would use instead, in one run. Rivals that are not installed are left
out.

    go build -o /tmp/st/ ./examples/python/internal/benchowner
    python examples/python/bench.py --programs /tmp/st
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sharedtensor as st
from sharedtensor import safetensors_file

MIB = 1 << 20


def measure(work: Callable[[], object], seconds: float, least: int = 5) -> float:
    """Returns the median seconds of a piece of work, done again and again for a while."""
    work()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < until:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def show(what: str, seconds: float, floor: float | None = None) -> None:
    """Prints one figure, and its ratio to the floor."""
    unit = f"{seconds * 1e6:10.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:10.1f} ms"
    print(f"  {what:58} {unit}" + (f"   {seconds / floor:8.2f}" if floor else ""), flush=True)


def attach(client: st.Client, folder: Path, options: argparse.Namespace) -> None:
    """A model of a thousand tensors, 64 MiB: until each of them is there to be used."""
    tensors = {f"layers.{i}.weight": np.ones((128, 128), np.float32) for i in range(1000)}
    file = folder / "m.safetensors"
    safetensors_file.write(file, st.state_dict(tensors, framework="numpy"))
    client.publish("m", tensors)
    frameworks = ["numpy", *(["torch"] if has("torch") else [])]
    for framework in frameworks:
        print(f"attach, 1,000 tensors, 64 MiB, as {framework}")
        floor = measure(lambda f=framework: client.acquire("m", framework=f), options.seconds)  # type: ignore[misc]
        show("acquire, no tensor looked at", floor)
        show(
            "acquire, all tensors made",
            measure(lambda f=framework: dict(client.acquire("m", framework=f)), options.seconds),
            floor,
        )  # type: ignore[misc]
        if not has("safetensors"):
            continue
        import importlib

        from safetensors import safe_open

        load = importlib.import_module(f"safetensors.{framework}").load_file
        short = {"numpy": "np", "torch": "pt"}[framework]
        show(f"safetensors.{framework}.load_file", measure(lambda load=load: load(file), options.seconds), floor)

        def opened(short: str = short) -> None:
            with safe_open(file, short) as f:
                for key in f.keys():
                    f.get_tensor(key)

        show("safe_open, all tensors", measure(opened, options.seconds), floor)


def publish(client: st.Client, options: argparse.Namespace) -> None:
    """64 MiB of parameters, step after step."""
    print("publish 64 MiB")
    source, target = np.ones(16 * MIB, np.float32), np.ones(16 * MIB, np.float32)
    floor = measure(lambda: np.copyto(target, source), options.seconds)
    show("copy within this process (floor)", floor)
    show("publish, memory reused", measure(lambda: client.publish("p", {"w": source}), options.seconds), floor)
    with st.connect(client.path, keep=0) as fresh:
        show("publish, fresh memory", measure(lambda: fresh.publish("q", {"w": source}), options.seconds), floor)
    from multiprocessing import shared_memory

    def block() -> None:
        memory = shared_memory.SharedMemory(create=True, size=64 * MIB)
        np.copyto(np.ndarray(source.shape, source.dtype, memory.buf), source)
        memory.close()
        memory.unlink()

    show("multiprocessing.shared_memory, fresh", measure(block, options.seconds), floor)
    if has("ray"):
        import ray

        show("ray.put", measure(lambda: ray.put(source), options.seconds), floor)


def answer(pipe: Any) -> None:
    """The other process of torch.multiprocessing and of a plain pipe."""
    while (x := pipe.recv()) is not None:
        pipe.send(float(x.reshape(-1)[0]))


def call(client: st.Client, options: argparse.Namespace) -> None:
    """A tensor goes to another process, which looks at its first element."""
    for mib in (1 / 1024, 1, 64):
        n = int(mib * MIB) // 4
        print(f"call with a tensor of {'1 KiB' if mib < 1 else f'{mib:.0f} MiB'}")
        floor = measure(client.ping, options.seconds)
        show("a request and its answer (floor)", floor)
        shared = st.empty((n,), framework="numpy")
        shared[:] = 1
        show(
            "call, tensor in shared memory", measure(lambda x=shared: client.call("first", x=x), options.seconds), floor
        )  # type: ignore[misc]
        ordinary = np.ones(n, np.float32)
        show(
            "call, ordinary array, copied once",
            measure(lambda x=ordinary: client.call("first", x=x), options.seconds),
            floor,
        )  # type: ignore[misc]
        rivals(n, floor, options)


def rivals(n: int, floor: float, options: argparse.Namespace) -> None:
    """The same by a pipe with pickle, by torch.multiprocessing and by Ray."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there,))
    process.start()
    ordinary = np.ones(n, np.float32)

    def ask(x: Any) -> None:
        here.send(x)
        here.recv()

    show("multiprocessing.Pipe, numpy", measure(lambda: ask(ordinary), options.seconds), floor)
    here.send(None)
    process.join()
    if has("torch"):
        import torch
        import torch.multiprocessing as tmp

        context = tmp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=answer, args=(there,))
        process.start()
        tensor = torch.ones(n)
        show(
            "torch.multiprocessing, a new tensor each time",
            measure(lambda: ask(tensor.clone()), options.seconds),
            floor,
        )
        here.send(None)
        process.join()
    if has("ray"):
        import ray

        actor = ray.remote(Actor).remote()
        show("Ray actor, numpy", measure(lambda: ray.get(actor.first.remote(ordinary)), options.seconds), floor)


class Actor:
    """What Ray calls."""

    def first(self, x: Any) -> float:
        """Returns the first element."""
        return float(x[0])


def has(module: str) -> bool:
    """Reports whether a module is installed."""
    import importlib.util

    return importlib.util.find_spec(module) is not None


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True, help="the folder with the program benchowner")
    parser.add_argument("--seconds", type=float, default=2, help="for each figure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="st") as name:
        socket = f"{name}/s.sock"
        owner = subprocess.Popen([options.programs / "benchowner", socket])
        try:
            with st.connect(socket, wait=10, framework="numpy") as client:
                attach(client, Path(name), options)
                publish(client, options)
                call(client, options)
        finally:
            owner.terminate()
            owner.wait()


if __name__ == "__main__":
    main()
