"""Functions with one tensor in and one tensor out, over gRPC.

>>> from sharedtensor.remote.compute import GRPCComputeClient
>>> with GRPCComputeClient("gpu7:50051") as client:
...     y = client.compute(x, model_id="transform")

The interface is that of splitlearn-comm's client, whose servers work too. Errors are grpc.RpcError. The result has the
library and the data type that the function returns. Tensors that are too large for one message are sent in chunks.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

from .. import frameworks
from ..dtypes import DType
from ..errors import CapabilityError, ProtocolError
from ..frameworks import Framework
from . import channels, plain, schema
from .channels import grpc
from .elements import Array, build, parse_dtype, raw, size_of
from .retry import ExponentialBackoff, FixedDelay, RetryStrategy

__all__ = [
    "CompressedTensorCodec",
    "ExponentialBackoff",
    "FixedDelay",
    "GRPCComputeClient",
    "RetryStrategy",
    "TensorCodec",
]

PACKAGE = "splitlearn.comm"
FIELDS: dict[str, schema.Fields] = {
    "ComputeRequest": {
        "data": (1, "bytes"),
        "shape": (2, "repeated int32"),
        "request_id": (3, "optional int32"),
        "metadata": (4, "map"),
        "model_id": (5, "string"),
        "wide_shape": (100, "repeated int64"),
    },
    "ComputeResponse": {
        "data": (1, "bytes"),
        "shape": (2, "repeated int32"),
        "compute_time_ms": (4, "optional float"),
        "metadata": (100, "map"),
        "wide_shape": (101, "repeated int64"),
        "queue_time_ms": (102, "optional float"),
    },
    "HealthRequest": {},
    "HealthResponse": {"status": (1, "string"), "message": (2, "string")},
    "ServiceInfoRequest": {},
    "ServiceInfoResponse": {
        "service_name": (1, "string"),
        "version": (2, "string"),
        "device": (3, "string"),
        "uptime_seconds": (4, "optional float"),
        "total_requests": (5, "int64"),
        "custom_info": (6, "map"),
    },
}
_pb = schema.load(PACKAGE, FIELDS)

_PROTOCOL = "sharedtensor.compute/1"
_CHUNK = 1 << 20
_STREAM_FROM = 32 << 20
_MAX_INT32 = (1 << 31) - 1
_NOT_RUN = "sharedtensor-not-run"


class TensorCodec:
    """Sends elements as they are."""

    compression = ""

    def encode(self, data: bytes | memoryview) -> bytes:
        """Returns the bytes to send."""
        return bytes(data)


class CompressedTensorCodec(TensorCodec):
    """Compresses arguments with zlib, and asks for compressed results."""

    compression = "zlib"

    def __init__(self, compression_level: int = 6) -> None:
        self.compression_level = compression_level

    def encode(self, data: bytes | memoryview) -> bytes:
        return zlib.compress(data, self.compression_level)


class GRPCComputeClient:
    """A client of a gateway or of a server of splitlearn-comm. Its methods may be used by several threads.

    :param server_address: HOST:PORT.
    :param timeout: of one attempt, in seconds.
    :param max_message_length: of a message in bytes. Larger tensors are sent in chunks.
    :param retry_strategy: `ExponentialBackoff` by default.
    :param codec: `CompressedTensorCodec` to compress.
    :param model_id: of calls without one. The gateway's ``--compute-default`` has the same effect.
    :param token: of the gateway, "" for none.
    :param credentials: for TLS, from `grpc.ssl_channel_credentials`.
    :param insecure_token: send the token without TLS also to another host, where the network can read it.
    :param idempotent: if False, a call is repeated only if its function has certainly not run.
    """

    def __init__(
        self,
        server_address: str,
        timeout: float = 30.0,
        max_message_length: int = 100 << 20,
        retry_strategy: RetryStrategy | None = None,
        codec: TensorCodec | None = None,
        *,
        model_id: str = "",
        token: str = "",
        credentials: Any = None,
        idempotent: bool = True,
        insecure_token: bool = False,
    ) -> None:
        plain.check(server_address, token, credentials is not None, insecure_token)
        self.server_address = server_address
        self.timeout = timeout
        self.retry_strategy = retry_strategy or ExponentialBackoff()
        self.codec = codec or TensorCodec()
        self._max_message = max_message_length
        self._model = model_id
        self._credentials = credentials
        self._metadata = channels.metadata(token)
        self._idempotent = idempotent
        self._lock = threading.Lock()
        self._channel: Any = None
        self._knows: bool | None = None
        self._requests = self._attempts = self._failures = self._succeeded = 0
        self._network = self._compute = 0.0

    def connect(self) -> bool:
        """Connects and returns the health of the server. A second call has no effect on the connection."""
        with self._lock:
            if self._channel is None:
                self._channel = channels.channel(self.server_address, self._credentials, self._max_message + (64 << 10))
        return self.health_check()

    def _connected(self) -> Any:
        channel = self._channel
        if channel is None:
            raise RuntimeError("Client not connected. Call connect() first.")
        return channel

    def _unary(self, method: str, request: Any, response: Any) -> Any:
        call = self._connected().unary_unary(
            f"/{PACKAGE}.ComputeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return call(request, timeout=self.timeout, metadata=self._metadata)

    def compute(self, tensor: Array, model_id: str | None = None) -> Array:
        """Returns the result of a function for a tensor of torch or numpy, of the same library."""
        return self.compute_with_timing(tensor, model_id)[0]

    def compute_with_timing(self, tensor: Array, model_id: str | None = None) -> tuple[Array, dict[str, float]]:
        """Like `compute`, with the milliseconds of the whole call, of the function, and of the rest."""
        framework: Framework = "torch" if frameworks.is_torch(tensor) else "numpy"
        self._connected()
        sent = raw(tensor)
        model = self._model if model_id is None else model_id
        strategy = self.retry_strategy if self._idempotent else _Careful(self.retry_strategy)
        try:
            result = strategy.execute(lambda: self._attempt(sent.dtype, sent.shape, sent.data, model, framework))
        except BaseException:
            self._count(failed=True)
            raise
        self._count(failed=False)
        return result

    def _attempt(
        self, dtype: DType, shape: tuple[int, ...], data: Any, model: str, framework: Framework
    ) -> tuple[Array, dict[str, float]]:
        with self._lock:
            self._attempts += 1
        known = (dtype is DType.FLOAT32 and not self.codec.compression) or self._server_knows()
        if dtype is not DType.FLOAT32 and not known:
            raise CapabilityError(f"{self.server_address} accepts float32 only, not {dtype}")
        head = _pb.ComputeRequest(model_id=model, metadata={"accept-dtype": "any"})
        (head.wide_shape if any(dim > _MAX_INT32 for dim in shape) else head.shape).extend(shape)
        if dtype is not DType.FLOAT32:
            head.metadata["dtype"] = dtype.title
        body: bytes | bytearray
        begin = time.monotonic()
        if len(data) > min(self._max_message, _STREAM_FROM):
            answer, body = self._stream(head, data)
        else:
            answer, body = self._single(head, data, known)
        total = (time.monotonic() - begin) * 1000
        computed = float(answer.compute_time_ms)
        network = max(0.0, total - computed - float(answer.queue_time_ms))
        with self._lock:
            self._succeeded += 1
            self._network += network
            self._compute += computed
        found = parse_dtype(answer.metadata.get("dtype", "float32"))
        out = build(found, _shape(answer), body, framework)
        return out, {"network_total_ms": total, "server_compute_ms": computed, "network_overhead_ms": network}

    def _single(self, head: Any, data: Any, known: bool) -> tuple[Any, bytes]:
        head.data = self.codec.encode(data)
        if self.codec.compression and known:
            head.metadata["compression"] = head.metadata["accept-compression"] = self.codec.compression
        answer = self._unary("Compute", head, _pb.ComputeResponse)
        body: bytes = answer.data
        if answer.metadata.get("compression") == "zlib" or (self.codec.compression and not known):
            body = _inflate(body, size_of(parse_dtype(answer.metadata.get("dtype", "float32")), _shape(answer)))
        return answer, body

    def _stream(self, head: Any, data: Any) -> tuple[Any, bytearray]:
        call = self._connected().stream_stream(
            f"/{PACKAGE}.ComputeService/ComputeStream",
            request_serializer=_pb.ComputeRequest.SerializeToString,
            response_deserializer=_pb.ComputeResponse.FromString,
        )
        answers = call(_chunks(head, data), timeout=self.timeout, metadata=self._metadata)
        first = next(answers)
        size = size_of(parse_dtype(first.metadata.get("dtype", "float32")), _shape(first))
        body = bytearray(first.data)
        for answer in answers:
            body += answer.data
            if len(body) > size:
                raise ProtocolError(f"more than the {size} bytes of the result")
        return first, body

    def _server_knows(self) -> bool:
        """Reports whether the server accepts all data types and declared compression."""
        if self._knows is None:
            info = self._unary("GetServiceInfo", _pb.ServiceInfoRequest(), _pb.ServiceInfoResponse)
            self._knows = info.custom_info.get("protocol") == _PROTOCOL
        return self._knows

    def _count(self, *, failed: bool) -> None:
        with self._lock:
            self._requests += 1
            self._failures += failed

    def health_check(self) -> bool:
        """Reports whether the server is healthy. Errors are False."""
        try:
            answer = self._unary("HealthCheck", _pb.HealthRequest(), _pb.HealthResponse)
        except grpc.RpcError:
            return False
        return answer.status in ("ok", "healthy")

    def get_service_info(self) -> dict[str, Any] | None:
        """Returns what the server reports about itself, or None if it does not answer."""
        try:
            info = self._unary("GetServiceInfo", _pb.ServiceInfoRequest(), _pb.ServiceInfoResponse)
        except grpc.RpcError:
            return None
        found = {name: getattr(info, name) for name in FIELDS["ServiceInfoResponse"]}
        return {**found, "custom_info": dict(info.custom_info)}

    def get_statistics(self) -> dict[str, float]:
        """Returns counts of this client, and means over successful attempts. `total_requests` counts attempts."""
        with self._lock:
            n = max(self._succeeded, 1)
            network, computed = self._network / n, self._compute / n
            return {
                "total_requests": self._attempts,
                "calls": self._requests,
                "failures": self._failures,
                "avg_network_time_ms": network,
                "avg_compute_time_ms": computed,
                "avg_total_time_ms": network + computed,
            }

    def close(self) -> None:
        """Closes the connection. Calls in flight are cancelled."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def __enter__(self) -> GRPCComputeClient:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Careful(RetryStrategy):
    """Another strategy for functions that must not run twice: it repeats only attempts that did not run."""

    def __init__(self, inner: RetryStrategy) -> None:
        super().__init__(inner.max_retries)
        self._inner = inner
        self.delay = inner.delay  # type: ignore[method-assign]

    def retryable(self, error: Any) -> bool:
        not_run = any(key == _NOT_RUN for key, _ in error.trailing_metadata() or ())
        return not_run and self._inner.retryable(error)


def _shape(answer: Any) -> list[int]:
    return list(answer.wide_shape or answer.shape)


def _inflate(data: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, size + 1)
    except zlib.error as err:
        raise ProtocolError(f"the result is not zlib data: {err}") from err
    if len(plain) != size:
        raise ProtocolError(f"the result has not the {size} bytes of its shape")
    return plain


def _chunks(head: Any, data: Any) -> Iterator[Any]:
    view = memoryview(data).cast("B")
    head.data = bytes(view[:_CHUNK])
    yield head
    for at in range(_CHUNK, len(view), _CHUNK):
        yield _pb.ComputeRequest(data=bytes(view[at : at + _CHUNK]))
