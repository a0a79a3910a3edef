"""Figures of the Python client with memory of a GPU, beside safetensors and torch.multiprocessing in the same run.

    go build -o /tmp/st/ ./cmd/sharedtensor
    python examples/python/gpu_bench.py --programs /tmp/st

A line has the median of the runs and their range. The models are in the page cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

import sharedtensor as st
from sharedtensor import safetensors_file

MIB = 1 << 20

WORKER = """
import sys
import sharedtensor as st

def first(x):
    return float(x.reshape(-1)[0])

with st.connect(sys.argv[1], framework="torch", wait=20).offer(first=first) as offer:
    print("offered", flush=True)
    offer.wait()
"""


ENGINE = """
import sys, time
import torch, transformers
import sharedtensor as st

transformers.utils.logging.disable_progress_bar()
socket, folder, role = sys.argv[1:]
shape = dict(hidden_size=2048, intermediate_size=5504, num_hidden_layers=16, num_attention_heads=16, vocab_size=32000)
config = transformers.LlamaConfig(**shape)
torch.set_default_dtype(torch.bfloat16)
torch.zeros(1, device="cuda")
c = st.connect(socket, framework="torch")
begin = time.perf_counter()
if role == "make":
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    c.publish("llama", model.state_dict())
elif role == "read":
    model = transformers.LlamaForCausalLM.from_pretrained(folder, device_map="cuda", dtype=torch.bfloat16)
else:
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    with torch.device("cuda"):
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    st.load_into(model, "llama", client=c)
torch.cuda.synchronize()
print(time.perf_counter() - begin)
x = torch.arange(1, 17, device="cuda")[None]
with torch.no_grad():
    model(x)
"""


def measure(name: str, work: Callable[[], object], runs: int) -> None:
    """Prints a line for the work, which is run once before it is measured."""
    work()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    low, middle, high = (f"{t * 1e3:.2f}" for t in (min(times), statistics.median(times), max(times)))
    print(f"  {name:58} {middle:>9} ms ({low} to {high})", flush=True)


def title(text: str) -> None:
    """Prints the title of a table."""
    print(f"\n{text}", flush=True)


def model(mib: int, count: int = 300) -> dict[str, torch.Tensor]:
    """Returns a model of that many tensors on the GPU."""
    n = mib * MIB // 2 // count
    names = [f"layers.{i}.weight" for i in range(count)]
    return {name: torch.full((n,), float(i % 100), dtype=torch.float16, device="cuda") for i, name in enumerate(names)}


def attach(client: st.Client[Any], folder: Path, runs: int) -> None:
    """Until each tensor can be used, also its first element."""
    from safetensors.torch import load_file

    for mib in (64, 1024, 8192):
        tensors = model(mib)
        name, file = f"attach{mib}", folder / f"{mib}.safetensors"
        client.publish(name, tensors)
        safetensors_file.write(file, st.state_dict({k: v.cpu() for k, v in tensors.items()}, framework="torch"))
        title(f"attach a model of 300 tensors, {mib} MiB")
        measure("sharedtensor, all tensors made", lambda name=name: dict(client.acquire(name)), runs)  # type: ignore[misc]
        measure("sharedtensor, new connection", lambda name=name: connected(client.path, name), runs)  # type: ignore[misc]
        measure("safetensors.torch.load_file(device='cuda')", lambda file=file: load_file(file, device="cuda"), runs)  # type: ignore[misc]
        with receiver() as send:
            measure("torch.multiprocessing, sent by its owner", lambda t=tensors: send(t), runs)  # type: ignore[misc]
        title(f"publish it from torch, {mib} MiB")
        measure("sharedtensor, a copy on the GPU", lambda t=tensors: client.publish("published", t), runs)  # type: ignore[misc]
        measure("clone of each tensor within the process", lambda t=tensors: [x.clone() for x in t.values()], runs)  # type: ignore[misc]
        client.withdraw("published")
        client.withdraw(name)
        file.unlink()


def connected(socket: str, name: str) -> dict[str, Any]:
    """Connects and makes all tensors of a model."""
    with st.connect(socket, framework="torch") as c:
        return dict(c.acquire(name))


def engine(client: st.Client[Any], folder: Path, runs: int) -> None:
    """Until a new process can use a Llama with random weights, without the time to import its modules."""
    if importlib.util.find_spec("transformers") is None:
        return
    title("weights of a Llama of 1.9 GB in a new process")
    found: dict[str, list[float]] = {}
    for role in ["make", *["attach", "read"] * min(runs, 3)]:
        command = [sys.executable, "-c", ENGINE, client.path, str(folder / "llama"), role]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found.setdefault(role, []).append(float(done.stdout))
    for role, name in (
        ("attach", "st.load_into, module on the device meta"),
        ("read", "from_pretrained(device_map='cuda')"),
    ):
        times = found[role]
        low, middle, high = (f"{t * 1e3:.2f}" for t in (min(times), statistics.median(times), max(times)))
        print(f"  {name:58} {middle:>9} ms ({low} to {high})", flush=True)
    client.withdraw("llama")


def switch(client: st.Client[Any], runs: int) -> None:
    """The next version of a model takes the place of this one under tensors that a program uses."""
    tensors = model(1024)
    client.publish("switch", tensors)
    used = client.acquire("switch")
    dict(used)
    client.publish("switch", tensors)

    def next_version() -> None:
        newer = client.acquire("switch", 1 + used.version % 2)
        used.remap(newer)

    title("switch to another version, 1024 MiB")
    keep = [client.acquire("switch", 1), client.acquire("switch", 2)]
    measure("sharedtensor, at the same addresses", next_version, runs)
    copies = {name: t.clone() for name, t in tensors.items()}
    measure("copy_ into each parameter", lambda: [copies[name].copy_(t) for name, t in tensors.items()], runs)
    del keep


def call(client: st.Client[Any], runs: int) -> None:
    """A tensor goes to another process, which answers with its first element."""
    worker = subprocess.Popen([sys.executable, "-c", WORKER, client.path], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    worker.stdout.readline()
    try:
        with receiver() as send:
            for mib in (1, 64, 1024):
                x = torch.ones(mib * MIB // 4, device="cuda")
                title(f"a tensor of {mib} MiB to a function of another process")
                measure("sharedtensor, call of a worker in Python", lambda x=x: client.call("first", x=x), runs)  # type: ignore[misc]
                measure("torch.multiprocessing, the same tensor", lambda x=x: send({"x": x}), runs)  # type: ignore[misc]
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


@contextmanager
def receiver() -> Iterator[Callable[[dict[str, torch.Tensor]], None]]:
    """Starts a process that receives tensors and answers with the first element of the first."""
    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=answer, args=(there,))
    process.start()

    def send(tensors: dict[str, torch.Tensor]) -> None:
        here.send(tensors)
        here.recv()

    yield send
    here.send(None)
    process.join()


def answer(pipe: Any) -> None:
    """Runs in the other process."""
    while (tensors := pipe.recv()) is not None:
        pipe.send(float(next(iter(tensors.values())).reshape(-1)[0]))
        del tensors


def main() -> None:
    """Runs all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=Path, required=True, help="the folder with the program sharedtensor")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    with tempfile.TemporaryDirectory(prefix="st") as name:
        socket = f"{name}/s.sock"
        command = [options.programs / "sharedtensor", "serve", "--device", "cuda:0", "--offers", "--socket", socket]
        owner = subprocess.Popen([*command, "--log-level", "warn"], stdout=subprocess.DEVNULL)
        try:
            with st.connect(socket, wait=20, framework="torch") as client:
                attach(client, Path(name), options.runs)
                engine(client, Path(name), options.runs)
                switch(client, options.runs)
                call(client, options.runs)
        finally:
            owner.terminate()
            owner.wait()


if __name__ == "__main__":
    main()
