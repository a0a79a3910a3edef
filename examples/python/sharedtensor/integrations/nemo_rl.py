"""NeMo RL (no run of it has used this): a checkpoint engine in the memory of the owner, for the setting
``backend: "sharedtensor.integrations.nemo_rl:SharedTensorCheckpointEngine"``.

The first policy worker publishes each step as a version of `model`, and rollout workers of the same host read it in
place. The tests use the classes of nemo_rl.utils.checkpoint_engines.base. It has not run in a training loop of NeMo RL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from typing import Any

from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

from ..errors import ConfigurationError
from . import Source
from .steps import Receiver, Sender


class SharedTensorCheckpointEngine(CheckpointEngine):  # type: ignore[misc, unused-ignore]
    """Passes weights from policy workers to rollout workers of the same host as versions of a name."""

    cleanup_after_load = False  # batches are views of the owner's memory

    def __init__(self, bucket_size: int, model: str = "policy", socket: str = "", timeout: float = 600.0) -> None:
        """NeMo RL passes `bucket_size`, the bytes of a batch. The other parameters come from its engine_kwargs.

        :param model: the name that the weights are published under.
        :param socket: the owner's; "" for the default socket.
        :param timeout: the seconds that a rollout worker waits for weights.
        """
        self._bucket = bucket_size
        self._source = Source(model, socket=socket)
        self._timeout = timeout
        self._first = False
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def prepare(self) -> Any:
        """Returns the name and the socket, to compare them among workers."""
        return {"model": self._source.model, "socket": self._source.socket}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Makes the first worker the one that publishes. Raises ConfigurationError unless all workers use the same name
        and socket."""
        self._check(metadata)
        self._first = worker_rank == 0

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Checks that all workers use the same name and socket, and skips the versions that exist now."""
        self._check(metadata)
        self._receiver = Receiver(self._source, timeout=self._timeout)
        self._receiver.skip()

    def _check(self, metadata: list[Any]) -> None:
        if any(each != self.prepare() for each in metadata):
            raise ConfigurationError(f"the workers use different sources: {metadata}")

    async def send_weights(self, weights: Generator[tuple[str, Any], None, None]) -> None:
        """Publishes the weights in the first worker. The others take part in gathering them."""
        if not self._first:
            for _ in weights:
                pass
            return
        if self._sender is None:
            self._sender = Sender(self._source)
        self._sender.send(weights)

    async def receive_weight_batches(self) -> AsyncGenerator[list[tuple[str, Any]], None]:
        """Waits for weights that were not received before and yields them in the owner's memory, in batches of about
        the bucket's size."""
        if self._receiver is None:
            raise ConfigurationError("init_rollout_process_group was not called")
        model = await asyncio.to_thread(self._receiver.receive)
        batch: list[tuple[str, Any]] = []
        nbytes = 0
        for name, tensor in model.items():
            batch.append((name, tensor))
            nbytes += model.spec(name).nbytes
            if nbytes >= self._bucket:
                yield batch
                batch, nbytes = [], 0
        if batch:
            yield batch
