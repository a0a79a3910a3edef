"""A client of splitlearn.comm.ComputeService in Python.

    python3 compute_client.py HOST:PORT

compute_pb2 and compute_pb2_grpc come from compute.proto, by grpc_tools.protoc.
"""
import sys
import zlib

import compute_pb2 as pb
import compute_pb2_grpc
import grpc
import numpy
import torch

LIMIT = 100 << 20
OPTIONS = [
    ("grpc.max_send_message_length", LIMIT), ("grpc.max_receive_message_length", LIMIT),
    ("grpc.keepalive_time_ms", 30000), ("grpc.keepalive_timeout_ms", 10000),
]


def encode(tensor):
    return tensor.detach().cpu().numpy().astype(numpy.float32).tobytes(), list(tensor.shape)


def decode(response, dtype=numpy.float32):
    return torch.from_numpy(numpy.frombuffer(response.data, dtype).copy()).reshape(list(response.shape))


with grpc.insecure_channel(sys.argv[1], options=OPTIONS) as channel:
    stub = compute_pb2_grpc.ComputeServiceStub(channel)
    health = stub.HealthCheck(pb.HealthRequest(), timeout=30)
    print("health:", health.status, health.version, f"{health.uptime_seconds:.1f}s")
    info = stub.GetServiceInfo(pb.ServiceInfoRequest(), timeout=30)
    print("service:", info.service_name, info.version, info.device, dict(info.custom_info))

    x = torch.randn(1, 10, 768)
    data, shape = encode(x)
    response = stub.Compute(pb.ComputeRequest(data=data, shape=shape, request_id=7), timeout=30)
    assert response.request_id == 7 and torch.equal(decode(response), 2 * x)
    print("computed:", decode(response).shape, f"{response.compute_time_ms:.3f} ms")

    # Data compressed by zlib, as both ends of splitlearn-comm are configured for it: nothing in the message says so.
    response = stub.Compute(pb.ComputeRequest(data=zlib.compress(data, 6), shape=shape), timeout=30)
    answer = torch.from_numpy(numpy.frombuffer(zlib.decompress(response.data), numpy.float32).copy()).reshape(shape)
    assert torch.equal(answer, 2 * x)
    print("compressed: equal")

    # Other types than float32, which the metadata tells.
    n = torch.arange(10)
    request = pb.ComputeRequest(data=n.numpy().tobytes(), shape=[10], metadata={"dtype": "int64"})
    assert torch.equal(decode(stub.Compute(request, timeout=30)), 2.0 * n)
    print("typed:", n.dtype)

    # Compression of gRPC itself.
    for compression in (grpc.Compression.Deflate, grpc.Compression.Gzip):
        response = stub.Compute(pb.ComputeRequest(data=data, shape=shape), timeout=30, compression=compression)
        assert torch.equal(decode(response), 2 * x)
    print("deflate: equal")

    statistics = stub.GetStatistics(pb.StatisticsRequest(), timeout=30)
    assert statistics.requests == 5 and statistics.compute.count == 5, statistics
    try:
        stub.Compute(pb.ComputeRequest(data=data, shape=shape, model_id="x", use_cache=True), timeout=30)
    except grpc.RpcError as e:
        print("refused:", e.code().name)
