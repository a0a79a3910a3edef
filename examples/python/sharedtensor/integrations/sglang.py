"""SGLang (0.5.23): a custom weight loader.

    python -m sglang.launch_server --custom-weight-loader sharedtensor.integrations.sglang.load_weights ...

Then the trainer says which weights are meant, and sends none:

>>> engine.update_weights_from_tensor(message("policy", 17),
load_format="sharedtensor.integrations.sglang.load_weights")

Checked against the call in sglang.srt.model_executor.model_runner_components.weight_updater. It has not run on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InvalidArgumentError
from ..frameworks import torch
from . import Source, weights

NAME = "sharedtensor.source"
"""The name of the one tensor of the message."""


def message(model: str, version: int = 0, socket: str = "") -> list[tuple[str, Any]]:
    """Returns what goes to update_weights_from_tensor as named_tensors: one tensor of bytes that says where the
    weights are."""
    text = Source(model, version, socket).json().encode()
    return [(NAME, torch().tensor(list(text), dtype=torch().uint8))]


def load_weights(model: Any, named_tensors: Iterable[tuple[str, Any]]) -> None:
    """Loads the weights that the message names into a model; SGLang calls it in each worker.

    Raises InvalidArgumentError for tensors that are no message.
    """
    found = [tensor for name, tensor in named_tensors if name == NAME]
    if len(found) != 1:
        raise InvalidArgumentError(f"{len(found)} tensors named {NAME}: send what message() returns")
    model.load_weights(weights(Source.parse(bytes(found[0].cpu().numpy().tobytes()))))
