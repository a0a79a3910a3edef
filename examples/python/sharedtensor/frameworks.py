"""Which array libraries there are. torch is never imported unless the program has, or asks for it."""

from __future__ import annotations

import sys
from typing import Any, Literal

from .errors import ConfigurationError

Framework = Literal["numpy", "torch"]


def torch() -> Any:
    """Returns the module torch. Raises ConfigurationError where it is not installed."""
    try:
        import torch as module
    except ImportError as err:
        raise ConfigurationError(f"torch is not installed here ({err}): install it, or use framework='numpy'") from None
    return module


def loaded_torch() -> Any | None:
    """Returns the module torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def choose(framework: str | None) -> Framework:
    """Returns what tensors shall be: as asked, else torch's where the program has imported torch, else numpy's."""
    if framework is None:
        return "torch" if loaded_torch() is not None else "numpy"
    if framework == "torch":
        torch()
        return "torch"
    if framework == "numpy":
        return "numpy"
    raise ConfigurationError(f"framework={framework!r}: it is 'numpy' or 'torch'")


def is_torch(value: object) -> bool:
    """Reports whether a value is a tensor of torch, without importing torch."""
    module = loaded_torch()
    return module is not None and isinstance(value, module.Tensor)
