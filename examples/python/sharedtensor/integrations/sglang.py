"""SGLang (0.5.23; its engine has run on a CPU only): engines on the owner's weights without a copy, and a loader for
updates.

Installing this package is enough: SGLang finds `register` by the entry point ``sglang.srt.plugins``. An engine loads
from the owner if its loader configuration has the key "sharedtensor":

    python -m sglang.launch_server --model-path MODEL \\
        --model-loader-extra-config '{"sharedtensor": {"model": "llm", "socket": "SOCKET"}}'

The version has to be in the layout of SGLang's engines: `export` of a loaded model returns its tensors, to be published
with `fingerprint.metadata(key(...))`.

To copy the weights of a training step into a running engine, start it with
``--custom-weight-loader sharedtensor.integrations.sglang.load_weights``. The trainer sends their location:

>>> engine.begin_weight_update()
>>> engine.update_weights_from_tensor(message("policy", 17),
load_format="sharedtensor.integrations.sglang.load_weights")
>>> engine.end_weight_update()

The tests use SGLang's hook registry and compare the calls with its source. ``engines/sglang_check.py`` runs its engine
on a CPU with both. SGLang's kernels are not part of that, because PyPI has no build of them for a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import ConfigurationError, InvalidArgumentError
from ..frameworks import torch
from . import Source, fingerprint, weights
from .attached import Attached

NAME = "sharedtensor.source"
"""The name of the tensor that contains the message."""

KEY = "sharedtensor"
"""The key of the loader's configuration."""

TARGET = "sglang.srt.model_loader.loader.get_model_loader"
"""The function that `register` wraps."""


def message(model: str, version: int = 0, socket: str = "") -> list[tuple[str, Any]]:
    """Returns the named_tensors for update_weights_from_tensor: one tensor with the location of the weights."""
    text = Source(model, version, socket).json().encode()
    return [(NAME, torch().tensor(list(text), dtype=torch().uint8))]


def load_weights(model: Any, named_tensors: Iterable[tuple[str, Any]]) -> None:
    """Loads the weights that the message names into a model. SGLang calls it in each worker.

    Raises InvalidArgumentError if the tensors contain no message.
    """
    found = [tensor for name, tensor in named_tensors if name == NAME]
    if len(found) != 1:
        raise InvalidArgumentError(f"there are {len(found)} tensors named {NAME}: send the result of message()")
    model.load_weights(weights(Source.parse(bytes(found[0].cpu().numpy().tobytes()))))


def register() -> None:
    """Has SGLang use `Loader` for configurations with the key "sharedtensor". SGLang calls it in each of its
    processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(TARGET, choose, HookType.AROUND)


def choose(original: Callable[..., Any], load_config: Any, *arguments: Any, **named: Any) -> Any:
    """Returns a loader of the owner's weights if the configuration has the key "sharedtensor", else SGLang's."""
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, dict) or KEY not in extra:
        return original(load_config, *arguments, **named)
    return Loader(load_config, extra[KEY])


class Loader:
    """Loads a model whose parameters are the owner's memory and whose buffers are copies. It has the methods of
    SGLang's BaseModelLoader.

    :ivar preloaded_weights_bytes: the bytes of weights that are not this process's; SGLang does not count them.
    """

    def __init__(self, load_config: Any, options: Any) -> None:
        """`options` are `model`, `version`, `socket` and `wait`, the seconds to wait for the owner (60)."""
        allowed = {"model", "version", "socket", "wait"}
        if not isinstance(options, dict) or not isinstance(options.get("model"), str) or set(options) - allowed:
            raise ConfigurationError(f"{KEY} is {options}: it requires model, and allows version, socket and wait")
        self.load_config = load_config
        self.preloaded_weights_bytes = 0
        self._source = Source(options["model"], int(options.get("version", 0)), options.get("socket", ""))
        self._wait = float(options.get("wait", 60))

    def download_model(self, model_config: Any) -> None:
        """Does nothing, because the owner has the weights."""

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        """Returns the model. Raises IncompatibleError if the version does not fit."""
        from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
        from sglang.srt.model_loader.utils import set_default_torch_dtype

        quantization = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype), torch().device("meta"):
            module = _initialize_model(model_config, self.load_config, quantization)
        return self.attach(module, key(model_config, self.load_config))

    def attach(self, module: Any, expected: dict[str, Any]) -> Any:
        """Makes the owner's memory the parameters of a module on the device "meta" and returns the module."""
        client = self._source.connect(wait=self._wait)
        try:
            model = client.acquire(self._source.model, self._source.version, framework="torch", wait=self._wait)
            fingerprint.check(model, expected)
            attached = Attached(client, model, expected)
            attached.attach(module)
        except BaseException:
            client.close()
            raise
        _refresh_views(module)
        self.preloaded_weights_bytes = attached.nbytes
        return module.eval()


def key(model_config: Any, load_config: Any) -> dict[str, Any]:
    """Returns the fingerprint of a configuration: a part of what SGLang's own weight cache compares."""
    architectures = getattr(model_config.hf_config, "architectures", None) or []
    return {
        "engine": "sglang",
        "model_arch": ",".join(architectures),
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization or ""),
        "tp_rank": int(getattr(load_config, "tp_rank", None) or 0),
        "torch_version": str(torch().__version__),
    }


def _refresh_views(module: Any) -> None:
    """Renews views of weights that linear attention layers keep as plain attributes."""
    for _, layer in module.named_modules():
        attention: Any = getattr(layer, "attn", None)
        convolution = getattr(layer, "conv1d", None)
        if hasattr(attention, "refresh_conv_weights") and convolution is not None:
            attention.refresh_conv_weights(convolution.weight)
