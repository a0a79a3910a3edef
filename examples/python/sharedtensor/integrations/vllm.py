"""vLLM (0.33.0): a weight transfer engine for training loops, and a model loader.

>>> from sharedtensor.integrations import vllm
>>> vllm.register()                        # in a plugin of the group vllm.general_plugins, for all workers
>>> LLM(model, weight_transfer_config=WeightTransferConfig(backend="sharedtensor"))
>>> llm.update_weights({"update_info": {"model": "policy", "version": 17}})

To load the model from an owner at the start, use ``LLM(model, load_format="sharedtensor",
model_loader_extra_config={"model": "llm"})``.

The tests use the classes in vllm.distributed.weight_transfer and vllm.model_executor.model_loader. It has not run on a
GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from ..client import Client
from ..errors import ConfigurationError
from . import Source, weights

BACKEND = "sharedtensor"


@dataclass
class InitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """The trainer's first message.

    :ivar socket: the owner's socket; "" for the default socket.
    """

    socket: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """The trainer's message for each update. It names the weights and does not contain them."""

    model: str
    version: int = 0


class SharedTensorEngine(WeightTransferEngine):  # type: ignore[misc, type-arg, unused-ignore]
    """Loads the version that the trainer names from the owner's memory."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._client: Client | None = None
        self._socket = ""

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Connects to the owner. Raises UnavailableError if it is not serving."""
        self.shutdown()
        self._socket = init_info.socket
        self._client = Source("", socket=self._socket).connect()

    def start_weight_update(self) -> None:
        """Prepares the model for weights in the layout of checkpoints."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Attaches to the version and loads it. The lease is held until the model has its weights."""
        if self._client is None:
            raise ConfigurationError("the engine is not connected: call init_transfer_engine first")
        self.model.load_weights(weights(Source(update_info.model, update_info.version, self._socket), self._client))

    def finish_weight_update(self) -> None:
        """Converts the loaded weights to the engine's layout."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Closes the connection to the owner. Safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None


class SharedTensorLoader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Loads a model from an owner. model_loader_extra_config contains `model`, and optionally `version` and
    `socket`."""

    def download_model(self, model_config: Any) -> None:
        """Does nothing, because the owner already has the weights."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights into an existing model. Raises ConfigurationError if the configuration does not name
        them."""
        del model_config
        extra = dict(self.load_config.model_loader_extra_config or {})
        if "model" not in extra or set(extra) - {"model", "version", "socket"}:
            raise ConfigurationError(
                f"model_loader_extra_config is {extra}: it requires model, and allows version and socket"
            )
        model.load_weights(weights(Source(extra["model"], int(extra.get("version", 0)), extra.get("socket", ""))))


def register() -> None:
    """Registers the engine and the loader in vLLM under the name "sharedtensor". Further calls change nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, SharedTensorEngine)
    register_model_loader(BACKEND)(SharedTensorLoader)
