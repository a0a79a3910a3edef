"""Modules of torch whose parameters are shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .client import Client, connect
from .errors import InvalidArgumentError
from .frameworks import torch as _torch
from .models import Model


def load_into(
    module: Any,
    name: str,
    *,
    version: int = 0,
    client: Client | None = None,
    strict: bool = True,
    model: Model | None = None,
) -> Model:
    """Makes the owner's tensors the parameters and buffers of a module, without a copy.

    :param module: a torch.nn.Module. It may be on the device "meta", which has no memory.
    :param client: to acquire with; by default one is connected for this.
    :param strict: requires the same names on both sides. Shapes and data types have to be the same in any case.
    :param model: a model that was acquired before with framework="torch"; replaces `name`.

    Returns the model. Everything is checked before anything is replaced: raises InvalidArgumentError with the module
    unchanged. New parameters keep the class, the attributes and requires_grad of the old ones. Training one in place
    changes copies of its pages in this process: publish what was trained.
    """
    torch = _torch()
    if model is None:
        own = client or connect(framework="torch")
        try:
            model = own.acquire(name, version, framework="torch")
        finally:
            if client is None:
                own.close()
    slots = _slots(module)
    tensors = {key: model[key] for key in slots if key in model}
    _check(slots, tensors, model, strict, torch)
    changes = _changes(slots, tensors, torch)
    for table, attribute, new in changes:
        table[attribute] = new
    return model


def share_module(module: Any, name: str, *, client: Client | None = None, source: str = "") -> Model:
    """Publishes a module's state and makes the published memory the module's own, so that this host has one copy.

    Returns the model that the module now uses. Non-persistent buffers stay where they are.
    """
    own = client or connect(framework="torch")
    try:
        version = own.publish(name, module.state_dict(), source=source)
        return load_into(module, name, version=version, client=own)
    finally:
        if client is None:
            own.close()


@dataclass(frozen=True)
class _Slot:
    """A place of a module that holds a tensor: its table of parameters or buffers, the key there, and the tensor."""

    table: dict[str, Any]
    attribute: str
    value: Any


def _slots(module: Any) -> dict[str, list[_Slot]]:
    """Returns for each name of the state dict the places that hold its tensor."""
    persistent = set(module.state_dict(keep_vars=True))
    found: dict[str, list[_Slot]] = {}
    for prefix, sub in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for table in (sub._parameters, sub._buffers):
            for attribute, value in table.items():
                if value is not None and dot + attribute in persistent:
                    found.setdefault(dot + attribute, []).append(_Slot(table, attribute, value))
    return found


def _check(slots: dict[str, list[_Slot]], tensors: dict[str, Any], model: Model, strict: bool, torch: Any) -> None:
    """Raises InvalidArgumentError unless the tensors fit the places."""
    wrong: list[str] = []
    for key, places in slots.items():
        if key in tensors:
            wrong.extend(_misfit(key, tensors[key], place.value, torch) for place in places)
        elif strict:
            wrong.append(f"{key} is missing")
    if strict:
        wrong.extend(f"the module has no {key}" for key in model if key not in slots)
    wrong = [text for text in dict.fromkeys(wrong) if text]
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InvalidArgumentError(f"{model.name!r} does not fit the module: {'; '.join(wrong[:5])}{more}")


def _misfit(key: str, tensor: Any, old: Any, torch: Any) -> str:
    """Returns why a tensor cannot replace `old`, or ""."""
    if not isinstance(tensor, torch.Tensor):
        return f"{key} is an array of numpy: acquire the model with framework='torch'"
    lazy = getattr(torch.nn.parameter, "UninitializedTensorMixin", ())
    if isinstance(old, lazy):
        return f"{key} of the module has no shape yet: run the module once before"
    if tensor.shape != old.shape:
        return f"{key} has shape {tuple(tensor.shape)}, the module's has {tuple(old.shape)}"
    if tensor.dtype != old.dtype:
        return f"{key} has type {tensor.dtype}, the module's has {old.dtype}: use module.to({tensor.dtype}) before"
    return ""


def _changes(slots: dict[str, list[_Slot]], tensors: dict[str, Any], torch: Any) -> list[tuple[Any, str, Any]]:
    """Returns what to put where. Places that hold the same object get the same object."""
    made: dict[tuple[int, int], Any] = {}
    changes = []
    for key, tensor in tensors.items():
        for place in slots[key]:
            same = id(tensor), id(place.value)
            if same not in made:
                made[same] = _replacement(tensor, place.value, torch)
            changes.append((place.table, place.attribute, made[same]))
    return changes


def _replacement(tensor: Any, old: Any, torch: Any) -> Any:
    """Returns a tensor over the same memory as `tensor`, with the class, attributes and requires_grad of `old`."""
    attributes = getattr(old, "__dict__", {})
    if type(old) is torch.Tensor and not attributes and not old.requires_grad:
        return tensor
    new = torch.Tensor._make_subclass(type(old), tensor, old.requires_grad)
    new.__dict__.update(attributes)
    return new
