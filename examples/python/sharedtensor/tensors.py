"""The types of tensors for type checkers: torch.Tensor, or an array of numpy with any element type."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeVar

    Tensor = torch.Tensor
    A = TypeVar("A", default=torch.Tensor)
else:
    from typing import TypeVar

    Tensor = Any
    A = TypeVar("A")

Value = object
"""A result of a function of the owner, whose type a type checker cannot know. `Client.options` names it."""
NumpyArray = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""An array of numpy. Its element type is known when the program runs."""
Index = int | slice | np.ndarray[Any, Any] | None | tuple["int | slice | None", ...]
"""What selects a part of a tensor."""
Choice = Collection[str] | Callable[[str], bool]
"""What selects tensors of a model: their names, or a function that reports whether a name is selected."""
NUMPY = Literal["numpy"]
TORCH = Literal["torch"]

__all__ = ["A", "Choice", "Index", "NUMPY", "NumpyArray", "TORCH", "Tensor", "Value"]
