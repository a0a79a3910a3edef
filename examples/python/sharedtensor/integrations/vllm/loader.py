"""The load format "sharedtensor": an engine's parameters are the owner's memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.utils import weights_already_processed
from vllm.utils.torch_utils import set_default_torch_dtype

from ...client import Client
from ...errors import CapabilityError, ConfigurationError, NotFoundError, UnavailableError, UnsupportedError
from ...models import Model
from ...tables import size
from .. import Source, fingerprint, weights
from ..attached import BUFFER, Attached
from . import key as keys

logger = init_logger("vllm.sharedtensor")  # vLLM shows only messages of loggers below its own

_OPTIONS = {"model", "version", "socket", "wait", "any_checkpoint"}


class SharedTensorLoader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Attaches an engine to a version that `seed` published. `model_loader_extra_config` has:

    - `model`: the name. Each rank of an engine with several uses NAME/rankN.
    - `version`: by default the newest.
    - `socket`: the owner's; by default the default socket.
    - `wait`: seconds to wait for the owner and for the name, by default 60.
    - `any_checkpoint`: accepts a version that was made from another checkpoint of the same architecture.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        if not isinstance(extra.get("model"), str) or set(extra) - _OPTIONS:
            allowed = ", ".join(sorted(_OPTIONS - {"model"}))
            raise ConfigurationError(f"model_loader_extra_config is {extra}: it requires model, and allows {allowed}")
        self._source = Source(extra["model"], int(extra.get("version", 0)), extra.get("socket", ""))
        self._wait = float(extra.get("wait", 60))
        self._ignored = fingerprint.CHECKPOINT if extra.get("any_checkpoint") else frozenset()

    def download_model(self, model_config: Any) -> None:
        """Does nothing, because the owner has the weights."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Copies a version in the layout of checkpoints into a model that has its own memory."""
        del model_config
        model.load_weights(weights(self._source))

    def get_external_weight_memory(self, vllm_config: VllmConfig) -> int:
        """Returns the bytes of the owner's memory that the engine will use. vLLM does not count them as its own. 0 if
        the owner is not serving yet."""
        try:
            with self._source.connect() as client:
                found = client.inspect(keys.rank_name(self._source.model, vllm_config), self._source.version)
        except (UnavailableError, NotFoundError) as err:
            logger.warning("cannot learn the size of the weights, so vLLM counts them as its own: %s", err)
            return 0
        shared = {(s.storage, s.offset): s.nbytes for s in found.specs if not s.name.startswith(BUFFER)}
        return sum(shared.values())

    def load_model(self, vllm_config: VllmConfig, model_config: Any, prefix: str = "") -> nn.Module:
        """Returns a model whose parameters are the owner's memory, read-only, and whose buffers are copies.

        Raises IncompatibleError if the version was published for another configuration, or if the model needs tensors
        that it lacks; CapabilityError for layers that would transform the weights.
        """
        begin = time.monotonic()
        key = keys.of(vllm_config, model_config)  # loading changes the configuration
        with set_default_torch_dtype(model_config.dtype):
            with torch.device("meta"):
                module = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            device = torch.device(self.load_config.device or vllm_config.device_config.device)
            refuse_transforms(module, device)
            attached = self._attach(module, vllm_config, key, device)
            with processed(device):
                process_weights_after_loading(module, model_config, device)
        logger.info(
            "attached %s version %d: %s of the owner's memory in %.3f s",
            self._source.model,
            attached.version,
            size(attached.nbytes),
            time.monotonic() - begin,
        )
        return module.eval()

    def _attach(
        self, module: nn.Module, vllm_config: VllmConfig, key: dict[str, Any], device: torch.device
    ) -> Attached:
        name = keys.rank_name(self._source.model, vllm_config)
        client: Client[Any] = self._source.connect(wait=self._wait)
        try:
            model = self._acquire(client, name, device)
            fingerprint.check(model, key, self._ignored)
            attached = Attached(client, model, key)
            attached.attach(module)
        except BaseException:
            client.close()
            raise
        return attached

    def _acquire(self, client: Client[Any], name: str, device: torch.device) -> Model[Any]:
        """Acquires the version on the engine's GPU, if the owner places versions there or has published it there."""
        version, wait = self._source.version, self._wait
        if device.type == "cuda":
            try:
                return client.acquire(name, version, framework="torch", device=device, wait=wait)
            except UnsupportedError:
                pass
        return client.acquire(name, version, framework="torch", wait=wait)


def refuse_transforms(module: nn.Module, device: torch.device) -> None:
    """Raises CapabilityError for quantised layers whose loading would transform the weights."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    for name, layer in module.named_modules():
        method = getattr(layer, "quant_method", None)
        if not isinstance(method, QuantizeMethodBase):
            continue
        kind = type(method).__name__
        if device.type == "cpu":
            fits = kind in ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")
        else:
            fits = getattr(method, "supports_pre_processed_weights", kind.startswith("Unquantized"))
        if fits:
            continue
        raise CapabilityError(
            f"the layer {name} uses {type(method).__name__}, which transforms weights after loading: "
            "they cannot be shared in place"
        )


@contextmanager
def processed(device: torch.device) -> Iterator[None]:
    """Has vLLM leave the weights as they are, and only build what it derives from them.

    On a CPU vLLM would copy the weights of linear layers into a packed layout. Instead they use
    torch.nn.functional.linear on the shared memory.
    """
    if device.type != "cpu":
        with weights_already_processed():
            yield
        return
    from vllm.model_executor.layers import utils

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = _use_in_place
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing


def _use_in_place(layer: nn.Module, remove_weight: bool) -> None:
    del remove_weight
    layer.cpu_linear = torch.nn.functional.linear
