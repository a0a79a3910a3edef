"""Functions of one tensor at a gateway over gRPC."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Gateway

import sharedtensor as st
from sharedtensor.dtypes import DType
from sharedtensor.remote.elements import raw

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")

from sharedtensor.remote import compute, retry  # noqa: E402
from sharedtensor.remote.compute import (  # noqa: E402
    CompressedTensorCodec,
    ExponentialBackoff,
    FixedDelay,
    GRPCComputeClient,
)

WORKER = """
import sys
import numpy as np
import sharedtensor as st

def model(x):
    return np.maximum(x, 0)

def echo(x: np.ndarray) -> np.ndarray:
    return x

def fail(x: np.ndarray) -> np.ndarray:
    raise ValueError("not this one")

with st.connect(sys.argv[1], framework="numpy", wait=20) as c:
    with c.offer(calls=4, model=model, echo=echo, fail=fail) as offer:
        print("offered", flush=True)
        offer.wait()
"""

# The client and the context manager of splitlearn-comm's README, with the imports changed.
README = """
import torch
from sharedtensor.remote.compute import GRPCComputeClient

# Connect to server
client = GRPCComputeClient("ADDRESS")
client.connect()

# Perform computation
input_tensor = torch.randn(1, 10, 768)
output_tensor = client.compute(input_tensor)

print(f"Output shape: {output_tensor.shape}")

# Get statistics
stats = client.get_statistics()
print(f"Total requests: {stats['total_requests']}")
print(f"Avg network time: {stats['avg_network_time_ms']:.2f}ms")

client.close()

from sharedtensor.remote.compute import GRPCComputeClient, ExponentialBackoff

# Custom retry strategy
retry = ExponentialBackoff(
    max_retries=5,
    initial_delay=1.0,
    max_delay=30.0
)

client = GRPCComputeClient(
    "ADDRESS",
    retry_strategy=retry
)

# Client
with GRPCComputeClient("ADDRESS") as client:
    output = client.compute(input_tensor)
    # Health check
    is_healthy = client.health_check()

    # Get service information
    info = client.get_service_info()
    print(f"Service: {info['service_name']}")
    print(f"Version: {info['version']}")
    print(f"Device: {info['device']}")
    print(f"Total requests: {info['total_requests']}")
assert torch.equal(output, input_tensor.relu()) and is_healthy
"""


@pytest.fixture(scope="module")
def served(gateway: Gateway) -> Gateway:
    gateway.offer(WORKER)
    return gateway


def test_readme_of_splitlearn_runs(served: Gateway) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the program uses it")
    env = {"PYTHONPATH": str(Path(st.__file__).parent.parent)}
    program = README.replace("ADDRESS", served.grpc)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Output shape: torch.Size([1, 10, 768])\nTotal requests: 1\nAvg network time: ")
    assert re.search(r"Service: \S+\nVersion: \S+\nDevice: cpu\nTotal requests: \d+\n$", done.stdout), done.stdout


def test_every_type_returns_unchanged(served: Gateway) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: numpy lacks the types")
    with GRPCComputeClient(served.grpc, model_id="echo") as client:
        for dtype in DType:
            if dtype.packed:
                continue
            for x in (np.ones((2, 3), np.uint8).astype(dtype.numpy).T, np.zeros((0, 4), dtype.numpy)):
                y = client.compute(x)
                assert (y.dtype, y.shape) == (x.dtype, x.shape) and raw(y).data == raw(x).data, dtype


def test_large_tensors_are_sent_in_chunks(served: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_STREAM_FROM", 1 << 20)
    x = np.arange(700_000, dtype=np.int64).reshape(7, -1)
    with GRPCComputeClient(served.grpc, model_id="echo") as client:
        y, times = client.compute_with_timing(x)
    assert np.array_equal(x, y) and y.dtype == x.dtype
    assert times["network_total_ms"] >= times["server_compute_ms"] > 0


def test_compression(served: Gateway) -> None:
    with GRPCComputeClient(served.grpc, codec=CompressedTensorCodec(6), model_id="echo") as client:
        for x in (np.zeros(100_000, np.float32), np.arange(10, dtype=np.float64)):
            assert np.array_equal(client.compute(x), x)


def test_errors_statistics_and_health(served: Gateway) -> None:
    client = GRPCComputeClient(served.grpc, retry_strategy=FixedDelay(3, 0.01))
    with pytest.raises(RuntimeError, match="Call connect"):
        client.compute(np.ones(1, np.float32))
    assert client.connect() and client.connect()
    with pytest.raises(grpc.RpcError, match="not this one"):
        client.compute(np.ones(1, np.float32), model_id="fail")
    with pytest.raises(grpc.RpcError) as missing:
        client.compute(np.ones(1, np.float32), model_id="missing")
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(st.CapabilityError):
        client.compute(np.array(["text"]))
    client.compute(np.ones(1, np.float32), model_id="echo")
    stats = client.get_statistics()
    assert (stats["total_requests"], stats["calls"], stats["failures"]) == (3, 3, 2), (
        "failed functions are not repeated"
    )
    client.close()
    absent = GRPCComputeClient("127.0.0.1:9", timeout=2)
    assert not absent.connect() and absent.get_service_info() is None
    absent.close()


class Unavailable(grpc.RpcError):  # type: ignore[misc]
    """A failure of a connection."""

    def __init__(self, code: grpc.StatusCode, *trailer: tuple[str, str]) -> None:
        self._code = code
        self._trailer = trailer

    def code(self) -> grpc.StatusCode:
        return self._code

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return self._trailer


def test_retry_strategies() -> None:
    calls = 0

    def thrice() -> int:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise Unavailable(grpc.StatusCode.UNAVAILABLE)
        return calls

    assert FixedDelay(3, 0.001).execute(thrice) == 3
    calls = 0
    with pytest.raises(Unavailable):
        FixedDelay(2, 0.001).execute(thrice)
    assert calls == 2
    backoff = ExponentialBackoff(5, 1.0, 3.0)
    for attempt, expected in enumerate((1, 2, 3, 3)):
        assert 0.75 * expected <= backoff.delay(attempt) <= 1.25 * expected
    assert not backoff.retryable(Unavailable(grpc.StatusCode.INVALID_ARGUMENT))
    careful = compute._Careful(backoff)
    assert not careful.retryable(Unavailable(grpc.StatusCode.UNAVAILABLE))
    assert careful.retryable(Unavailable(grpc.StatusCode.UNAVAILABLE, ("sharedtensor-not-run", "1")))
    with pytest.raises(ValueError, match="at least one"):
        retry.RetryStrategy(0)


def test_threads_share_a_client(served: Gateway) -> None:
    with GRPCComputeClient(served.grpc, model_id="model") as client:
        wrong: list[int] = []

        def calls(i: int) -> None:
            x = np.full(100, i, np.float32)
            wrong.extend(i for _ in range(10) if not np.array_equal(client.compute(x), x))

        threads = [threading.Thread(target=calls, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong and client.get_statistics()["total_requests"] == 80


def test_fields_are_those_of_the_proto_file() -> None:
    check_fields(compute.FIELDS, ROOT / "endpoint/remote/compute/computepb/compute.proto")


def check_fields(definitions: dict[str, compute.schema.Fields], proto: Path) -> None:
    text = re.sub(r"//.*", "", proto.read_text())
    for name, fields in definitions.items():
        body = re.search(rf"message {name} {{(.*?)\n?}}", text, re.S)
        assert body is not None, name
        for field, (number, kind) in fields.items():
            kind = "map<string, string>" if kind == "map" else kind
            assert re.search(rf"\s{re.escape(kind)} {field} = {number};", body[1]), (name, field)
