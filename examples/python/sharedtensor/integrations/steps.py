"""Weights of training steps: one trainer publishes them as versions, and rollout workers of this host read them in
place.

Used by the adapters for verl and NeMo RL, which hand over weights tensor by tensor.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from ..client import Client
from ..errors import ConfigurationError, InvalidArgumentError, NotFoundError
from ..manifest import TensorSpec
from ..models import Model
from . import Source

STEP = "step"
"""The name of the step among the texts of a version."""


class Sender:
    """Publishes the weights of one step after the other under a name. It is not thread-safe.

    The first step is collected in this process before it is published. Later ones of the same layout are written
    straight into the memory of the version. Tensors on a GPU are copied to the host's memory.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._client: Client[Any] = source.connect()
        self._layout: list[TensorSpec] = []

    def send(self, weights: Iterable[tuple[str, Any]], step: int | None = None) -> int:
        """Publishes the weights and returns the version. Raises InvalidArgumentError for a name that occurs twice."""
        metadata = {} if step is None else {STEP: str(step)}
        if not self._layout:
            collected = _collect(weights)
            version = self._client.publish(self._source.model, collected, metadata=metadata)
            with self._client.acquire(self._source.model, version) as model:
                self._layout = model.specs
            return version
        with self._client.create(self._source.model, self._layout, framework="torch") as writer:
            left = set(writer)
            rest: dict[str, Any] = {}
            for name, tensor in weights:
                place = writer.get(name)
                if name in rest or (place is not None and name not in left):
                    raise InvalidArgumentError(f"the tensor {name!r} is there twice")
                if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
                    rest[name] = tensor.detach().cpu().clone()
                else:
                    place.copy_(tensor.detach())
                left.discard(name)
            if not rest and not left:
                return writer.commit(metadata=metadata)
            kept = {name: writer[name] for name in writer if name not in left and name not in rest}
            self._layout = []
            return self._client.publish(self._source.model, {**kept, **rest}, metadata=metadata)

    def close(self) -> None:
        """Closes the connection. What was published stays. Safe to call twice."""
        self._client.close()


def _collect(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in weights:
        if name in found:
            raise InvalidArgumentError(f"the tensor {name!r} is there twice")
        found[name] = tensor.detach().cpu().clone()
    return found


class Receiver:
    """Attaches to the weights of steps. A model stays valid while one of its tensors exists. It is not thread-safe."""

    def __init__(self, source: Source, *, timeout: float = 600.0) -> None:
        """`timeout` is how many seconds `receive` waits for a step."""
        self._source = source
        self._timeout = timeout
        self._client: Client[Any] = source.connect()
        self._last = 0

    def receive(self, step: int | None = None) -> Model[Any]:
        """Waits for a version that is newer than the last one, and has the step if one is given, and attaches to it.

        Raises ConfigurationError if a later step has replaced it, and DeadlineExceededError.
        """
        end = time.monotonic() + self._timeout
        with self._client.follow(self._source.model, framework="torch") as follower:
            seen = self._last
            while True:
                model = follower.wait_newer(seen, timeout=max(end - time.monotonic(), 0))
                if step is None or model.metadata.get(STEP) == str(step):
                    self._last = model.version
                    return model
                found = model.metadata.get(STEP, "")
                if found.isdecimal() and int(found) > step:
                    raise ConfigurationError(f"the weights of step {step} were replaced by those of step {found}")
                seen = model.version

    def skip(self) -> None:
        """Skips the versions that exist now, for example from an earlier run."""
        try:
            versions = self._client.inspect(self._source.model).model.versions
            self._last = max([self._last, *(each.version for each in versions)])
        except NotFoundError:
            pass

    def newest(self) -> Model[Any]:
        """Attaches to the newest version without waiting. Raises NotFoundError if there is none."""
        model = self._client.acquire(self._source.model, framework="torch")
        self._last = model.version
        return model

    def close(self) -> None:
        """Closes the connection. Tensors stay valid. Safe to call twice."""
        self._client.close()
