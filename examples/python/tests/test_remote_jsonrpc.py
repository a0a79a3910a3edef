"""Functions and tasks at a gateway over JSON-RPC."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Gateway

import sharedtensor as st
from sharedtensor.dtypes import DType
from sharedtensor.remote.elements import RawTensor, raw
from sharedtensor.remote.jsonrpc import Client, TaskInfo
from sharedtensor.remote.values import from_json, to_json

WORKER = """
import sys, time
import numpy as np
import sharedtensor as st

def add_numbers(a, b):
    return a + b

def create_tensor(shape):
    return np.zeros(shape, np.float32)

def load_model():
    ...

def identity(x):
    return x

def sleep(seconds: float):
    for i in range(int(seconds * 100)):
        if st.current_call().cancelled:
            return
        time.sleep(0.01)

with st.connect(sys.argv[1], framework="numpy", wait=20) as c:
    functions = dict(add_numbers=add_numbers, create_tensor=create_tensor, load_model=load_model)
    with c.offer(calls=4, identity=identity, sleep=sleep, **functions) as offer:
        print("offered", flush=True)
        offer.wait()
"""

# Quick Start of shared-tensor 0.1, with its import changed and the calls that its clients make.
README = """
from sharedtensor.remote.provider import AsyncSharedTensorProvider

# Create provider
provider = AsyncSharedTensorProvider(server_port=PORT)

# Share simple function
@provider.share()
def add_numbers(a, b):
    return a + b

# Share PyTorch function
@provider.share()
def create_tensor(shape):
    import torch
    return torch.zeros(shape)

# Load PyTorch model
@provider.share()
def load_model():
    ...

@provider.share(name="add_numbers", wait=False)
def add_later(a, b): ...

print(add_numbers(2, 3), list(create_tensor((2, 3)).shape), load_model())
task = add_later(20, 22)
print(provider.wait_for_task(task, timeout=30), provider.get_task_status(task).status, task in provider.list_tasks())
"""


@pytest.fixture(scope="module")
def served(gateway: Gateway) -> Gateway:
    gateway.offer(WORKER)
    return gateway


@pytest.fixture
def client(served: Gateway) -> Any:
    with Client(served.http, framework="numpy") as c:
        yield c


def test_readme_of_shared_tensor_runs(served: Gateway) -> None:
    program = README.replace("PORT", served.http.rpartition(":")[2])
    env = {"PYTHONPATH": str(Path(st.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 [2, 3] None\n42 completed True\n"


def test_calls_carry_values_and_tensors(client: Client) -> None:
    assert client.ping()
    assert "add_numbers" in [f["name"] for f in client.functions()]
    assert client.call("add_numbers", 2, b=40) == 42
    sum = client.call("add_numbers", np.arange(6.0).reshape(2, 3), np.ones((2, 3)))
    assert np.array_equal(sum, np.arange(1.0, 7).reshape(2, 3)) and sum.flags.writeable
    assert math.isnan(client.call("identity", x=float("nan")))
    assert client.call("identity", x=[b"bytes", None, True, -math.inf]) == [b"bytes", None, True, -math.inf]


@pytest.mark.parametrize("dtype", DType, ids=str)
def test_every_type_returns_unchanged(dtype: DType) -> None:
    elements = dtype.block[0] if dtype.block else 8
    data = bytes(i * 11 % 2 if dtype is DType.BOOL else i * 11 % 256 for i in range(dtype.nbytes(2 * elements)))
    sent = RawTensor(dtype, (2, elements), data)
    back = raw(from_json(to_json(sent), "numpy"))
    assert back == sent or (back.dtype, back.shape, bytes(back.data)) == (dtype, sent.shape, data)


def test_torch_tensors_of_every_type(served: Gateway) -> None:
    torch = pytest.importorskip("torch")
    with Client(served.http, framework="torch") as c:
        for name in ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn"):
            dtype = getattr(torch, name, None)
            if dtype is None:
                continue
            for x in (
                torch.arange(6).reshape(2, 3).to(dtype).t(),
                torch.zeros(0, 3).to(dtype),
                torch.ones(()).to(dtype),
            ):
                y = c.call("identity", x=x)
                assert (y.dtype, y.shape) == (x.dtype, x.shape) and raw(y).data == raw(x).data, dtype


def test_tasks(client: Client) -> None:
    task = client.submit("add_numbers", 20, 22)
    seen: list[TaskInfo] = []
    assert client.wait(task, timeout=30, callback=seen.append) == 42
    assert seen[-1].status == "completed" and client.result(task) == 42 and not client.cancel(task)
    failing = client.submit("add_numbers", 1, "x")
    with pytest.raises(st.TaskFailedError, match="unsupported operand"):
        client.wait(failing, timeout=30)
    slow = client.submit("sleep", 60.0)
    with pytest.raises(st.DeadlineExceededError, match="did not complete within"):
        client.wait(slow, timeout=0.05)
    with pytest.raises(st.TaskError):
        client.result(slow)
    assert client.cancel(slow)
    with pytest.raises(st.TaskCancelledError):
        client.wait(slow, timeout=30)
    assert {task, failing} <= {t.task_id for t in client.tasks()}
    assert task not in {t.task_id for t in client.tasks("cancelled")}


def test_errors_are_classes_with_an_outcome(client: Client) -> None:
    with pytest.raises(st.EndpointNotFoundError) as missing:
        client.call("missing")
    assert missing.value.data["outcome"] == "not_run"
    with pytest.raises(st.ApplicationError) as failed:
        client.call("add_numbers", 1, "x")
    assert failed.value.data["outcome"] == "failed" and failed.value.type == "TypeError"
    with pytest.raises(st.DeadlineExceededError) as late:
        client.call_function("sleep", [30.0], timeout=0.05)
    assert late.value.data["outcome"] == "unknown"
    with pytest.raises(st.SerializationError):
        client.call("identity", x=object())
    with pytest.raises(st.ConfigurationError):
        Client("ftp://localhost")


def test_absent_gateway_is_reported_at_once() -> None:
    with Client("http://127.0.0.1:9", framework="numpy") as c:
        begin = time.monotonic()
        with pytest.raises(st.UnavailableError):
            c.call("add_numbers", 1, 2)
        assert not c.ping() and time.monotonic() - begin < 10
    with pytest.raises(st.ClosedError):
        c.call("add_numbers", 1, 2)


def test_threads_share_a_client_across_a_restart(own_gateway: Gateway) -> None:
    own_gateway.offer(WORKER)
    with Client(own_gateway.http, framework="numpy") as c:
        results: list[int] = []

        def calls() -> None:
            results.extend(c.call("add_numbers", i, 1) for i in range(20))

        threads = [threading.Thread(target=calls) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(results) == sorted(list(range(1, 21)) * 4)
        own_gateway.restart()
        assert c.ping() and c.call("add_numbers", 1, 2) == 3


def test_an_error_of_tls_behind_the_request_leaves_the_outcome_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller may repeat a request only if nothing was sent."""
    import http.client
    import ssl

    from sharedtensor.remote.http import Connections

    class Sock:
        def settimeout(self, seconds: float) -> None:
            pass

        def close(self) -> None:
            pass

    def broken(self: http.client.HTTPConnection) -> None:
        raise ssl.SSLError("decryption failed or bad record mac")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", lambda self: setattr(self, "sock", Sock()))
    monkeypatch.setattr(http.client.HTTPConnection, "request", lambda *_: None)
    monkeypatch.setattr(http.client.HTTPConnection, "getresponse", broken)
    connections = Connections("http://gpu7:1")
    with pytest.raises(st.ConnectionLostError):
        connections.post("/", b"{}", timeout=5, repeat=False)
    monkeypatch.setattr(http.client.HTTPConnection, "connect", broken)
    with pytest.raises(st.UnavailableError):
        connections.post("/", b"{}", timeout=5, repeat=False)
