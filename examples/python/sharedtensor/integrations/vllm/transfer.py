"""The weight transfer backend "sharedtensor": running engines get the next version.

The message for `update_weights` names a version and contains no weights: ``{"model": "llm", "version": 17}``. What it
does depends on the version:

- **In the layout of engines** (from `seed`, or a trainer's copy of that layout): the engine's parameters become the
  version's memory. Nothing is copied, and with equal layouts the addresses stay the same. This needs an engine that was
  loaded with the load format "sharedtensor".
- **In the layout of checkpoints** (a state dict): it is copied into the engine's own weights.
- **A sparse delta** (see `deltas`): its elements are written into the engine's own weights.

``POST /pause?mode=wait`` finishes the running requests before, so that each answer is made by one version.
``mode=keep`` keeps them, and they continue with the new weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ...client import Client
from ...errors import CapabilityError, ConfigurationError
from .. import Source, fingerprint, weights
from ..attached import Attached, find
from . import deltas
from .key import rank_name


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The first message. An engine with the load format "sharedtensor" does not need it: it uses its connection.

    :ivar socket: the owner's socket; "" for the default socket.
    """

    socket: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """The message for each update. It names the weights and does not contain them.

    :ivar model: the name.
    :ivar version: of it; 0 for the newest.
    """

    model: str
    version: int = 0


class SharedTensorEngine(WeightTransferEngine):  # type: ignore[misc, type-arg, unused-ignore]
    """Gives the engine's model the version that the message names."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._client: Client | None = None
        self._socket = ""
        self._reloading = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connects to the owner. Raises UnavailableError if it is not serving."""
        self.shutdown()
        self._socket = init_info.socket
        self._client = Source("", socket=self._socket).connect()

    def start_weight_update(self) -> None:
        """Does nothing: only a version in the layout of checkpoints needs vLLM's preparation."""
        self._reloading = False

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Switches the model to the version, or copies it. A copy holds its lease until the model has its weights.

        Raises IncompatibleError if a version in the layout of engines does not fit the model. The model then stays
        as it was.
        """
        attached = find(self.model)
        client = self._client or (attached.client if attached is not None else None)
        if client is None:
            raise ConfigurationError("the engine is not connected: call init_transfer_engine first")
        name = update_info.model if attached is None else rank_name(update_info.model, self.vllm_config)
        kind = client.inspect(name, update_info.version).metadata
        if fingerprint.METADATA in kind:
            if attached is None:
                raise ConfigurationError(
                    f"{update_info.model!r} is in the layout of engines: "
                    "start the engine with --load-format sharedtensor"
                )
            attached.switch(name, update_info.version)
            return
        self._refuse_shared(attached, update_info.model)
        source = Source(update_info.model, update_info.version, self._socket)
        if deltas.METADATA in kind:
            with client.acquire(source.model, source.version, framework="torch") as delta:
                deltas.apply(self.model, delta)
            return
        self._reload(source, client)

    def _refuse_shared(self, attached: Attached | None, name: str) -> None:
        if attached is not None and getattr(self.device, "type", "cpu") != "cpu":
            raise CapabilityError(
                f"{name!r} would be copied into the engine's weights, which are the owner's and read-only: "
                "publish it in the layout of engines"
            )

    def _reload(self, source: Source, client: Client[Any]) -> None:
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if not self._reloading:
            initialize_layerwise_reload(self.model)
            self._reloading = True
        with disable_mtp_completeness_check():
            self.model.load_weights(weights(source, client))

    def finish_weight_update(self) -> None:
        """Converts weights that were copied to the engine's layout."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        if self._reloading:
            finalize_layerwise_reload(self.model, self.model_config)
            self._reloading = False

    def shutdown(self) -> None:
        """Closes the connection to the owner. Safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None
