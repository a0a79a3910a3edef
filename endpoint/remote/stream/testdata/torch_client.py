"""A client of kpu.torch.Service in Python: sends tensors, asks for tensors, has tensors processed.

    python3 torch_client.py HOST:PORT

torch_pb2 and torch_pb2_grpc come from torch.proto, by grpc_tools.protoc.
"""
import asyncio
import io
import sys
import uuid

import grpc
import torch
import torch_pb2
import torch_pb2_grpc

CHUNK = 1 << 20


def chunks(tensor):
    out = io.BytesIO()
    torch.save(tensor, out)
    data, tensor_id = out.getvalue(), str(uuid.uuid4())
    total = -(-len(data) // CHUNK)
    for number in range(total):
        chunk = torch_pb2.TensorChunk(
            tensor_id=tensor_id, chunk_number=number, total_chunks=total, is_last=number == total - 1,
            data=data[number * CHUNK:(number + 1) * CHUNK],
        )
        if number == 0:
            chunk.metadata.update(shape=str(list(tensor.shape)), dtype=str(tensor.dtype), device=str(tensor.device), size_bytes=str(len(data)))
        yield chunk


async def tensors(call):
    parts = {}
    async for chunk in call:
        pieces = parts.setdefault(chunk.tensor_id, {})
        pieces[chunk.chunk_number] = chunk.data
        if len(pieces) == chunk.total_chunks:
            data = b"".join(pieces[n] for n in sorted(pieces))
            yield chunk.tensor_id, torch.load(io.BytesIO(data))


async def main(address):
    some = [torch.randn(100, 100), torch.arange(3 << 18), torch.randn(1000, 1000).t()]

    async def stream():
        for tensor in some:
            for chunk in chunks(tensor):
                yield chunk

    async with grpc.aio.insecure_channel(address) as channel:
        stub = torch_pb2_grpc.ServiceStub(channel)
        response = await stub.ReceiveTensors(stream())
        assert response.success and len(response.received_tensor_ids) == 3, response
        print("sent:", response.message)

        request = torch_pb2.TensorRequest(count=2, parameters={"shape": "10,10"})
        received = [t async for _, t in tensors(stub.SendTensors(request))]
        print("received:", *[list(t.shape) for t in received])

        answers = [a async for a in tensors(stub.StreamTensors(stream()))]
        assert all(name.startswith("processed_") for name, _ in answers)
        assert all(torch.equal(a, b) for a, (_, b) in zip(some, answers)), "not what was sent"
        print(f"processed: {len(answers)} tensors, equal")


asyncio.run(main(sys.argv[1]))
