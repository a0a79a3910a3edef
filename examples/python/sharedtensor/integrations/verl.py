"""verl (0.9.1; no run of it has used this): a checkpoint engine with a cache in the memory of the owner.

    actor_rollout_ref.rollout.checkpoint_engine.backend=sharedtensor
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=sharedtensor.integrations.verl
    +actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.sharedtensor={model: policy, socket: /run/st.sock}

The first rank of the actor publishes each step as a version of `model`. Rollout workers of the same host read it in
place, also later and without the trainer (`get_weights`), so a rollout finishes its requests before it switches.

The tests use the classes of verl.checkpoint_engine.base. It has not run in a training loop of verl.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache

from ..errors import ConfigurationError
from . import Source
from .steps import Receiver, Sender


@CheckpointEngineRegistry.register("sharedtensor")
class SharedTensorCheckpointEngine(CheckpointEngineWithCache):  # type: ignore[misc, unused-ignore]
    """Passes weights from the actor to rollouts of the same host as versions of a name."""

    def __init__(
        self, bucket_size: int, model: str = "policy", socket: str = "", timeout: float = 600.0, is_master: bool = False
    ) -> None:
        """verl passes `bucket_size`, which is not needed, and `is_master`. The others come from its engine_kwargs.

        :param model: the name that the weights are published under.
        :param socket: the owner's; "" for the default socket.
        :param timeout: the seconds that a rollout waits for a step.
        """
        del bucket_size
        self._source = Source(model, socket=socket)
        self._timeout = timeout
        self._is_master = is_master
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def prepare(self) -> dict[str, Any]:
        """Returns the metadata of this worker: the name and the socket."""
        return {"model": self._source.model, "socket": self._source.socket}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Returns the rank of each worker. Raises ConfigurationError unless all workers use the same name and
        socket."""
        if any(each != metadata[0] for each in metadata):
            raise ConfigurationError(f"the workers use different sources: {metadata}")
        size = actor_wg_world_size + rollout_world_size
        ranks = list(range(size))
        return {"rank": ranks[:actor_wg_world_size]}, {"rank": ranks[actor_wg_world_size:]}

    def init_process_group(self, rank: int) -> None:
        """Skips the versions that exist now, so that rollouts wait for the weights of this update."""
        del rank
        if not self._is_master:
            self._receive().skip()

    def finalize(self) -> None:
        """Does nothing: the connection and the newest version stay for the next step."""

    async def send_weights(
        self, weights: Generator[tuple[str, Any], None, None], global_steps: int | None = None
    ) -> None:
        """Publishes the weights of a step in the first rank. The other ranks take part in gathering them."""
        if not self._is_master:
            for _ in weights:
                pass
            return
        if self._sender is None:
            self._sender = Sender(self._source)
        self._sender.send(weights, global_steps)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any], None]:
        """Waits for the weights of a step and yields them in the owner's memory."""
        model = await asyncio.to_thread(self._receive().receive, global_steps)
        for item in model.items():
            yield item

    async def get_weights(self) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields the newest weights without waiting. Raises NotFoundError if there are none."""
        model = await asyncio.to_thread(self._receive().newest)
        for item in model.items():
            yield item

    def _receive(self) -> Receiver:
        if self._receiver is None:
            self._receiver = Receiver(self._source, timeout=self._timeout)
        return self._receiver
