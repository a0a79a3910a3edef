"""Figures of the Python client beside what people would use instead, in one run. Rivals that are not installed are left
out.

    go build -o /tmp/st/ ./examples/python/internal/benchowner
    python examples/python/bench.py --programs /tmp/st

In each round all of a table take turns. A line has the median of the rounds, and after it, as a multiple of the first
line, the median and the range over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import multiprocessing as mp
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import sharedtensor as st
from sharedtensor import safetensors_file

MIB = 1 << 20
Work = Callable[[], object]


def once(work: Work, seconds: float, least: int = 3) -> float:
    """Returns the seconds that the quickest tenth of runs take at most: other work on the machine disturbs them
    least."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < until:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 10]


def table(title: str, contenders: dict[str, Work], options: argparse.Namespace) -> None:
    """Has the contenders take turns, and prints a line for each."""
    print(f"\n{title}", flush=True)
    for work in contenders.values():
        work()
    rounds = [{name: once(work, options.seconds) for name, work in contenders.items()} for _ in range(options.rounds)]
    first = next(iter(contenders))
    for name in contenders:
        seconds = statistics.median(r[name] for r in rounds)
        ratios = sorted(r[name] / r[first] for r in rounds)
        figure = f"{seconds * 1e6:10.0f} µs" if seconds < 0.01 else f"{seconds * 1e3:10.1f} ms"
        multiple = "" if name == first else f"{statistics.median(ratios):9.2f}   {ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"  {name:50} {figure} {multiple}", flush=True)


def attach(client: st.Client, folder: Path, options: argparse.Namespace) -> None:
    """A model of a thousand tensors, 64 MiB: until each of them is there to be used."""
    tensors = {f"layers.{i}.weight": np.ones((128, 128), np.float32) for i in range(1000)}
    file = folder / "m.safetensors"
    safetensors_file.write(file, st.state_dict(tensors, framework="numpy"))
    client.publish("m", tensors)
    for framework, short in (("numpy", "np"), ("torch", "pt")):
        if not has(framework):
            continue
        contenders: dict[str, Work] = {
            "acquire, all tensors made": lambda f=framework: dict(client.acquire("m", framework=f)),  # type: ignore[misc]
            "acquire, no tensor looked at": lambda f=framework: client.acquire("m", framework=f),  # type: ignore[misc]
        }
        if has("safetensors"):
            contenders["safetensors.safe_open, all tensors"] = lambda s=short: opened(file, s)  # type: ignore[misc]
            load = importlib.import_module(f"safetensors.{framework}").load_file
            contenders[f"safetensors.{framework}.load_file"] = lambda load=load: load(file)  # type: ignore[misc]
        table(f"attach, 1,000 tensors, 64 MiB, as {framework}", contenders, options)


def opened(file: Path, framework: str) -> None:
    """Makes all tensors of a file by mapping it."""
    from safetensors import safe_open

    with safe_open(file, framework) as f:
        for key in f.keys():
            f.get_tensor(key)


def publish(client: st.Client, options: argparse.Namespace) -> None:
    """64 MiB of parameters, step after step."""
    source, target = np.ones(16 * MIB, np.float32), np.ones(16 * MIB, np.float32)
    with st.connect(client.path, keep=0) as fresh:
        contenders: dict[str, Work] = {
            "publish, memory reused": lambda: client.publish("p", {"w": source}),
            "publish, fresh memory": lambda: fresh.publish("q", {"w": source}),
            "a copy within this process (floor)": lambda: np.copyto(target, source),
            "multiprocessing.shared_memory, fresh": lambda: block(source),
        }
        if has("ray"):
            import ray

            contenders["ray.put"] = lambda: ray.put(source)
        table("publish 64 MiB", contenders, options)


def block(source: np.ndarray[Any, Any]) -> None:
    """Puts an array into shared memory of its own, and takes that away again."""
    from multiprocessing import shared_memory

    memory = shared_memory.SharedMemory(create=True, size=source.nbytes)
    np.copyto(np.ndarray(source.shape, source.dtype, memory.buf), source)
    memory.close()
    memory.unlink()


def call(client: st.Client, options: argparse.Namespace) -> None:
    """A tensor goes to another process, which looks at its first element."""
    for mib in (1 / 1024, 1, 64):
        n = int(mib * MIB) // 4
        shared = st.empty((n,), framework="numpy")
        shared[:] = 1
        ordinary = np.ones(n, np.float32)
        with ExitStack() as stack:
            contenders: dict[str, Work] = {
                "call, tensor in shared memory": lambda x=shared: client.call("first", x=x),  # type: ignore[misc]
                "call, ordinary array, copied once": lambda x=ordinary: client.call("first", x=x),  # type: ignore[misc]
                "a request and its answer, nothing in it (floor)": client.ping,
            }
            ask = stack.enter_context(other_process(mp.get_context("spawn")))
            contenders["multiprocessing.Pipe, numpy"] = lambda ask=ask, x=ordinary: ask(x)  # type: ignore[misc]
            if has("torch"):
                import torch
                import torch.multiprocessing

                context = torch.multiprocessing.get_context("spawn")
                ask = stack.enter_context(other_process(context))
                tensor = torch.ones(n)
                contenders["torch.multiprocessing, a new tensor each time"] = (
                    lambda ask=ask, x=tensor: ask(x.clone())  # type: ignore[misc]
                )
            if has("ray"):
                import ray

                actor = ray.remote(Actor).options(num_cpus=0).remote()
                contenders["Ray actor, numpy"] = (
                    lambda actor=actor, x=ordinary: ray.get(actor.first.remote(x))  # type: ignore[misc]
                )
            table(f"call with a tensor of {'1 KiB' if mib < 1 else f'{mib:.0f} MiB'}", contenders, options)


@contextmanager
def other_process(context: Any) -> Iterator[Callable[[Any], None]]:
    """Starts a process that answers with the first element of what it gets by a pipe, and gives what asks it."""
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there,))
    process.start()

    def ask(x: Any) -> None:
        here.send(x)
        here.recv()

    yield ask
    here.send(None)
    process.join()


def answer(pipe: Any) -> None:
    """Is the other process."""
    while (x := pipe.recv()) is not None:
        pipe.send(float(x.reshape(-1)[0]))


class Actor:
    """What Ray calls."""

    def first(self, x: Any) -> float:
        """Returns the first element."""
        return float(x[0])


without: list[str] = []
"""Modules that are left out although they are installed."""


def has(module: str) -> bool:
    """Reports whether a module is installed."""
    return module not in without and importlib.util.find_spec(module) is not None


def main() -> None:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True, help="the folder with the program benchowner")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each line of a round")
    parser.add_argument("--without", action="append", default=[], help="leave a rival out, such as ray")
    options = parser.parse_args()
    without.extend(options.without)
    for name in ("numpy", "torch", "safetensors", "ray"):
        print(name, importlib.import_module(name).__version__ if has(name) else "is not installed")
    if has("ray"):
        import ray

        try:
            ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
        except Exception as err:
            parser.error(f"Ray is installed and does not start: {err}")
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
