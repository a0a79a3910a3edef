"""checkpoint-engine (0.4.2): a sender to its receiver, which vLLM, SGLang and lmdeploy have.

The receiver gets a recipe for a buffer, then a list of what lies where in it, then twice that there is no more. Here
the recipe is a function of this package with the owner's socket, the model and its version: the buffer is the owner's
memory, and no bytes of weights are sent. The process of the receiver has to have this package.

>>> with Sender("ipc://@weights-0.sock") as sender:                # the address that the workers were told
...     sender.send(Source("policy", 17), device=0)

checkpoint-engine's messages are pickles, of the same user on the same host; nothing that this module receives is
unpickled. Checked against checkpoint_engine.worker.update_weights_from_ipc. It has not run on a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import CapabilityError, InternalError
from ..frameworks import torch
from ..memory import Mapping
from . import Source


class Sender:
    """The parameter server's end of a receiver's socket. For one thread."""

    def __init__(self, address: str, *, timeout: float = 120.0) -> None:
        """Binds the address, to which the receiver connects. Waits at most `timeout` seconds for each answer."""
        zmq: Any = importlib.import_module("zmq")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(timeout * 1000))
        self._socket.bind(address)

    def send(self, source: Source, *, device: int | None = None) -> int:
        """Has the receiver load a version. Returns the version. Raises InternalError with what the receiver says that
        went wrong.

        :param device: the number of the receiver's GPU; the receiver puts its own there.
        """
        with source.connect() as client, client.acquire(source.model, source.version, framework="torch") as model:
            buckets = plan(model)
            for storage, items in buckets.items():
                exact = (source.socket, source.model, model.version, storage)
                # The receiver writes its device's number over the seventh argument, as torch's own recipe has it there.
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
    """Returns for each storage what lies where in it, as the receiver reads it. Raises CapabilityError for a tensor
    with strides."""
    buckets: dict[int, list[dict[str, Any]]] = {}
    for spec in model.specs:
        if not spec.contiguous:
            raise CapabilityError(
                f"the tensor {spec.name!r} has strides, which the receiver does not know: publish it contiguous"
            )
        item = {"name": spec.name, "dtype": spec.dtype.torch, "shape": list(spec.shape), "offset": spec.offset}
        buckets.setdefault(spec.storage, []).append(item)
    if len(buckets) != 1:
        raise CapabilityError(
            f"{model!r} lies in {len(buckets)} storages, the receiver takes one: publish it as one slab"
        )
    return buckets


def rebuild(socket: str, model: str, version: int, storage: int, _1: None, _2: None, device: int | None) -> Any:
    """Returns the bytes of a version's memory as a tensor of uint8, in place. The receiver's process calls it."""
    del _1, _2, device  # the memory says which device it is on
    with Source(model, version, socket).connect() as client:
        attached = client.acquire(model, version, framework="torch")
        mapping = attached.mappings[storage]
        if isinstance(mapping, Mapping):
            return torch().frombuffer(mapping.buffer(), dtype=torch().uint8)
        from ..dtypes import DType
        from ..manifest import TensorSpec

        return mapping.tensor(TensorSpec("buffer", DType.UINT8, (mapping.nbytes,), (1,), 0, 0), "torch")
