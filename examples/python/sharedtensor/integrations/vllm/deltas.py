"""Sparse deltas: the elements of a checkpoint that training has changed, published as a separate version.

>>> tensors, metadata = delta(old_state_dict, new_state_dict)
>>> client.publish("policy-delta", tensors, metadata=metadata)

The tensor NAME has the new values, and NAME#indices their places in the flattened tensor. The metadata has the shapes
and data types. vLLM writes the values through `load_checkpoint_weight_patches`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...models import Model

METADATA = "vllm.delta"
"""The name of the text that describes the tensors of a delta."""

INDICES = "#indices"


def delta(old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the elements of floating-point tensors that differ, to publish, and the metadata to publish them with.

    Tensors without a difference are left out. Raises InvalidArgumentError if names, shapes or types differ, or if a new
    value is NaN, which vLLM's patches use for elements that stay.
    """
    if set(old) != set(new):
        raise InvalidArgumentError(f"the state dicts have different names, such as {min(set(old) ^ set(new))}")
    tensors: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    for name, value in new.items():
        before = old[name]
        if value.shape != before.shape or value.dtype != before.dtype or not value.is_floating_point():
            raise InvalidArgumentError(f"{name} has another shape or type, or is no floating-point tensor")
        flat = value.detach().reshape(-1)
        changed = torch.nonzero(flat != before.detach().reshape(-1)).reshape(-1)
        if not changed.numel():
            continue
        values = flat[changed]
        if bool(torch.isnan(values).any()):
            raise InvalidArgumentError(f"{name} has a NaN")
        tensors[name] = values
        tensors[name + INDICES] = changed.to(torch.int32) if flat.numel() < 1 << 31 else changed
        shapes[name] = [list(value.shape), str(value.dtype).removeprefix("torch.")]
    if not tensors:
        raise InvalidArgumentError("the state dicts are equal: there is nothing to publish")
    return tensors, {METADATA: json.dumps(shapes, sort_keys=True)}


def patches(model: Model[Any]) -> list[Any]:
    """Returns a published delta as vLLM's CheckpointWeightPatch. Raises InvalidArgumentError if it is damaged."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import CheckpointWeightPatch

    try:
        shapes = json.loads(model.metadata[METADATA])
        return [
            CheckpointWeightPatch(name, tuple(shape), _dtype(dtype), values=model[name], indices=model[name + INDICES])
            for name, (shape, dtype) in shapes.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise InvalidArgumentError(f"{model.name!r} version {model.version} is no delta: {err}") from err


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no data type")
    return found


def apply(module: torch.nn.Module, model: Model[Any]) -> None:
    """Writes the elements of a delta into a model of vLLM. vLLM checks all of them first. After an error while it
    writes, the model has some elements of each version: load a whole version then."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import load_checkpoint_weight_patches
    from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

    with disable_mtp_completeness_check():
        load_checkpoint_weight_patches(module, patches(model))
