"""Tensors and models over gRPC, in checksummed chunks.

>>> from sharedtensor.remote.stream import Client, TensorClient
>>> with Client("gpu7:50051") as client:
...     version = client.put("policy", module.state_dict())
...     weights = client.get("llm", tensors=["lm_head.weight"])
...     (y,) = client.stream_tensors(x, endpoint="transform")

A transfer whose connection breaks is resumed where it broke. `TensorClient` is the same for asyncio, with the interface
of kpu's client. Errors of the server are grpc.RpcError.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .. import frameworks
from ..errors import ClosedError, ConnectionLostError, ProtocolError
from ..frameworks import Framework
from . import channels, crc32c, plain, schema
from .channels import grpc
from .elements import Array, RawTensor, build, parse_dtype, raw, size_of

R = TypeVar("R")

PACKAGE = "sharedtensor.stream.v1"
FIELDS: dict[str, schema.Fields] = {
    "TensorSpec": {
        "name": (1, "string"),
        "dtype": (2, "string"),
        "shape": (3, "repeated int64"),
        "metadata": (4, "map"),
    },
    "Set": {
        "id": (1, "string"),
        "name": (2, "string"),
        "tensors": (3, "repeated TensorSpec"),
        "metadata": (4, "map"),
        "version": (5, "uint64"),
    },
    "Position": {"tensor": (1, "uint32"), "offset": (2, "uint64"), "crc32c": (3, "fixed32")},
    "Chunk": {
        "data": (1, "bytes"),
        "offset": (2, "uint64"),
        "crc32c": (3, "fixed32"),
        "tensor": (4, "uint32"),
        "set": (5, "Set"),
        "spec": (6, "TensorSpec"),
        "credit": (7, "uint64"),
        "end": (8, "bool"),
    },
    "PutReply": {"credit": (1, "uint64"), "resume": (2, "repeated Position"), "done": (3, "Done")},
    "Done": {"version": (1, "uint64"), "bytes": (2, "uint64")},
    "GetRequest": {
        "name": (1, "string"),
        "version": (2, "uint64"),
        "tensors": (3, "repeated string"),
        "parameters": (4, "map"),
        "credit": (5, "uint64"),
        "id": (6, "string"),
        "resume": (7, "repeated Position"),
    },
}
_pb = schema.load(PACKAGE, FIELDS)

_CHUNK = 1 << 20
_UNLIMITED = 1 << 62  # credit; HTTP/2 limits how far the server is ahead
_MAX_MESSAGE = 16 << 20
_BROKEN = frozenset({"UNAVAILABLE", "DATA_LOSS"})


class Model(dict[str, Array]):
    """Received tensors by name.

    :ivar name: of the model; `version` is its version at the server, 0 if it has none.
    :ivar metadata: of the whole model.
    """

    def __init__(self, tensors: Mapping[str, Array], name: str, version: int, metadata: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.name = name
        self.version = version
        self.metadata = dict(metadata)


@dataclass(frozen=True)
class TensorResponse:
    """The result of `send_tensors`."""

    success: bool
    message: str
    received_tensor_ids: list[str] = field(default_factory=list)


class Client:
    """A client of a gateway. Its methods block, and may be used by several threads.

    :param address: HOST:PORT.
    :param token: of the gateway, "" for none.
    :param credentials: for TLS, from `grpc.ssl_channel_credentials`.
    :param framework: "torch" or "numpy", of received tensors; torch if it is installed.
    :param attempts: of a transfer without progress, after which it fails.
    :param insecure_token: send the token without TLS also to another host, where the network can read it.
    """

    def __init__(
        self,
        address: str = "localhost:50051",
        *,
        token: str = "",
        credentials: Any = None,
        framework: str | None = None,
        attempts: int = 5,
        insecure_token: bool = False,
    ) -> None:
        plain.check(address, token, credentials is not None, insecure_token)
        self._framework: Framework = frameworks.choose(framework)
        self._attempts = attempts
        self._metadata = channels.metadata(token)
        self._channel = channels.channel(address, credentials, _MAX_MESSAGE)
        self._lock = threading.Lock()
        self._calls: set[Any] = set()
        self._closed = False

    def put(
        self, name: str, tensors: Mapping[str, Array], *, metadata: Mapping[str, str] | None = None, id: str = ""
    ) -> int:
        """Publishes a model atomically and returns its version.

        :param name: of the model. Models without a name are called "received-" and the id, and do not stay for long.
        :param id: of the transfer; unique by default. A repetition with the same id continues it.

        Raises ConnectionLostError if everything was sent and no answer arrived.
        """
        transfer = _Put(name, {key: raw(one) for key, one in tensors.items()}, metadata or {}, id or str(uuid.uuid4()))
        return self._resume(lambda: transfer.run(self), transfer)

    def get(
        self,
        name: str,
        *,
        version: int = 0,
        tensors: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Model:
        """Returns a model, or some of its tensors.

        :param version: 0 is the newest.
        :param parameters: for the source of tensors. With "count" a gateway sends only the first tensors.
        """
        transfer = _Get(name, version, tensors, parameters or {})
        self._resume(lambda: transfer.run(self), transfer)
        return transfer.model(self._framework)

    def send_tensors(self, *tensors: Array, metadata: Mapping[str, str] | None = None) -> TensorResponse:
        """Sends tensors. Each becomes a model: "received-" and its id, or the one that `metadata` names as "model"."""
        ids = []
        for tensor in tensors:
            id = str(uuid.uuid4())
            given = dict(metadata or {})
            self.put(given.pop("model", ""), {id: tensor}, metadata=given, id=id)
            ids.append(id)
        return TensorResponse(True, f"Received {len(ids)} tensor(s)", ids)

    def receive_tensors(self, count: int = 1, parameters: Mapping[str, Any] | None = None) -> list[Array]:
        """Returns tensors of the server.

        :param parameters: "model" names a model, "version" its version and "tensor" one tensor. Without a model the
            server returns those of its source, or generated ones of "shape" if it has ``--stream-generate``.
        """
        given = {key: str(value) for key, value in (parameters or {}).items()}
        one = given.pop("tensor", "")
        name, version = given.pop("model", ""), int(given.pop("version", "0"))
        found = self.get(
            name, version=version, tensors=[one] if one else (), parameters={**given, "count": max(count, 1)}
        )
        return list(found.values())

    def stream_tensors(self, *tensors: Array, endpoint: str = "") -> list[Array]:
        """Sends tensors and returns the answer to each, in order: of a function, or unchanged without `endpoint`."""
        exchange = _Exchange([raw(one) for one in tensors], endpoint)
        exchange.run(self)
        return [build(*one, self._framework) for one in exchange.answers]

    def _call(self, method: str, requests: Any, response: Any) -> Any:
        stub = self._channel.stream_stream(
            f"/{PACKAGE}.TensorStream/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            call = stub(requests, metadata=self._metadata)
            self._calls.add(call)
        return call

    @contextlib.contextmanager
    def _open(self, method: str, requests: Any, response: Any) -> Iterator[Any]:
        """Starts a call, and cancels it in the end."""
        call = self._call(method, requests, response)
        try:
            yield call
        finally:
            call.cancel()
            with self._lock:
                self._calls.discard(call)

    def _resume(self, run: Callable[[], R], transfer: _Transfer) -> R:
        failures = 0
        while True:
            before = transfer.progress
            try:
                return run()
            except (grpc.RpcError, ProtocolError) as err:
                if isinstance(err, grpc.RpcError) and err.code().name not in _BROKEN:
                    raise
                failures = 1 if transfer.progress > before else failures + 1
                if failures >= self._attempts or self._closed:
                    if transfer.complete:
                        raise ConnectionLostError("everything was sent, and no answer arrived") from err
                    raise
            time.sleep(random.uniform(0.5, 1) * min(0.1 * 2**failures, 5.0))

    def close(self) -> None:
        """Closes the connection. Transfers in flight end with an error."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Credit:
    """The bytes that may be sent. The thread that reads grants them, and ends waiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes = 0
        self._over = False

    def grant(self, n: int) -> None:
        with self._changed:
            self._bytes += n
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def take(self, n: int) -> bool:
        """Waits until n bytes may be sent. Returns False if the call is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._bytes >= n)
            self._bytes -= n
            return not self._over

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._over)


class _Transfer:
    """What `Client._resume` needs: bytes transferred so far, and whether everything was sent."""

    progress = 0
    complete = False


def _spec(name: str, value: RawTensor, metadata: Mapping[str, str] | None = None) -> Any:
    return _pb.TensorSpec(name=name, dtype=value.dtype.title, shape=value.shape, metadata=metadata or {})


def _chunks(index: int, value: RawTensor, at: int, crc: int) -> Iterator[Any]:
    data = memoryview(value.data).cast("B") if value.data else memoryview(b"")
    if at and at == len(data):
        return
    while True:
        piece = data[at : at + _CHUNK]
        crc = crc32c.extend(crc, piece)
        yield _pb.Chunk(tensor=index, offset=at, crc32c=crc, data=bytes(piece))
        at += len(piece)
        if at >= len(data):
            return


class _Put(_Transfer):
    def __init__(self, name: str, tensors: dict[str, RawTensor], metadata: Mapping[str, str], id: str) -> None:
        self._tensors = tensors
        specs = [_spec(key, value) for key, value in tensors.items()]
        self._set = _pb.Set(id=id, name=name, tensors=specs, metadata=metadata)

    def run(self, client: Client) -> int:
        credit = _Credit()
        resume: dict[int, Any] = {}
        started = threading.Event()

        def requests() -> Iterator[Any]:
            yield _pb.Chunk(set=self._set)
            started.wait()
            for index, value in enumerate(self._tensors.values()):
                at, crc = _resume_at(value, resume.get(index))
                for chunk in _chunks(index, value, at, crc):
                    if not credit.take(len(chunk.data)):
                        return
                    yield chunk
                    self.progress += max(len(chunk.data), 1)
            self.complete = True

        with client._open("Put", requests(), _pb.PutReply) as call:
            try:
                for reply in call:
                    if reply.HasField("done"):
                        return int(reply.done.version)
                    if not started.is_set():
                        resume.update({position.tensor: position for position in reply.resume})
                    credit.grant(reply.credit)
                    started.set()
            finally:
                credit.end()
                started.set()
        raise ProtocolError("the server ended the call without an answer")


def _resume_at(value: RawTensor, position: Any) -> tuple[int, int]:
    """Returns where to continue and the checksum of the bytes before: 0 if those that the server has are others."""
    if position is None or position.offset > len(value.data):
        return 0, 0
    crc = crc32c.extend(0, memoryview(value.data).cast("B")[: position.offset]) if position.offset else 0
    return (int(position.offset), crc) if crc == position.crc32c else (0, 0)


class _Incoming:
    """A tensor of which the first bytes have arrived."""

    def __init__(self, spec: Any) -> None:
        self.dtype = parse_dtype(spec.dtype)
        self.shape = tuple(spec.shape)
        self.size = size_of(self.dtype, self.shape)
        self.name = str(spec.name)
        self.data = bytearray()
        self.crc = 0
        self.whole = False

    def add(self, chunk: Any) -> None:
        if chunk.offset != len(self.data):
            if chunk.offset:
                raise ProtocolError(f"tensor {self.name!r}: bytes from {chunk.offset}, after {len(self.data)}")
            self.data, self.crc = bytearray(), 0
        if len(self.data) + len(chunk.data) > self.size:
            raise ProtocolError(f"tensor {self.name!r}: more than {self.size} bytes")
        crc = crc32c.extend(self.crc, chunk.data)
        if crc != chunk.crc32c:
            raise ProtocolError(f"tensor {self.name!r}: the checksum of its first bytes is wrong")
        self.data += chunk.data
        self.crc = crc
        self.whole = len(self.data) == self.size


class _Get(_Transfer):
    def __init__(self, name: str, version: int, tensors: Sequence[str], parameters: Mapping[str, Any]) -> None:
        given = {key: str(value) for key, value in parameters.items()}
        self._request = _pb.GetRequest(name=name, version=version, tensors=tensors, parameters=given, credit=_UNLIMITED)
        self._set: Any = None
        self._parts: list[_Incoming] = []

    def run(self, client: Client) -> None:
        over = _Credit()
        request = _pb.GetRequest()
        request.CopyFrom(self._request)
        if self._set is not None:
            request.id = self._set.id
            for i, part in enumerate(self._parts):
                request.resume.add(tensor=i, offset=len(part.data), crc32c=part.crc)

        def requests() -> Iterator[Any]:
            yield request
            over.wait()

        with client._open("Get", requests(), _pb.Chunk) as call:
            try:
                for chunk in call:
                    if chunk.HasField("set"):
                        self._describe(chunk.set)
                    elif chunk.tensor >= len(self._parts):
                        raise ProtocolError(f"tensor {chunk.tensor} of {len(self._parts)}")
                    else:
                        self._parts[chunk.tensor].add(chunk)
                        self.progress += len(chunk.data)
            finally:
                over.end()
        if self._set is None or not all(part.whole for part in self._parts):
            raise ProtocolError("the transfer ended before its tensors were complete")

    def _describe(self, sent: Any) -> None:
        if self._set is not None and sent.id and sent == self._set:
            return
        self._set = sent
        self._parts = [_Incoming(spec) for spec in sent.tensors]

    def model(self, framework: Framework) -> Model:
        tensors = {part.name: build(part.dtype, part.shape, part.data, framework) for part in self._parts}
        return Model(tensors, self._set.name, int(self._set.version), self._set.metadata)


class _Exchange:
    def __init__(self, tensors: list[RawTensor], endpoint: str) -> None:
        self._tensors = tensors
        self._metadata = {"endpoint": endpoint} if endpoint else {}
        self._answers: dict[int, _Incoming] = {}

    def run(self, client: Client) -> None:
        credit = _Credit()

        def requests() -> Iterator[Any]:
            yield _pb.Chunk(credit=_UNLIMITED)
            for index, value in enumerate(self._tensors):
                spec = _spec(str(index), value, self._metadata)
                for chunk in _chunks(index, value, 0, 0):
                    if spec is not None:
                        chunk.spec.CopyFrom(spec)
                        spec = None
                    if not credit.take(len(chunk.data)):
                        return
                    yield chunk

        with client._open("Exchange", requests(), _pb.Chunk) as call:
            try:
                for chunk in call:
                    credit.grant(chunk.credit)
                    if chunk.HasField("spec"):
                        self._answers[chunk.tensor] = _Incoming(chunk.spec)
                    elif not chunk.data:
                        continue
                    if chunk.tensor not in self._answers:
                        raise ProtocolError(f"tensor {chunk.tensor} was not described")
                    self._answers[chunk.tensor].add(chunk)
            finally:
                credit.end()
        if len(self._answers) != len(self._tensors) or not all(one.whole for one in self._answers.values()):
            raise ProtocolError("the call ended before all answers were complete")

    @property
    def answers(self) -> list[tuple[Any, tuple[int, ...], bytearray]]:
        ordered = (self._answers[index] for index in range(len(self._tensors)))
        return [(one.dtype, one.shape, one.data) for one in ordered]


class TensorClient:
    """`Client` for asyncio: ``async with TensorClient() as client``. Its methods are those of `Client`.

    Transfers run in threads. If the task of one is cancelled, the transfer ends in the background.

    :param options: of `Client`.
    """

    def __init__(self, host: str = "localhost", port: int = 50051, **options: Any) -> None:
        self.blocking = Client(f"{host}:{port}", **options)

    async def _run(self, method: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        return await asyncio.to_thread(functools.partial(method, *args, **kwargs))

    async def put(self, name: str, tensors: Mapping[str, Array], **options: Any) -> int:
        """See `Client.put`."""
        return await self._run(self.blocking.put, name, tensors, **options)

    async def get(self, name: str, **options: Any) -> Model:
        """See `Client.get`."""
        return await self._run(self.blocking.get, name, **options)

    async def send_tensors(self, *tensors: Array, metadata: Mapping[str, str] | None = None) -> TensorResponse:
        """See `Client.send_tensors`."""
        return await self._run(self.blocking.send_tensors, *tensors, metadata=metadata)

    async def receive_tensors(self, count: int = 1, parameters: Mapping[str, Any] | None = None) -> list[Array]:
        """See `Client.receive_tensors`."""
        return await self._run(self.blocking.receive_tensors, count, parameters)

    async def stream_tensors(self, *tensors: Array, endpoint: str = "") -> list[Array]:
        """See `Client.stream_tensors`."""
        return await self._run(self.blocking.stream_tensors, *tensors, endpoint=endpoint)

    async def close(self) -> None:
        """Closes the connection. Transfers in flight end with an error."""
        await self._run(self.blocking.close)

    async def __aenter__(self) -> TensorClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
