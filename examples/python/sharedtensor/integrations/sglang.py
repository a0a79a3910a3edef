"""SGLang (0.5.23): a custom weight loader.

    python -m sglang.launch_server --custom-weight-loader sharedtensor.integrations.sglang.load_weights ...

The trainer then sends the location of the weights:

>>> engine.update_weights_from_tensor(message("policy", 17),
load_format="sharedtensor.integrations.sglang.load_weights")

The tests use the call in sglang.srt.model_executor.model_runner_components.weight_updater. It has not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgumentError
from ..frameworks import torch
from . import Source, weights

NAME = "sharedtensor.source"
"""The name of the tensor that contains the message."""


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
