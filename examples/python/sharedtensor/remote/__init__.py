"""Clients of a gateway, for hosts without an owner: one module for each protocol.

- `jsonrpc` calls functions and runs tasks over HTTP. It needs the standard library only.
- `compute` calls functions of one tensor over gRPC. It needs grpcio and protobuf.
- `stream` transfers tensors and models over gRPC. It needs grpcio and protobuf, and is faster with google-crc32c.
- `bins`, `tensorshare` and `rl` use named bins and training runs on NATS. They need nats-py.

Tensors are torch's or numpy's, of all data types. No module pickles, and none executes what a peer sends.
"""
