"""Modules of torch whose parameters are shared memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import gate
from .client import Client, connect
from .errors import IncompatibleError
from .frameworks import torch as _torch
from .models import Model
from .tensors import Tensor


def load_into(
    module: Any,
    name: str = "",
    *,
    version: int = 0,
    client: Client[Any] | None = None,
    strict: bool = True,
    model: Model[Any] | None = None,
    wait: float = 0.0,
    timeout: float | None = None,
    device: Any = None,
) -> Model[Tensor]:
    """Makes the owner's tensors the memory of the parameters and buffers of a module, without a copy.

    :param module: a torch.nn.Module. It may be on the device "meta", which has no memory.
    :param client: to acquire with; by default one is connected for this.
    :param strict: requires the same names on both sides. Shapes and data types have to be the same in any case.
    :param model: a model that was acquired before with framework="torch"; replaces `name`.
    :param wait: seconds to wait for a name that is not published yet.
    :param timeout: seconds that the acquire may take; by default that of the client.
    :param device: where the module is afterwards. Tensors of the version that are elsewhere are copied to it once. By
        default the version has to be on one device, which is that of the module unless it is on "meta".

    Returns the model. See `swap` for what happens to the module. Training it in place changes copies of its pages in
    this process: publish what was trained.
    """
    if model is None:
        own = client or connect(framework="torch", timeout=timeout)
        try:
            model = own.acquire(name, version, framework="torch", wait=wait, timeout=timeout)
        finally:
            if client is None:
                own.close()
    if device is None:
        _check_devices(module, model)
        swap(module, model, strict=strict)
        return model
    swap(module, model.to(device), strict=strict)
    for slot in (slot for places in _slots(module, persistent=False).values() for slot in places):
        if not slot.value.is_meta:
            slot.value.data = slot.value.data.to(device)
    return model


def _check_devices(module: Any, model: Model[Any]) -> None:
    """Raises IncompatibleError if the module would be on several devices."""
    slots = _slots(module)
    new = {str(model[key].device): key for key in slots if key in model and hasattr(model[key], "device")}
    old = {str(slot.value.device) for places in slots.values() for slot in places if not slot.value.is_meta}
    if len(new) > 1 or (old and len(new | dict.fromkeys(old)) > len(old)):
        raise IncompatibleError(
            f"{model.name!r} is on {', '.join(sorted(new))}, the module on {', '.join(sorted(old)) or 'meta'}: "
            "use load_into(device=...)"
        )


def swap(module: Any, tensors: Mapping[str, Any], *, strict: bool = True) -> None:
    """Makes the tensors of a model, or of a version that is being written, the memory of a module, without a copy.

    The module's Parameter objects and buffers stay the same objects, with class, attributes, gradients and
    requires_grad: only their memory is replaced. So optimizers, tied modules and lists of parameters stay as they are.
    The memory that was replaced is released when nothing refers to it any more.

    :param tensors: a model that was acquired with framework="torch", or a `VersionWriter`.
    :param strict: requires the same names on both sides. Parameters that a module has under several names need one of
        them.

    Everything is checked before anything is replaced: raises IncompatibleError with the module unchanged. Do not run
    the module meanwhile. A backward pass over results from before the swap raises torch's error for modified values.

    A parameter on "meta" needs torch 2.3 to stay the same object; before, and if there are weak references to it, it is
    replaced by a new one of the same class and attributes.
    """
    torch = _torch()
    slots = _slots(module)
    chosen = {key: tensors[key] for key in slots if key in tensors}
    targets = _targets(slots, chosen)
    _check(slots, chosen, targets, tensors, strict, torch)
    done: list[_Target] = []
    try:
        for target in targets:
            done.append(target)
            target.replace(torch)
    except BaseException:
        for target in reversed(done):
            target.restore(torch)
        raise
    _warn_of_meta(module)


def _warn_of_meta(module: Any) -> None:
    """Warns of buffers that have no memory: a state dict lacks them, so no version gives them values."""
    left = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if left:
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        warnings.warn(
            f"the buffers {', '.join(left[:3])}{more} are still on meta, because no state dict has them: "
            "compute them before the module runs",
            RuntimeWarning,
            stacklevel=3,
        )


def share_module(
    module: Any, name: str, *, client: Client[Any] | None = None, source: str = "", timeout: float | None = None
) -> Model[Tensor]:
    """Publishes a module's state and makes the published memory the module's own, so that this host has one copy.

    Returns the model that the module now uses. Non-persistent buffers stay where they are.
    """
    own = client or connect(framework="torch", timeout=timeout)
    try:
        version = own.publish(name, module.state_dict(), source=source, timeout=timeout)
        return load_into(module, name, version=version, client=own, timeout=timeout)
    finally:
        if client is None:
            own.close()


@dataclass(frozen=True)
class _Slot:
    """A place of a module that holds a tensor: the submodule, the attribute, and the tensor."""

    module: Any
    attribute: str
    value: Any

    def set(self, value: Any) -> None:
        """Puts a parameter or buffer there, with what the submodule's class does then."""
        setattr(self.module, self.attribute, value)


class _Target:
    """A parameter or buffer of a module, with all names and places that it has there, and what replaces its memory."""

    def __init__(self, key: str, old: Any, tensor: Any, slots: list[_Slot]) -> None:
        self.keys = [key]
        self.old = old
        self.tensor = tensor
        self.slots = slots
        self._data: Any = None  # the memory that was replaced
        self._swapped: Any = None  # the tensor that has it, after an exchange of the whole objects
        self._new: Any = None  # the parameter that replaced the object

    def replace(self, torch: Any) -> None:
        """Gives the parameter its new memory."""
        if not self.old.is_meta:
            self._data = self.old.data
            self.old.data = self.tensor
            _mark_modified(self.old, torch)
            return
        new = like(self.tensor, self.old, torch)
        exchange = getattr(torch.utils, "swap_tensors", None)
        if exchange is not None:
            try:
                exchange(self.old, new)
                self._swapped = new
                return
            except RuntimeError:  # there are weak references to it, or it is in a graph
                pass
        self._new = new
        for slot in self.slots:
            slot.set(new)

    def restore(self, torch: Any) -> None:
        """Undoes `replace`, also one that has failed."""
        if self._data is not None:
            self.old.data = self._data
        if self._swapped is not None:
            torch.utils.swap_tensors(self.old, self._swapped)
        if self._new is not None:
            for slot in self.slots:
                slot.set(self.old)


def _mark_modified(value: Any, torch: Any) -> None:
    """Has a backward pass that needs the replaced values raise an error, where torch can."""
    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None and not value.is_inference():
        increment(value)


def like(tensor: Any, old: Any, torch: Any) -> Any:
    """Returns a tensor over the memory of `tensor`, with the class, attributes and requires_grad of `old`."""
    new = torch.Tensor._make_subclass(type(old), tensor, old.requires_grad)
    new.__dict__.update(getattr(old, "__dict__", {}))
    return new


def _slots(module: Any, *, persistent: bool = True) -> dict[str, list[_Slot]]:
    """Returns for each name of the state dict the places that hold its tensor; without `persistent` also for the names
    of the buffers that the state dict lacks."""
    known = set(module.state_dict(keep_vars=True))
    found: dict[str, list[_Slot]] = {}
    for prefix, sub in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for table in (sub._parameters, sub._buffers):
            for attribute, value in table.items():
                if value is not None and (not persistent or dot + attribute in known):
                    found.setdefault(dot + attribute, []).append(_Slot(sub, attribute, value))
    return found


def _targets(slots: dict[str, list[_Slot]], tensors: dict[str, Any]) -> list[_Target]:
    """Returns the parameters and buffers that get a tensor, each once."""
    found: dict[int, _Target] = {}
    for key, tensor in tensors.items():
        for slot in slots[key]:
            target = found.get(id(slot.value))
            if target is None:
                found[id(slot.value)] = _Target(key, slot.value, tensor, [slot])
                continue
            if key not in target.keys:
                target.keys.append(key)
            target.slots.append(slot)
    known = {id(slot) for target in found.values() for slot in target.slots}
    for places in slots.values():  # names of the same parameter that the state dict lacks
        for slot in places:
            if id(slot.value) in found and id(slot) not in known:
                found[id(slot.value)].slots.append(slot)
    return list(found.values())


def _check(
    slots: dict[str, list[_Slot]],
    tensors: dict[str, Any],
    targets: list[_Target],
    given: Mapping[str, Any],
    strict: bool,
    torch: Any,
) -> None:
    """Raises IncompatibleError unless the tensors fit the places."""
    wrong = [text for target in targets for text in _misfits(target, tensors, torch)]
    if strict:
        set_by = {id(slot) for target in targets for slot in target.slots}
        wrong += [f"{key} is missing" for key, places in slots.items() if not {id(p) for p in places} <= set_by]
        wrong += [f"the module has no {key}" for key in given if key not in slots]
    if wrong:
        name = getattr(given, "name", "the state dict")
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise IncompatibleError(f"{name!r} does not fit the module: {'; '.join(wrong[:5])}{more}")


def _misfits(target: _Target, tensors: dict[str, Any], torch: Any) -> list[str]:
    """Returns why tensors cannot replace a parameter or buffer."""
    wrong = [text for key in target.keys if (text := _misfit(key, tensors[key], target.old, torch))]
    if wrong:
        return wrong
    first = target.tensor
    for key in target.keys[1:]:
        # One parameter has one memory. Tied names give the same tensor; two equal copies are as good.
        if tensors[key] is not first and not torch.equal(tensors[key], first):
            wrong.append(f"{target.keys[0]} and {key} are one parameter of the module, but have different values")
    return wrong


def _misfit(key: str, tensor: Any, old: Any, torch: Any) -> str:
    """Returns why a tensor cannot replace the memory of `old`, or ""."""
    if not isinstance(tensor, torch.Tensor):
        return f"{key} is an array of numpy: acquire the model with framework='torch'"
    lazy = getattr(torch.nn.parameter, "UninitializedTensorMixin", ())
    if isinstance(old, lazy):
        return f"{key} of the module has no shape yet: run the module once before"
    if wrapper := gate.wrapper(old):
        return f"{key} of the module is a {wrapper}, which has its memory in other tensors"
    if why := gate.misfit(old):
        return f"{key} of the module is {why}"
    if tensor.shape != old.shape:
        return f"{key} has shape {tuple(tensor.shape)}, the module's has {tuple(old.shape)}"
    if tensor.dtype != old.dtype:
        return f"{key} has type {tensor.dtype}, the module's has {old.dtype}: use module.to({tensor.dtype}) before"
    return ""
