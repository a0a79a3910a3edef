"""Adapters for inference engines and training frameworks. Their messages contain a socket, a name and a version. The
weights are read in the owner's memory.

=================  ==========  ==========================================================
module             pinned to   content
=================  ==========  ==========================================================
vllm               0.33.0      a model loader in place, a seeder, weight transfer, sleep
sglang             0.5.23      a model loader in place, a custom weight loader
verl               0.9.1       a checkpoint engine with a cache
nemo_rl            Nov 2026    a checkpoint engine
checkpoint_engine  0.4.2       a sender for its receiver
=================  ==========  ==========================================================

`.ci/engines` runs vLLM 0.32.0 on a CPU. The tests use the classes and signatures of the other releases, and an owner of
host memory. No adapter has run on a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..client import Client, connect
from ..errors import InvalidArgumentError


@dataclass(frozen=True)
class Source:
    """The location of weights. It is the message from a trainer to an engine.

    :ivar socket: the owner's socket; "" for the default socket.
    :ivar model: the name of the published model.
    :ivar version: its version; 0 for the newest.
    """

    model: str
    version: int = 0
    socket: str = ""

    def json(self) -> str:
        """Returns the message as JSON."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str | bytes) -> Source:
        """Parses the message. Raises InvalidArgumentError if it is not valid."""
        try:
            value = json.loads(text)
            source = Source(value["model"], value.get("version", 0), value.get("socket", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise InvalidArgumentError(f"{text!r} is not a source of weights: {err}") from err
        if (
            not isinstance(source.model, str)
            or not isinstance(source.socket, str)
            or not isinstance(source.version, int)
        ):
            raise InvalidArgumentError(f"{text!r} is not a source of weights")
        return source

    def connect(self, wait: float = 0.0) -> Client:
        """Connects to the owner of the weights. Waits up to `wait` seconds for it."""
        return connect(self.socket or None, framework="torch", wait=wait)


def weights(source: Source, client: Client | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the names and tensors of a source for the load_weights methods of the engines' models. Each tensor is in
    the owner's memory. A model copies it into a different layout, or keeps it."""
    own = client or source.connect()
    try:
        model = own.acquire(source.model, source.version, framework="torch")
        yield from model.items()
    finally:
        if client is None:
            own.close()
