"""Tensors and models at a gateway over gRPC streams."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, Gateway
from test_remote_compute import WORKER, check_fields

import sharedtensor as st
from sharedtensor.dtypes import DType
from sharedtensor.remote import crc32c
from sharedtensor.remote.elements import RawTensor, raw

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")

from sharedtensor.remote import stream  # noqa: E402
from sharedtensor.remote.stream import Client, TensorClient  # noqa: E402

# The client of kpu's README, with its import changed.
README = """
from sharedtensor.remote.stream import TensorClient
import torch
import asyncio


async def main():
    tensor = torch.randn(100, 100)

    async with TensorClient(PORT) as client:
        # Send tensors to server
        response = await client.send_tensors(tensor)
        print(f"Server received: {response.message}")

        # Receive tensors from server
        tensors = await client.receive_tensors(count=2)
        print(f"Received {len(tensors)} tensors")

        # Bidirectional streaming
        processed = await client.stream_tensors(tensor)
        print(f"Received {len(processed)} processed tensors")
    assert [t.shape for t in tensors] == [(10, 10)] * 2 and torch.equal(processed[0], tensor)


asyncio.run(main())
"""


@pytest.fixture
def client(gateway: Gateway) -> Any:
    with Client(gateway.grpc, framework="numpy") as c:
        yield c


def test_readme_of_kpu_runs(gateway: Gateway) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the program uses it")
    env = {"PYTHONPATH": str(Path(st.__file__).parent.parent)}
    program = README.replace("PORT", f"port={gateway.grpc.rpartition(':')[2]}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Server received: Received 1 tensor(s)\nReceived 2 tensors\nReceived 1 processed tensors\n"


def test_models_of_every_type_return_unchanged(client: Client) -> None:
    sent: dict[str, Any] = {"empty": np.zeros((0, 3), np.float32), "scalar": np.float64(7), "t": np.ones((2, 3)).T}
    for dtype in DType:
        elements = dtype.block[0] if dtype.block else 8
        data = bytes(i % 2 if dtype is DType.BOOL else i * 11 % 256 for i in range(dtype.nbytes(2 * elements)))
        sent[str(dtype)] = RawTensor(dtype, (2, elements), data)
    version = client.put("every type", sent, metadata={"step": "3"})
    got = client.get("every type")
    assert (got.name, got.version, got.metadata) == ("every type", version, {"step": "3"})
    assert list(got) == list(sent)
    for name, value in sent.items():
        a, b = raw(value), raw(got[name])
        assert (a.dtype, a.shape, bytes(a.data)) == (b.dtype, b.shape, bytes(b.data)), name
    assert list(client.get("every type", tensors=["t"])) == ["t"]
    assert client.put("every type", {"x": np.ones(1)}) == version + 1
    assert client.get("every type", version=version + 1).version == version + 1


def test_tensors_are_sent_received_and_answered(gateway: Gateway, client: Client) -> None:
    gateway.offer(WORKER)
    x = np.arange(700_000, dtype=np.int64).reshape(7, -1)
    small = np.full((2, 2), -1, np.float32)
    response = client.send_tensors(x, small)
    assert response.success and len(response.received_tensor_ids) == 2
    assert np.array_equal(client.get(f"received-{response.received_tensor_ids[0]}")[response.received_tensor_ids[0]], x)
    client.send_tensors(small, metadata={"model": "named"})
    assert np.array_equal(client.receive_tensors(1, {"model": "named"})[0], small)
    a, b, c = client.stream_tensors(x, small, np.zeros((0, 2), np.float32))
    assert np.array_equal(a, x) and np.array_equal(b, small) and c.shape == (0, 2)
    assert np.array_equal(client.stream_tensors(small, endpoint="model")[0], np.zeros((2, 2)))
    generated = client.receive_tensors(3, {"shape": "4, 5"})
    assert [g.shape for g in generated] == [(4, 5)] * 3 and generated[0].std() > 0.1


def test_errors_of_the_server(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as missing:
        client.get("missing")
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    for parameters in ({"shape": "ten"}, {"shape": "100000,100000"}, {"count": "0"}):
        with pytest.raises(grpc.RpcError):
            client.get("", parameters=parameters)
    client.close()
    with pytest.raises(st.ClosedError):
        client.get("missing")


class Cutting:
    """A TCP proxy that resets the first connections after a number of bytes in one direction."""

    def __init__(self, target: str, after: int, cuts: int) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._after = after
        self.cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            for a, b in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        moved = 0
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                moved += len(data)
                if moved > self._after and self.cuts > 0:
                    self.cuts -= 1
                    break
        except OSError:
            pass
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()


def test_transfers_resume_where_the_connection_broke(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 24 << 20
    x = np.frombuffer(os.urandom(size), np.uint8)
    monkeypatch.setattr(crc32c, "extend", lambda crc, data: crc32c._extend(crc, data))
    sent: list[int] = []
    chunks = stream._chunks

    def counted(index: int, value: RawTensor, at: int, crc: int) -> Any:
        sent.append(at)
        return chunks(index, value, at, crc)

    monkeypatch.setattr(stream, "_chunks", counted)
    proxy = Cutting(gateway.grpc, 9 << 20, 1)
    try:
        with Client(proxy.address, framework="numpy") as c:
            c.put("resumed", {"x": x})
            assert proxy.cuts == 0 and len(sent) == 2 and sent[1] > 1 << 20, "the second call continues"
            proxy.cuts = 1
            assert np.array_equal(c.get("resumed")["x"], x)
            assert proxy.cuts == 0
    finally:
        proxy.close()


def test_asyncio(gateway: Gateway) -> None:
    host, _, port = gateway.grpc.rpartition(":")

    async def main() -> None:
        async with TensorClient(host, int(port), framework="numpy") as client:
            await client.put("async", {"x": np.ones(3)})
            models = await asyncio.gather(*(client.get("async") for _ in range(4)))
            assert all(np.array_equal(m["x"], np.ones(3)) for m in models)

    asyncio.run(main())


def test_checksums() -> None:
    assert crc32c._extend(0, b"123456789") == 0xE3069283
    data = os.urandom(150_001)
    for cut in (0, 1, 255, 70_000, len(data)):
        assert crc32c._extend(crc32c._extend(0, data[:cut]), data[cut:]) == crc32c._extend(0, data)
    assert crc32c._bytewise(0xFFFFFFFF, memoryview(data)) ^ 0xFFFFFFFF == crc32c._extend(0, data)


def test_fields_are_those_of_the_proto_file() -> None:
    check_fields(stream.FIELDS, ROOT / "endpoint/remote/stream/streampb/stream.proto")
