"""torch on a real GPU: models in place, versions under captured graphs, calls and crashes. GPU_TEST=require fails
without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Owner, eventually

import sharedtensor as st

if os.environ.get("GPU_TEST") == "require":
    import cuda.bindings
    import torch

    assert torch.cuda.is_available(), "GPU_TEST=require: torch finds no GPU"
    del cuda
else:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU", allow_module_level=True)

MIB = 1 << 20

WORKER = """
import sys
import torch
import sharedtensor as st

def scale(x, factor: float = 2.0):
    assert x.is_cuda
    return x * factor

c = st.connect(sys.argv[1], framework="torch", wait=20)
with c.offer(calls=2, scale=scale) as offer:
    print("offered", flush=True)
    offer.wait()
"""

EXPANDABLE = """
import sys
import torch
import sharedtensor as st

c = st.connect(sys.argv[1], framework="torch")
x = torch.arange(1000, device="cuda", dtype=torch.float32)
c.publish("expandable", {"x": x})
assert torch.equal(c.acquire("expandable")["x"], x)
y = c.call("double", x=x)
assert torch.equal(y, 2 * x)
"""


GENERATE = """
import json, sys, time
import torch, transformers
import sharedtensor as st

shape = dict(hidden_size=2048, intermediate_size=5504, num_hidden_layers=16, num_attention_heads=16, vocab_size=32000)
torch.set_default_dtype(torch.bfloat16)
torch.manual_seed(1)
torch.cuda.init()
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()
c = st.connect(sys.argv[1], framework="torch")
if sys.argv[2] == "publish":
    c.publish("llama", model.state_dict())
else:
    for p in model.parameters():
        p.data.zero_()
    st.load_into(model, "llama", client=c)
    torch.cuda.empty_cache()
allocated = torch.cuda.memory_allocated()
x = torch.arange(1, 17, device="cuda")[None]
with torch.no_grad():
    y = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=16, do_sample=False, pad_token_id=0)
nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
print(json.dumps({"tokens": y[0].tolist(), "allocated": allocated, "nbytes": nbytes}), flush=True)
sys.stdin.readline()
"""


def environment(**variables: str) -> dict[str, str]:
    paths = [str(Path(st.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **variables}


def free_memory() -> int:
    return int(torch.cuda.mem_get_info()[0])


@pytest.fixture
def owner(make_owner: Callable[..., Owner]) -> Owner:
    """An owner of the GPU that accepts publications and offers."""
    return make_owner("serve", "--device", "cuda:0", "--offers")


@pytest.fixture
def client(owner: Owner) -> Iterator[st.Client[Any]]:
    torch.cuda.init()
    with st.connect(owner.socket, framework="torch") as c:
        yield c


def test_a_model_is_used_in_place(client: st.Client[Any]) -> None:
    made = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 512)).cuda()
    client.publish("mlp", made.state_dict())
    x = torch.randn(8, 4096, device="cuda")
    want = made(x)
    torch.cuda.synchronize()
    before, allocated = free_memory(), torch.cuda.memory_allocated()
    model = client.acquire("mlp")
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 512))
    other.load_state_dict(model, assign=True)
    assert other[0].weight.data_ptr() == model["0.weight"].data_ptr() and other[0].weight.is_cuda
    assert torch.cuda.memory_allocated() == allocated and before - free_memory() < 8 * MIB, "the model was copied"
    assert torch.equal(other(x), want)
    del model
    assert torch.equal(other(x), want), "the module's memory went with the model"


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "bool", "complex64"])
def test_types_cross(client: st.Client[Any], name: str) -> None:
    dtype = getattr(torch, name)
    bits = torch.arange(96, dtype=torch.uint8, device="cuda")
    x = (bits % 2).bool() if dtype is torch.bool else bits.view(dtype)
    client.publish("types", {"x": x, "gaps": x[::2], "empty": x[:0]})
    got = client.acquire("types")
    assert got["x"].dtype is dtype and got["x"].is_cuda and got["empty"].shape == (0,)
    for key, want in (("x", x), ("gaps", x[::2].contiguous())):
        assert torch.equal(got[key].contiguous().view(torch.uint8), want.view(torch.uint8)), key


def test_a_captured_graph_runs_on_the_next_version(client: st.Client[Any]) -> None:
    client.publish("step", {"w": torch.full((1024, 1024), 1.0, device="cuda")})
    model = client.acquire("step")
    w = model["w"]
    x, y = torch.ones(1024, device="cuda"), torch.empty(1024, device="cuda")
    torch.mv(w, x, out=y)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mv(w, x, out=y)
    for version in (1, 2, 3):
        if version > 1:
            client.publish("step", {"w": torch.full((1024, 1024), float(version), device="cuda")})
            model.remap(client.acquire("step"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.all(y == 1024 * version), version
        assert w.data_ptr() == model["w"].data_ptr()


def test_unmapped_memory_is_free_for_others_and_comes_back(client: st.Client[Any], owner: Owner) -> None:
    nbytes = 512 * MIB
    client.publish("sleep", {"w": torch.full((nbytes // 4,), 3.0, device="cuda")})
    torch.cuda.empty_cache()
    model = client.acquire("sleep")
    w = model["w"]
    model.unmap()
    model.map()
    assert torch.all(w == 3)
    before = free_memory()
    client.withdraw("sleep")
    model.close()
    del model, w
    eventually(lambda: free_memory() - before >= nbytes, "the memory is free again")


def test_tensors_outlive_a_killed_owner(client: st.Client[Any], owner: Owner) -> None:
    client.publish("kept", {"w": torch.arange(1 << 20, device="cuda", dtype=torch.float32)})
    w = client.acquire("kept")["w"]
    owner.kill()
    taken = [torch.full((64 * MIB,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
    assert torch.equal(w, torch.arange(1 << 20, device="cuda", dtype=torch.float32))
    del taken
    owner.restart()


def test_a_worker_computes_on_the_gpu(client: st.Client[Any], owner: Owner) -> None:
    command = [sys.executable, "-c", WORKER, owner.socket]
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "offered\n"
        x = torch.randn(1 << 20, device="cuda")
        for _ in range(20):
            y = client.call("scale", x=x, factor=3.0)
            assert y.is_cuda and torch.equal(y, x * 3)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def test_processes_with_a_language_model_have_one_copy(owner: Owner) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    running: list[subprocess.Popen[str]] = []
    answers: list[dict[str, Any]] = []
    try:
        for role in ("publish", "attach", "attach"):
            command = [sys.executable, "-c", GENERATE, owner.socket, role]
            pipe = subprocess.PIPE
            running.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment()))
            output = running[-1].stdout
            assert output is not None
            answers.append(json.loads(output.readline()))
    finally:
        for process in running:
            process.kill()
            process.communicate()
    first, *others = answers
    assert first["nbytes"] > 1 << 30 and first["allocated"] >= first["nbytes"]
    for other in others:
        assert other["tokens"] == first["tokens"]
        assert other["allocated"] < 64 * MIB, "the weights are not the owner's"


def test_calls_pass_memory_of_torch(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("gpuowner")
    with st.connect(owner.socket, framework="torch") as c:
        x = torch.arange(1000, device="cuda", dtype=torch.float32)
        assert torch.equal(c.call("double", x=x), 2 * x)
        assert torch.equal(c.call("double", x=x[100:200]), 2 * x[100:200]), "part of an allocation"


def test_expandable_segments(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("gpuowner")
    setting = "expandable_segments:True"
    env = environment(PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    done = subprocess.run(
        [sys.executable, "-c", EXPANDABLE, owner.socket], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stdout + done.stderr
