"""Adapters for inference engines. Their messages contain a socket, a name and a version. The engines read the weights
from the owner's memory.

=================  ==========  ==========================================================
module             pinned to   content
=================  ==========  ==========================================================
sglang             0.5.23      a custom weight loader function
vllm               0.33.0      a WeightTransferEngine and a model loader
checkpoint_engine  0.4.2       a sender for its receiver
=================  ==========  ==========================================================

The tests use the classes and signatures of these releases, and an owner of host memory. No adapter has run on a GPU.
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

    def connect(self) -> Client:
        """Connects to the owner of the weights."""
        return connect(self.socket or None, framework="torch")


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
