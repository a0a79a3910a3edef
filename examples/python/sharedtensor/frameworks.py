"""The array libraries that are installed."""

from __future__ import annotations

import functools
import sys
from typing import Any, Literal

from .errors import ConfigurationError

Framework = Literal["numpy", "torch"]


def torch() -> Any:
    """Returns the module torch. Raises ConfigurationError if it is not installed."""
    try:
        import torch as module
    except (ImportError, OSError) as err:
        raise ConfigurationError(f"torch is not installed here ({err}): install it, or use framework='numpy'") from None
    return module


def loaded_torch() -> Any | None:
    """Returns the module torch if the program has imported it, else None. For values that exist: a tensor of torch
    implies that torch is imported."""
    module = sys.modules.get("torch")
    return module if hasattr(module, "Tensor") else None  # another thread may be importing it


@functools.cache
def _default() -> Framework:
    try:
        import torch  # noqa: F401
    except (ImportError, OSError):  # OSError: one of its libraries cannot be loaded
        return "numpy"
    return "torch"


def must_import(framework: str | None) -> bool:
    """Reports whether `choose` would import torch for the first time."""
    return framework != "numpy" and loaded_torch() is None and not _default.cache_info().currsize


def choose(framework: str | None) -> Framework:
    """Returns the library whose tensors a program receives: `framework`, else torch if it is installed, else numpy.
    It does not depend on what the program has imported before."""
    if framework is None:
        return _default()
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
