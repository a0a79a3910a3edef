"""Thin ends of this package within inference engines. Each message is a socket, a name and a version; the weights stay
where they are.

=================  ==========  ==========================================================
module             pinned to   what it is
=================  ==========  ==========================================================
sglang             0.5.23      a custom weight loader function
vllm               0.33.0      a WeightTransferEngine and a model loader
checkpoint_engine  0.4.2       a sender to its receiver
=================  ==========  ==========================================================

All of it is checked against the classes and signatures of these releases, and against an owner of host memory. None of
it has run on a GPU.
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
    """Where weights are: the whole message from a trainer to an engine.

    :ivar socket: of the owner, "" for the default one.
    :ivar model: the name that they are published under.
    :ivar version: of it, 0 for the newest.
    """

    model: str
    version: int = 0
    socket: str = ""

    def json(self) -> str:
        """Returns the message as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str | bytes) -> Source:
        """Reads the message. Raises InvalidArgumentError for anything else."""
        try:
            value = json.loads(text)
            source = Source(value["model"], value.get("version", 0), value.get("socket", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as err:
            raise InvalidArgumentError(f"{text!r} does not say which weights are meant: {err}") from err
        if (
            not isinstance(source.model, str)
            or not isinstance(source.socket, str)
            or not isinstance(source.version, int)
        ):
            raise InvalidArgumentError(f"{text!r} does not say which weights are meant")
        return source

    def connect(self) -> Client:
        """Connects to the owner that has them."""
        return connect(self.socket or None, framework="torch")


def weights(source: Source, client: Client | None = None) -> Iterator[tuple[str, Any]]:
    """Yields the names and tensors of a source, as the load_weights of the engines' models take them. Each tensor is
    the owner's memory: a model copies it into its own layout, or keeps it."""
    own = client or source.connect()
    try:
        model = own.acquire(source.model, source.version, framework="torch")
        yield from model.items()
    finally:
        if client is None:
            own.close()
