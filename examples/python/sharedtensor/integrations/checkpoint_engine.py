"""checkpoint-engine (0.4.2): a sender for its receiver, which is part of vLLM, SGLang and lmdeploy.

The receiver reads a recipe for a buffer, a list of the tensors in the buffer, and two end markers. This module sends a
recipe that calls a function of this package with the owner's socket, the model and its version. The buffer is the
owner's memory, so no weights are sent. This package must be installed for the receiver.

>>> with Sender("ipc://@weights-0.sock") as sender:                # the address in the workers' settings
...     sender.send(Source("policy", 17), device=0)

checkpoint-engine exchanges pickles between processes of one user on one host. This module unpickles nothing. Its tests
use checkpoint_engine.worker.update_weights_from_ipc. It has not run on a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import CapabilityError, InternalError
from ..frameworks import torch
from ..memory import Mapping
from . import Source


class Sender:
    """The parameter server's end of a receiver's socket. It is not thread-safe."""

    def __init__(self, address: str, *, timeout: float = 120.0) -> None:
        """Binds the address to which the receiver connects. Each answer may take up to `timeout` seconds."""
        zmq: Any = importlib.import_module("zmq")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
        self._socket.bind(address)

    def send(self, source: Source, *, device: int | None = None) -> int:
        """Lets the receiver load a version. Returns the version. Raises InternalError with the receiver's error if it
        fails.

        :param device: the number of the receiver's GPU; the receiver replaces it with its own.
        """
        with source.connect() as client, client.acquire(source.model, source.version, framework="torch") as model:
            buckets = plan(model)
            for storage, items in buckets.items():
                exact = (source.socket, source.model, model.version, storage)
                # The receiver overwrites the seventh argument with its device number, which torch's recipe has there.
                self._ask((rebuild, (*exact, None, None, device)))
                self._ask(items)
                self._ask(None)
                self._ask(None)
            return int(model.version)

    def _ask(self, message: object) -> None:
        self._socket.send_pyobj(message)
        answer = self._socket.recv()
        if answer != b"":
            self._socket.send(b"")
            raise InternalError(f"the receiver could not load the weights: {answer.decode(errors='replace')[-2000:]}")

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan(model: Any) -> dict[int, list[dict[str, Any]]]:
    """Returns the tensors of each storage in the receiver's format. Raises CapabilityError if a tensor has strides, or
    if there is more than one storage."""
    buckets: dict[int, list[dict[str, Any]]] = {}
    for spec in model.specs:
        if not spec.contiguous:
            raise CapabilityError(
                f"the tensor {spec.name!r} has strides, which the receiver does not support: publish it contiguous"
            )
        item = {"name": spec.name, "dtype": spec.dtype.torch, "shape": list(spec.shape), "offset": spec.offset}
        buckets.setdefault(spec.storage, []).append(item)
    if len(buckets) != 1:
        raise CapabilityError(
            f"{model!r} has {len(buckets)} storages, but the receiver supports one: publish it as one slab"
        )
    return buckets


def rebuild(socket: str, model: str, version: int, storage: int, _1: None, _2: None, device: int | None) -> Any:
    """Returns the bytes of a version's memory as a uint8 tensor, in place. The receiver's process calls it."""
    del _1, _2, device  # the memory determines the device
    with Source(model, version, socket).connect() as client:
        attached = client.acquire(model, version, framework="torch")
        mapping = attached.mappings[storage]
        if isinstance(mapping, Mapping):
            return torch().frombuffer(mapping.buffer(), dtype=torch().uint8)
        from ..dtypes import DType
        from ..manifest import TensorSpec

        return mapping.tensor(TensorSpec("buffer", DType.UINT8, (mapping.nbytes,), (1,), 0, 0), "torch")
