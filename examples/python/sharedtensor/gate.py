"""The gate for tensors of torch: each one that enters this package has its elements at an address, or is refused."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from . import frameworks
from .errors import CapabilityError
from .manifest import extent


def plain(value: Any, *, meta: bool = False) -> Any:
    """Returns a tensor of exactly the class torch.Tensor with the elements of `value`, detached, conjugated and negated
    where `value` is so lazily.

    A DTensor whose local shard is the whole tensor is replaced by that shard. Raises CapabilityError, which names the
    kind, for tensors whose elements are not in strided memory of this process: other DTensors, wrapper subclasses,
    sparse, quantised, nested, fake, functorch and meta tensors, and those whose memory was freed.

    :param meta: accept tensors on "meta", of which only shape and type are used.
    """
    torch = frameworks.torch()
    local = _local(value)
    if local is not None:
        return plain(local, meta=meta)
    _refuse_wrappers(value, torch)
    try:
        with _without_overrides(torch):
            return _plain(value, torch, meta)
    except CapabilityError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as err:
        reason = str(err).strip().split("\n")[0]
        raise CapabilityError(f"a {_kind(value)} has no memory that can be shared: {reason}") from err


def misfit(value: Any) -> str:
    """Returns why a tensor of a module cannot get other memory, or "". It may be on "meta" or without memory."""
    torch = frameworks.torch()
    try:
        _refuse_wrappers(value, torch)
        with _without_overrides(torch):
            _refuse_layouts(value, torch)
    except CapabilityError as err:
        return str(err)
    return ""


def wrapper(value: Any) -> str:
    """Returns the name of the class of a tensor whose elements are in other tensors, or ""."""
    kind = type(value)
    if hasattr(kind, "__tensor_flatten__") or hasattr(value, "device_mesh"):
        return kind.__name__
    torch = frameworks.torch()
    own = getattr(kind, "__torch_dispatch__", None)
    disabled = getattr(torch._C, "_disabled_torch_dispatch_impl", None)
    return "" if own is None or own is disabled else kind.__name__


def _local(value: Any) -> Any:
    """Returns the shard of a DTensor that is the whole tensor, None for other tensors. Raises CapabilityError for a
    DTensor that is divided over processes."""
    if not (hasattr(value, "device_mesh") and hasattr(value, "placements") and hasattr(value, "to_local")):
        return None
    divided = [
        str(placement)
        for placement, size in zip(value.placements, value.device_mesh.shape, strict=True)
        if size > 1 and not placement.is_replicate()
    ]
    if divided:
        raise CapabilityError(
            f"a DTensor that is divided over processes ({', '.join(divided)}): pass full_tensor(), or publish "
            "to_local() of each rank with sharedtensor.shards"
        )
    local = value.detach().to_local()
    if tuple(local.shape) != tuple(value.shape):
        raise CapabilityError(f"a DTensor of shape {tuple(value.shape)} with a shard of shape {tuple(local.shape)}")
    return local


def _refuse_wrappers(value: Any, torch: Any) -> None:
    name = wrapper(value)
    if name:
        raise CapabilityError(
            f"a {name} has its elements in other tensors: pass a plain tensor, such as that of its dequantize()"
        )
    lazy = getattr(torch.nn.parameter, "UninitializedTensorMixin", ())
    if isinstance(value, lazy):
        raise CapabilityError(f"a {type(value).__name__} has no shape yet: run the module once before")
    functorch = getattr(torch._C, "_functorch", None)
    if functorch is not None and functorch.is_functorch_wrapped_tensor(value):
        raise CapabilityError("a tensor of functorch, inside of vmap or grad, has no memory of its own")
    functional = getattr(torch, "_is_functional_tensor", None)
    if functional is not None and functional(value):
        raise CapabilityError("a functional tensor has no memory of its own")


def _without_overrides(torch: Any) -> Any:
    """Returns the context in which methods of subclasses (__torch_function__) are not called."""
    disable = getattr(torch._C, "DisableTorchFunctionSubclass", None) or getattr(torch._C, "DisableTorchFunction", None)
    return nullcontext() if disable is None else disable()


def _plain(value: Any, torch: Any, meta: bool) -> Any:
    value = value.detach()
    if type(value) is not torch.Tensor:
        value = value.as_subclass(torch.Tensor)
    _refuse_layouts(value, torch)
    if value.device.type == "meta":
        if meta:
            return value
        raise CapabilityError('a tensor on "meta" has no elements')
    if value.device.type not in ("cpu", "cuda"):
        raise CapabilityError(f"a tensor on {value.device}: those on cpu and cuda can be shared")
    if value.is_conj() or value.is_neg():
        value = value.resolve_conj().resolve_neg()
    _check_memory(value)
    return value


def _refuse_layouts(value: Any, torch: Any) -> None:
    if value.is_nested:
        raise CapabilityError("a nested tensor: pass its parts, or to_padded_tensor()")
    if value.layout != torch.strided:
        raise CapabilityError(f"a tensor of layout {value.layout}: only strided ones can be shared")
    if value.is_quantized:
        raise CapabilityError(f"a quantised tensor of type {value.dtype}: pass int_repr() and its scales")


def _check_memory(value: Any) -> None:
    """Raises CapabilityError unless all elements are within memory."""
    if not value.numel():
        return
    storage = value.untyped_storage() if hasattr(value, "untyped_storage") else value.storage()
    _, high = extent(tuple(value.shape), tuple(value.stride()))
    size = value.element_size()
    needed = (value.storage_offset() + high) * size
    if needed > storage.nbytes():
        raise CapabilityError(
            f"a {_kind(value)} of {needed} bytes has {storage.nbytes()} bytes of memory: it was freed or never made"
        )
    if not value.data_ptr() or value.data_ptr() != storage.data_ptr() + value.storage_offset() * size:
        raise CapabilityError(f"a {_kind(value)} has no address")


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "tensor" if name in ("Tensor", "Parameter", "Buffer") else name
