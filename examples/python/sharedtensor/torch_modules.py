"""Modules of torch whose parameters are shared memory."""

from __future__ import annotations

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
    """Makes the owner's tensors the parameters and buffers of a module: no copy, and no memory of its own any more.

    :param module: a torch.nn.Module, also one on the device "meta", which has no memory to begin with.
    :param client: to acquire with; by default one is connected for this.
    :param strict: raise InvalidArgumentError, with nothing changed, where names or shapes are not the same on both
        sides.
    :param model: a model that was acquired before, instead of `name`.

    Returns the model. A parameter keeps requires_grad, but training it in place changes copies of its pages in this
    process: publish what was trained.
    """
    torch = _torch()
    if model is None:
        own = client or connect(framework="torch")
        try:
            model = own.acquire(name, version, framework="torch")
        finally:
            if client is None:
                own.close()
    slots = _slots(module, torch)
    _check(slots, model, name, strict)
    made: dict[int, Any] = {}
    for key, places in slots.items():
        if key not in model:
            continue
        tensor = model[key]
        for owner, attribute, old in places:
            if isinstance(old, torch.nn.Parameter):
                new = made.get(id(tensor))
                if new is None:
                    new = made[id(tensor)] = torch.nn.Parameter(tensor, requires_grad=old.requires_grad)
                owner._parameters[attribute] = new
            else:
                owner._buffers[attribute] = tensor
    return model


def share_module(module: Any, name: str, *, client: Client | None = None, source: str = "") -> Model:
    """Publishes a module's state and makes the published memory the module's own: from then on there is one copy of it
    on this host.

    Returns the model that the module now uses. Non-persistent buffers stay where they are.
    """
    own = client or connect(framework="torch")
    try:
        version = own.publish(name, module.state_dict(), source=source)
        return load_into(module, name, version=version, client=own)
    finally:
        if client is None:
            own.close()


def _slots(module: Any, torch: Any) -> dict[str, list[tuple[Any, str, Any]]]:
    """Returns for each name of the state dict the places that hold its tensor: owner, attribute and what is there."""
    del torch
    persistent = set(module.state_dict(keep_vars=True))
    found: dict[str, list[tuple[Any, str, Any]]] = {}
    for prefix, sub in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for attribute, value in [*sub._parameters.items(), *sub._buffers.items()]:
            if value is not None and dot + attribute in persistent:
                found.setdefault(dot + attribute, []).append((sub, attribute, value))
    return found


def _check(slots: dict[str, list[tuple[Any, str, Any]]], model: Model, name: str, strict: bool) -> None:
    wrong = []
    for key, places in slots.items():
        if key not in model:
            if strict:
                wrong.append(f"{key} is missing")
            continue
        want, have = tuple(places[0][2].shape), model.spec(key).shape
        if want != have:
            wrong.append(f"{key} has shape {have}, the module's has {want}")
    if strict:
        wrong.extend(f"the module has no {key}" for key in model if key not in slots)
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise InvalidArgumentError(f"{name!r} does not fit the module: {'; '.join(wrong[:5])}{more}")
