"""vLLM (0.33.0): a weight transfer engine for training loops, and a model loader.

>>> from sharedtensor.integrations import vllm
>>> vllm.register()                                   # in a plugin of the group vllm.general_plugins, so that workers
do it too
>>> LLM(model, weight_transfer_config=WeightTransferConfig(backend="sharedtensor"))
>>> llm.update_weights({"update_info": {"model": "policy", "version": 17}})

and ``LLM(model, load_format="sharedtensor", model_loader_extra_config={"model": "llm"})`` to load from an owner at the
start.

Checked against the classes in vllm.distributed.weight_transfer and vllm.model_executor.model_loader. It has not run on
a GPU.
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
    """What the trainer says once.

    :ivar socket: of the owner, "" for the default one.
    """

    socket: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """What the trainer says for each update: which weights are meant, and no weights."""

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
        """Connects to the owner. Raises UnavailableError where it does not serve."""
        self.shutdown()
        self._socket = init_info.socket
        self._client = Source("", socket=self._socket).connect()

    def start_weight_update(self) -> None:
        """Prepares the model for weights as checkpoints have them."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Attaches to the version and loads it. The lease is held until the model has its weights."""
        if self._client is None:
            raise ConfigurationError("init_transfer_engine comes before the first update")
        self.model.load_weights(weights(Source(update_info.model, update_info.version, self._socket), self._client))

    def finish_weight_update(self) -> None:
        """Processes what was loaded into the engine's own layout."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Closes the connection to the owner. Safe to call twice."""
        if self._client is not None:
            self._client.close()
            self._client = None


class SharedTensorLoader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Loads a model from an owner. model_loader_extra_config has `model`, and may have `version` and `socket`."""

    def download_model(self, model_config: Any) -> None:
        """Does nothing: the owner has the weights already."""

    def load_weights(self, model: Any, model_config: Any) -> None:
        """Loads the weights into a model that is there. Raises ConfigurationError where the configuration does not
        name them."""
        del model_config
        extra = dict(self.load_config.model_loader_extra_config or {})
        if "model" not in extra or set(extra) - {"model", "version", "socket"}:
            raise ConfigurationError(
                f"model_loader_extra_config needs model, and may have version and socket; it is {extra}"
            )
        model.load_weights(weights(Source(extra["model"], int(extra.get("version", 0)), extra.get("socket", ""))))


def register() -> None:
    """Makes both known to vLLM under the name "sharedtensor". A second call changes nothing."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, SharedTensorEngine)
    register_model_loader(BACKEND)(SharedTensorLoader)
