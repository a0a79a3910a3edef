"""The memory of a published version under the model of an engine."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..client import Client
from ..errors import CapabilityError, ConfigurationError, IncompatibleError
from ..models import Model
from ..torch_modules import like
from . import fingerprint

BUFFER = "buffer:"
"""The prefix of a name in a published version: of a buffer, or of a tensor that is a plain attribute. Parameters have
their own names."""


class Attached:
    """A published version that is the memory of a module's parameters. Buffers are private copies, because engines
    write to some of them.

    :ivar client: that holds it.
    :ivar version: of it.
    """

    def __init__(self, client: Client[Any], model: Model[Any], key: Mapping[str, Any]) -> None:
        """Takes the client and the model, which fits the key."""
        self.client = client
        self._model = model
        self._key = dict(key)
        self._module: weakref.ref[nn.Module] | None = None
        self._attributes: set[str] = set()  # the plain attributes that have values of the version

    @property
    def version(self) -> int:
        return self._model.version

    @property
    def nbytes(self) -> int:
        """The bytes of the memory that is not this process's."""
        return self._model.nbytes

    def attach(self, module: nn.Module) -> int:
        """Makes the tensors the parameters of a module that is on the device "meta", and copies the buffers. Parameters
        that share memory in the version become the same object. Returns the number of parameters.

        Raises IncompatibleError if a tensor of the module is missing in the version, or if shapes or types differ.
        """
        count = 0
        made: dict[int, nn.Parameter] = {}
        for name, owner, leaf, old in _places(module):
            if isinstance(old, nn.Parameter):
                tensor = self._tensor(name, old)
                parameter = made.get(id(tensor))
                if parameter is None:
                    parameter = made[id(tensor)] = like(tensor, old, torch).requires_grad_(False)
                    count += 1
                owner._parameters[leaf] = parameter
            else:
                owner._buffers[leaf] = self._buffer(name, old)
        for name, owner, leaf, old in _attributes(module):
            if old.is_meta or BUFFER + name in self._model:
                setattr(owner, leaf, self._buffer(name, old))
                self._attributes.add(name)
        left = [name for name, _, _, value in (*_places(module), *_attributes(module)) if value.is_meta]
        if left:
            raise IncompatibleError(f"{self._title()} lacks {_some(left)} of the model")
        self._module = weakref.ref(module)
        _attached[module] = self
        return count

    def switch(self, name: str, version: int) -> int:
        """Replaces the memory under the module's parameters by that of another version, and copies its buffers and the
        tensors that are plain attributes. Returns
        the version. If the layouts are equal, the new memory gets the addresses of the old one. The engine must be
        paused.

        Raises IncompatibleError if the version does not fit the module. The module then stays as it was.
        """
        module = self._require()
        newer = self.client.acquire(name, version, framework="torch", device=self._model.placement or None)
        former, self._model = self._model, newer
        try:
            fingerprint.check(newer, self._key, fingerprint.CHECKPOINT)
            places = [(old, self._pick(place, old)) for place, _, _, old in _places(module)]
            attributes = [(old, self._buffer(place, old)) for place, _, _, old in self._taken(module)]
        except BaseException:
            self._model = former
            newer.close()
            raise
        with torch.no_grad():
            buffers = [(old, new.clone()) for old, new in places if not isinstance(old, nn.Parameter)]
            try:
                former.remap(newer)
                self._model = former
            except IncompatibleError:  # other places in the memory, such as of versions that Go programs wrote
                for old, new in places:
                    if isinstance(old, nn.Parameter):
                        old.data = new
            for old, new in buffers + attributes:
                old.copy_(new)
        return self.version

    def sleep(self) -> None:
        """Leaves the addresses without memory until `wake`. The owner keeps the version. The engine must not run."""
        self._model.sleep()

    def wake(self) -> None:
        """Gives the addresses memory again after `sleep`."""
        self._model.wake()

    def _tensor(self, name: str, old: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of the version for a parameter or buffer."""
        if name not in self._model:
            raise IncompatibleError(f"{self._title()} lacks {name} of the model")
        tensor: Any = self._model[name]
        if not isinstance(tensor, torch.Tensor):
            raise CapabilityError(f"{name} of {self._title()} is not in memory that torch can use here")
        if tensor.shape != old.shape or tensor.dtype != old.dtype:
            raise IncompatibleError(
                f"{name} of {self._title()} is {tensor.dtype} {tuple(tensor.shape)}, "
                f"the model's is {old.dtype} {tuple(old.shape)}"
            )
        return tensor

    def _pick(self, name: str, old: torch.Tensor) -> torch.Tensor:
        return self._tensor(name if isinstance(old, nn.Parameter) else BUFFER + name, old)

    def _taken(self, module: nn.Module) -> list[tuple[str, nn.Module, str, torch.Tensor]]:
        """Returns the plain attributes that have values of the version. Raises IncompatibleError if the program has
        removed one, because its value cannot follow."""
        found = [place for place in _attributes(module) if place[0] in self._attributes]
        if lost := sorted(self._attributes - {name for name, _, _, _ in found}):
            raise IncompatibleError(f"the module no longer has {_some(lost)}, which had values of {self._title()}")
        return found

    def _buffer(self, name: str, old: torch.Tensor) -> torch.Tensor:
        return self._tensor(BUFFER + name, old).clone()

    def _require(self) -> nn.Module:
        module = self._module() if self._module is not None else None
        if module is None:
            raise ConfigurationError("the engine's model is gone")
        return module

    def _title(self) -> str:
        return f"{self._model.name!r} version {self._model.version}"


_attached: weakref.WeakKeyDictionary[nn.Module, Attached] = weakref.WeakKeyDictionary()


def find(module: nn.Module) -> Attached | None:
    """Returns the version that is the memory of a module or of the module that it wraps, or None."""
    for each in module.modules():
        found = _attached.get(each)
        if found is not None:
            return found
    return None


def all_attached() -> list[Attached]:
    """Returns the versions that modules of this process use."""
    return list(_attached.values())


def _places(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Yields each parameter and buffer of each submodule once, with its name, the submodule and the attribute. One
    parameter may be in several submodules."""
    for prefix, owner in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for table in (owner._parameters, owner._buffers):
            for leaf, value in list(table.items()):
                if value is not None:
                    yield dot + leaf, owner, leaf, value


def _attributes(module: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    """Yields tensors that are plain attributes of submodules, such as scales on the CPU, as `_places` does."""
    for prefix, owner in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        for leaf, value in list(vars(owner).items()):
            if isinstance(value, torch.Tensor):
                yield dot + leaf, owner, leaf, value


def export(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the tensors of a loaded module by their names in a published version, with tied names."""
    found = {BUFFER + name: value.detach() for name, _, _, value in _attributes(module)}
    for name, _, _, value in _places(module):
        found[name if isinstance(value, nn.Parameter) else BUFFER + name] = value.detach()
    return found


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
