"""Versions that a program writes in shared memory, and publishes without a copy."""

from __future__ import annotations

import operator
import threading
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import catalog, forks, frameworks, gate, op
from .arrays import describe, is_array, torch_dims
from .drafts import Draft
from .dtypes import DType
from .errors import CapabilityError, ClosedError, Error, ForkError, InvalidArgumentError
from .frameworks import Framework
from .importing import device_of
from .layout import Copy, Layout
from .manifest import ALIGNMENT, TensorSpec, canonical_strides, check_name, contiguous_strides, dense_strides
from .memory import Slab
from .models import StateDict
from .tensors import A

if TYPE_CHECKING:
    from .client import Client

MAX_NAME_BYTES = 255
MAX_BYTES = 1 << 62


class VersionWriter(StateDict[A]):
    """The next version of a name while this process writes it, as `Client.create` returns it: names and writable
    tensors, all zero.

    `commit` makes it the next version without a copy. Readers of the previous version never wait. Leaving a ``with``
    block without `commit` gives it up.

    The tensors stay valid after `commit`, as those of an acquired model do: a later write changes a copy of the page in
    this process. All writes have to be finished before `commit`.

    :ivar name: that it is published under.
    :ivar version: of it; 0 before `commit`.
    """

    def __init__(self, client: Client[Any], name: str, layout: Layout, slab: Slab, framework: Framework) -> None:
        """Takes the slab, which has to be zero."""
        self._draft = Draft(slab)
        super().__init__(layout.specs, {}, [self._draft], framework)
        self.name = name
        self.version = 0
        self._client = client
        self._layout = layout
        self._open = _Open(slab)

    def commit(
        self,
        *,
        source: str = "",
        metadata: Mapping[str, str] | None = None,
        digests: bool = False,
        owner_digests: bool = False,
        part: tuple[int, int] | None = None,
        part_key: str = "",
        timeout: float | None = None,
    ) -> int:
        """Publishes what was written as the next version of the name and returns that version. The parameters are those
        of `Client.publish`.

        If the owner refuses it or the connection is lost, the tensors stay as they are and `commit` can be repeated. An
        owner that received the first request may have published it. After success it returns the same version again.
        Raises ClosedError after `abort`.
        """
        with self._open.lock:
            if self.version:
                return self.version
            slab = self._open.require()
            slab.seal()
            self._draft.freeze()
            for low, high in self._layout.gaps():
                slab.clear(low, high)
            specs = self._layout.with_digests(slab) if digests else self._layout.specs
            self.version = self._client._run_made(
                lambda session: catalog.hand_over(
                    self.name,
                    specs,
                    slab,
                    session,
                    source=source,
                    metadata=metadata or {},
                    owner_digests=owner_digests,
                    part=part,
                    part_key=part_key,
                ),
                timeout=timeout,
            )
            self._open.slab = None
            self._client._pool.publications.put(slab)
            return self.version

    def abort(self) -> None:
        """Gives the version up. Its memory is freed with its last tensor. Does nothing after `commit`."""
        with self._open.lock:
            if self._open.slab is None:
                return
            self._open.end(ClosedError(f"the writer of {self.name!r} was aborted"))
            self._draft.abandon()

    def close(self) -> None:
        """Gives up a version that was not committed, and releases the memory. Tensors stay valid."""
        self.abort()
        super().close()

    def __enter__(self) -> VersionWriter[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def _title(self) -> str:
        state = f"version {self.version}" if self.version else str(self._open.error or "not committed")
        return f"{self.name!r}, {state}: {len(self)} tensors"


class _Open:
    """What a writer has until its end: the slab, and a lock for `commit` and `abort`.

    :ivar slab: until the version is committed or given up.
    :ivar error: why it was given up.
    """

    lock: threading.Lock

    def __init__(self, slab: Slab) -> None:
        self.slab: Slab | None = slab
        self.error: Error | None = None
        forks.track(self, lock=threading.Lock, forked=_Open._forked)

    def require(self) -> Slab:
        """Returns the slab. Raises the error that ended the writer."""
        if self.slab is None:
            raise self.error or ClosedError("the version was committed")
        return self.slab

    def end(self, error: Error) -> None:
        """Drops the slab. It does not return to the pool, because tensors may still write to it."""
        self.slab, self.error = None, error

    def _forked(self) -> None:
        if self.slab is not None:
            self.end(ForkError("the writer was made before the fork: create the version in this process"))


Described = Any
"""What describes a tensor to `Client.create`: an array or tensor, also one on the device "meta", a `TensorSpec`, or its
shape and data type."""


Specs = Mapping[str, Described] | Iterable[TensorSpec]


def create(client: Client[Any], name: str, specs: Specs, framework: Framework) -> VersionWriter[Any]:
    """Returns a writer in memory of the client's pool. Everything is checked before memory is taken."""
    _check_name(name)
    layout = plan(specs)
    device_of(client._session(), op.HOST)
    slab = client._pool.publications.take(layout.nbytes)
    if slab.writes > 1:
        slab.clear(0, slab.size)
    return VersionWriter(client, name, layout, slab, framework)


def plan(specs: Specs) -> Layout:
    """Lays out tensors in one slab. Names of the same tensor, and of the same place of a state dict, are tied. Dense
    tensors keep their strides; others become row-major.

    Raises InvalidArgumentError and CapabilityError with the name of the tensor.
    """
    named: Iterable[tuple[str, Described]]
    if isinstance(specs, Mapping) and not isinstance(specs, StateDict):
        named = specs.items()
    else:
        named = [(spec.name, spec) for spec in (specs.specs if isinstance(specs, StateDict) else specs)]
    placed: dict[str, TensorSpec] = {}
    tied: dict[Any, TensorSpec] = {}
    copies: list[Copy] = []
    kept: list[Any] = []  # an address identifies a tensor only while the tensor exists
    at = 0
    for key, value in named:
        check_name(key)
        if key in placed:
            raise InvalidArgumentError(f"the tensor {key!r} is there twice")
        try:
            identity, dtype, shape, strides, keep = _parts(value)
            strides = dense_strides(shape, canonical_strides(shape, strides))
        except CapabilityError as err:
            raise CapabilityError(f"the tensor {key!r}: {err}") from err
        except (TypeError, ValueError) as err:
            raise InvalidArgumentError(f"the tensor {key!r}: {err}") from err
        kept.append((keep, identity))
        twin = tied.get(identity)
        if twin is not None:
            placed[key] = twin._replace(name=key)
            continue
        spec = placed[key] = tied[identity] = TensorSpec(key, dtype, shape, strides, 0, at)
        copies.append(Copy(at, spec.nbytes))
        at = -(-(at + spec.nbytes) // ALIGNMENT) * ALIGNMENT
        if at > MAX_BYTES:
            raise InvalidArgumentError(f"the tensor {key!r} has the shape {shape}: the version would be too large")
    return Layout(list(placed.values()), at, copies)


def _check_name(name: str) -> None:
    """Raises InvalidArgumentError for a name that no owner accepts."""
    length = len(name.encode(errors="surrogatepass"))
    wrong = any(unicodedata.category(c) in ("Cc", "Cs") for c in name) or {".", ".."} & {*name.split("/")}
    if not 0 < length <= MAX_NAME_BYTES or wrong:
        raise InvalidArgumentError(
            f"{name!r} is no name of a model: 1 to {MAX_NAME_BYTES} bytes of text without control characters"
        )


def _parts(value: Described) -> tuple[Any, DType, tuple[int, ...], Sequence[int], Any]:
    """Returns what identifies the tensor among others, its type, its shape, its strides in elements, and the object
    whose life keeps the identity unique."""
    if isinstance(value, TensorSpec):
        place: Any = (value.storage, value.offset, value.dtype, value.shape, value.strides)
        return (place if value.numel else object()), value.dtype, value.shape, value.strides, value
    if frameworks.is_torch(value):
        tensor = gate.plain(value, meta=True)
        if tensor.is_meta:
            storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
            dtype = DType.of_name(str(tensor.dtype))
            shape, strides = torch_dims(tensor, dtype)
            place = (storage._cdata, tensor.storage_offset(), dtype, shape, strides)
            return (place if tensor.numel() else object()), dtype, shape, strides, (tensor, storage)
    if is_array(value):
        d = describe(value)
        place = (d.device, d.address, d.dtype, d.shape, d.strides)
        return (place if d.nbytes else object()), d.dtype, d.shape, d.strides, d
    shape, dtype = value
    dims = tuple(operator.index(dim) for dim in shape)
    return object(), DType.of(dtype), dims, contiguous_strides(dims), None
