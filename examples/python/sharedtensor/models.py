"""A published version as a mapping of names to tensors over the owner's memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from . import digests, placing, tables
from .arrays import Described, flat, numpy_view, torch_view, writable_flat
from .dlpack import HostArray
from .errors import CapabilityError, ClosedError, IncompatibleError, InvalidArgumentError, UnsupportedError
from .frameworks import Framework
from .lease import Lease
from .manifest import TensorSpec
from .tensors import A, Index

if TYPE_CHECKING:
    from .catalog import Leases


class StateDict(Mapping[str, A]):
    """Named tensors over shared memory. A tensor is made at its first use. Each keeps the memory alive.

    Names that share their bytes (tied weights) give the same tensor. Arrays of numpy are read-only. torch has no
    read-only tensors: a tensor's pages are mapped so that a write changes a copy of the page in this process and never
    what others see.

    :ivar metadata: the publisher's texts.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec] | Mapping[str, TensorSpec],
        metadata: Mapping[str, str],
        mappings: Sequence[Any],
        framework: Framework,
    ) -> None:
        self._specs: Mapping[str, TensorSpec] = (
            specs if isinstance(specs, Mapping) else {spec.name: spec for spec in specs}
        )
        self._mappings: Sequence[Any] | None = list(mappings)
        self._framework = framework
        self._made: dict[tuple[Any, ...], A] = {}
        self._buffers: dict[int, Any] = {}  # bytes of host memory as arrays, by the storages
        self.metadata = dict(metadata)

    # ---- the mapping

    def __getitem__(self, name: str) -> A:
        spec = self._specs[name]
        key = _view(spec)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(spec)
        return found

    def _make(self, spec: TensorSpec) -> Any:
        mapping = self.mappings[spec.storage]
        if not hasattr(mapping, "view"):
            return mapping.tensor(spec, self._framework)
        torch = self._framework == "torch"
        buffer = self._buffers.get(spec.storage)
        if buffer is None or self._mappings is None:
            buffer = self._buffers[spec.storage] = writable_flat(mapping) if torch else flat(mapping)
        try:
            return torch_view(mapping, spec, buffer=buffer) if torch else numpy_view(mapping, spec, buffer=buffer)
        except CapabilityError as err:
            raise CapabilityError(f"the tensor {spec.name!r}: {err}") from err

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    # ---- looking

    def spec(self, name: str) -> TensorSpec:
        """Returns the description and the place of a tensor, without making it. Raises KeyError."""
        return self._specs[name]

    @property
    def specs(self) -> list[TensorSpec]:
        """All tensors' descriptions, in the order of publishing."""
        return list(self._specs.values())

    @property
    def mappings(self) -> Sequence[Any]:
        """The memory, one for each storage. Raises ClosedError after `close`."""
        if self._mappings is None:
            raise ClosedError(f"{type(self).__name__} is closed; tensors that were taken from it are still valid")
        return self._mappings

    @property
    def nbytes(self) -> int:
        """The bytes of the memory."""
        return sum(mapping.nbytes for mapping in self.mappings)

    def raw(self, name: str) -> np.ndarray[Any, Any]:
        """Returns a tensor of host memory by the bits of its elements: unsigned integers of the same size, for packed
        types the bytes that hold them. For types that numpy or torch does not have."""
        spec = self._specs[name]
        mapping = self.mappings[spec.storage]
        if not hasattr(mapping, "view"):
            raise CapabilityError(f"the tensor {name!r} is on a device: raw() is for host memory")
        view = numpy_view(mapping, spec, raw=True)
        view.flags.writeable = False
        return view

    def file(self, storage: int = 0) -> str:
        """Returns the path of a storage's memory, ``/proc/self/fd/N``, for readers of the format that the memory has:
        GGUF, or safetensors if the owner loads with ``--file-layout``. The path is valid in this process while the
        model is open and one of its arrays or the model itself is alive. Raises CapabilityError for memory of a device
        or memory that is only a part of a file."""
        mapping = self.mappings[storage]
        if not hasattr(mapping, "view") or mapping.fd < 0 or mapping.file_offset:
            raise CapabilityError(f"the storage {storage} is not a whole file in host memory")
        return f"/proc/self/fd/{mapping.fd}"

    def tied(self) -> list[list[str]]:
        """Returns the groups of names of one tensor, in the order of publishing: with the same bytes, type, shape and
        strides. A view of a part of a tensor is not tied to it."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for spec in self._specs.values():
            if spec.numel:
                groups.setdefault(_view(spec), []).append(spec.name)
        return [names for names in groups.values() if len(names) > 1]

    def to(self, device: Any) -> Mapping[str, A]:
        """Returns all tensors on a device of torch: those that are there in place, copies of others. Names of one
        tensor give one copy. Raises CapabilityError with framework="numpy"."""
        if self._framework != "torch":
            raise CapabilityError("arrays of numpy are in host memory: acquire the model with framework='torch'")
        made: dict[tuple[Any, ...], A] = {}
        for name, spec in self._specs.items():
            key = _view(spec)
            if key not in made:
                tensor: Any = self[name]
                made[key] = tensor.to(device)
        return {name: made[_view(spec)] for name, spec in self._specs.items()}

    def dlpack(self, name: str) -> Any:
        """Returns a tensor for libraries that take it by DLPack, such as JAX: see `to_dlpack`. numpy and torch need not
        have its type."""
        spec = self._specs[name]
        mapping = self.mappings[spec.storage]
        if not hasattr(mapping, "view"):
            return mapping.tensor(spec, self._framework)
        bits = self.raw(name)
        return HostArray(Described(bits, spec.dtype, spec.shape, spec.strides, mapping.address + spec.offset))

    def get_slice(self, name: str) -> TensorSlice[A]:
        """Returns a tensor that is made when it is indexed, as ``safe_open(...).get_slice`` of safetensors does."""
        return TensorSlice(self, self._specs[name])

    def verify(self, expected: bytes | str | None = None) -> bytes:
        """Computes the digests of all tensors, compares them, and returns the digest of the whole.

        :param expected: of the whole, as bytes or in hexadecimal: what `Client.digest` returned, or a known value.

        The digests of tensors that the publisher sent are compared too. Raises DigestError if one is different, and
        InvalidArgumentError if there is none to compare with. It reads all bytes, with several threads.
        """
        return digests.check(self._specs, self._bits, expected)

    def _bits(self, spec: TensorSpec) -> np.ndarray[Any, Any]:
        mapping = self.mappings[spec.storage]
        if hasattr(mapping, "view"):
            return self.raw(spec.name)
        copied: np.ndarray[Any, Any] = mapping.tensor(spec, "numpy").numpy()
        return copied

    # ---- the end

    def close(self) -> None:
        """Releases the memory. What no tensor uses is unmapped now. Tensors stay valid. Safe to call twice."""
        self._mappings = None
        self._made.clear()
        self._buffers.clear()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} over shared memory cannot be pickled: publish it and pickle the acquired model, "
            "or pickle dict(it), which copies"
        )

    # ---- showing

    def _title(self) -> str:
        return f"{len(self)} tensors"

    def table(self) -> tables.Table:
        """Returns the tensors as a table to print or to show in a notebook."""
        rows = [
            (
                s.name,
                str(s.dtype),
                "×".join(map(str, s.shape)) or "scalar",
                tables.size(s.nbytes),
                "" if s.contiguous else "strided",
            )
            for s in self._specs.values()
        ]
        return tables.Table(["tensor", "type", "shape", "bytes", ""], rows, self._title())

    def __repr__(self) -> str:
        return f"<sharedtensor.{type(self).__name__} {self._title()}>"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _view(spec: TensorSpec) -> tuple[Any, ...]:
    """Returns what the names of one tensor have in common."""
    return spec.storage, spec.offset, spec.dtype.number, spec.shape, spec.strides


class TensorSlice(Generic[A]):
    """A tensor of a state dict that is not made yet. Indexing returns a part of it, over the same memory."""

    def __init__(self, tensors: StateDict[A], spec: TensorSpec) -> None:
        self._tensors = tensors
        self._spec = spec

    def get_shape(self) -> list[int]:
        """Returns its dimensions."""
        return list(self._spec.shape)

    def get_dtype(self) -> str:
        """Returns its type by the name of safetensors, such as "BF16", or of the protocol where that has none."""
        return self._spec.dtype.safetensors or str(self._spec.dtype)

    def __getitem__(self, index: Index) -> A:
        whole: Any = self._tensors[self._spec.name]
        part: A = whole[index]
        return part


class Model(StateDict[A]):
    """A version of a name, as `Client.acquire` returns it.

    The lease on it is released when the last tensor over its memory is gone, or by `release`. A pickle of a model is a
    reference: the process that unpickles it acquires the same version from the owner. Keep the model until then.

    :ivar name: that it is published under.
    :ivar version: of it.
    :ivar partial: whether it has only some tensors of the version.
    """

    def __init__(
        self,
        name: str,
        version: int,
        lease: Lease,
        specs: Sequence[TensorSpec] | Mapping[str, TensorSpec],
        metadata: Mapping[str, str],
        mappings: Sequence[Any],
        framework: Framework,
        leases: Leases,
    ) -> None:
        super().__init__(specs, metadata, mappings, framework)
        self._leases = leases
        self.name = name
        self.version = version
        self._lease = lease
        self._asleep = False
        self._device = b""  # of the placement of a model that sleeps
        self.partial = False

    @property
    def stale(self) -> str:
        """Why the server no longer holds this version for the model, or "". The tensors stay as they are."""
        return self._lease.stale

    @property
    def server(self) -> str:
        """Identifies the server's published versions: another text after a restart without adoption."""
        return self._lease.server

    @property
    def part(self) -> tuple[int, int] | None:
        """The part of the version that the model is: its index, and the number of parts if that was given, else 0. None
        for a whole version."""
        part = self._lease.part
        return None if part is None else (part.index, part.of)

    @property
    def version_digest(self) -> bytes:
        """The digest of the whole version that the part belongs to, which attributes an answer to the version of all
        ranks. b"" without digests of the publishers, and for a model that is no part: see `Client.digest`."""
        return self._lease.digest

    @property
    def placement(self) -> bytes:
        """The UUID of the device that the model was acquired on; b"" if none was named."""
        return self._lease.placement

    def to(self, device: Any) -> Mapping[str, A]:
        """Returns all tensors on a device.

        An owner that places versions there makes one copy for all processes. The result is then a model over that
        memory, which is read-only. Otherwise the result is as that of a state dict: what is there in place, and private
        copies of other tensors.
        """
        client = self._leases.client()
        session = None if client is None else client._ready()
        if client is None or session is None or self.stale or placing.FEATURE not in session.hello.features:
            return super().to(device)
        try:
            if {mapping.device for mapping in self.mappings} == {placing.uuid_of(device, session)}:
                return super().to(device)
            return client._acquire(self.name, self.version, self._framework, self._chosen(), device, self.part)
        except (UnsupportedError, InvalidArgumentError):
            return super().to(device)

    def _chosen(self) -> list[str] | None:
        return list(self._specs) if self.partial else None

    @property
    def asleep(self) -> bool:
        """Whether `sleep` has taken the memory away."""
        return self._asleep

    def sleep(self) -> None:
        """Leaves the addresses of the tensors without memory until `wake`. The owner keeps the version.

        A model that was acquired on a device releases the placement, so that the owner may free it, and holds the
        version where it was published. A process that uses the tensors meanwhile is ended by a fault. Raises
        CapabilityError for memory that cannot be mapped again (cuda-ipc), and ClosedError without the client. Does
        nothing if the model sleeps.
        """
        if self._asleep:
            return
        self._check_mappable()
        if not self.placement:
            self.unmap()
            self._asleep = True
            return
        client = self._leases.client()
        if client is None:
            raise ClosedError(f"{self.name!r} cannot sleep: its client is gone")
        self._device = self.placement
        from .catalog import hold

        held = client._run(hold(self.name, self.version, self._leases))
        for mapping in self.mappings:
            mapping.vacate()
            mapping.owner = held
        former, self._lease = self._lease, held
        self._asleep = True
        session = former.session
        former.close()
        if session is not None:
            session.drain()  # a model that wakes next finds the room

    def wake(self, *, timeout: float | None = None) -> None:
        """Gives the tensors memory at the same addresses again after `sleep`: a placement that may be another copy of
        the same version. Does nothing if the model does not sleep.

        Raises what `Client.acquire` raises, and IncompatibleError if the placement has another layout. The model then
        sleeps on, and `wake` may be called again.
        """
        if not self._asleep:
            return
        if self._device:
            client = self._leases.client()
            if client is None:
                raise ClosedError(f"{self.name!r} cannot wake: its client is gone")
            version = self.name, self.version, self._framework, self._chosen()
            self.remap(client._acquire(*version, self._device, timeout=timeout))
        else:
            self._map_all()
        self._asleep = False

    def remap(self, newer: Model[Any]) -> None:
        """Maps the memory of another version at the addresses of this one. All tensors over this model's memory then
        show the values of that version: parameters, captured graphs and compiled functions stay as they are.

        :param newer: a version with the same layout. It is closed; its lease passes to this model, whose `version` and
            metadata change. The lease on the former version is released.

        Writes of this process to the tensors are lost. Do not compute with the tensors meanwhile: a computation would
        see some tensors of each version. Raises IncompatibleError, with nothing changed, if the layouts are different
        or the memory cannot be mapped elsewhere (cuda-ipc), and OutOfMemoryError if the system refuses a mapping. Then
        close the model: if it has several storages, some may show the newer version.
        """
        mappings, others = self.mappings, newer.mappings
        wrong = _different(self._specs, newer._specs)
        if not wrong:
            pairs = itertools.zip_longest(mappings, others)
            wrong = next((text for a, b in pairs if (text := _misfit(a, b))), "")
        if wrong:
            raise IncompatibleError(f"version {newer.version} of {newer.name!r} has another layout: {wrong}")
        for mapping, other in zip(mappings, others, strict=True):
            mapping.replace(other)
        self._lease, newer._lease = newer._lease, self._lease
        self._specs, self.metadata = newer._specs, newer.metadata
        self.name, self.version = newer.name, newer.version
        self._asleep = False
        newer.close()

    def unmap(self) -> None:
        """Leaves the addresses of the tensors without memory until `map`. The lease stays. A process that uses the
        tensors meanwhile is ended by a fault. Raises CapabilityError for memory that cannot be mapped again
        (cuda-ipc)."""
        self._check_mappable()
        if not self._asleep:
            for mapping in self.mappings:
                mapping.unmap()

    def map(self) -> None:
        """Maps the memory at the same addresses again after `unmap`, or wakes a model that sleeps. Does nothing if it
        is mapped. Raises OutOfMemoryError."""
        self._check_mappable()
        if self._asleep:
            self.wake()
        else:
            self._map_all()

    def _map_all(self) -> None:
        for mapping in self.mappings:
            mapping.map()

    def _check_mappable(self) -> None:
        for mapping in self.mappings:
            if not hasattr(mapping, "unmap"):
                raise CapabilityError(f"memory of {self.name!r} cannot be mapped again: it is of kind cuda-ipc")

    def release(self) -> None:
        """Releases the lease at once, although there may be tensors. The server may then free the version. Tensors
        stay valid, because this process maps their memory too."""
        self._lease.close()

    def close(self) -> None:
        """Releases the memory. The lease is released with the last tensor of the model."""
        super().close()

    def __reduce__(self) -> Any:
        from . import pickling

        if self._mappings is None:
            raise ClosedError(f"{self.name!r} version {self.version} is closed and cannot be pickled")
        tensors = self._chosen()
        place = self._device if self._asleep else self.placement
        version = self.server, self.name, self.version
        return pickling.attach, (*self._lease.place, *version, self._framework, tensors, place, self.part)

    def __enter__(self) -> Model[A]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _title(self) -> str:
        size = "closed" if self._mappings is None else tables.size(self.nbytes)
        return f"{self.name!r} version {self.version}: {len(self)} tensors, {size}" + (
            f", stale: {self.stale}" if self.stale else ""
        )


def _different(specs: Mapping[str, TensorSpec], others: Mapping[str, TensorSpec]) -> str:
    """Returns the first difference of two layouts, digests aside, or ""."""
    for name, spec in specs.items():
        other = others.get(name)
        if other is None:
            return f"it has no {name}"
        if other._replace(digest=spec.digest) != spec:
            return f"{name} is {other.dtype} {other.shape} at {other.storage}:{other.offset}"
    return next((f"{name} is new" for name in others if name not in specs), "")


def _misfit(mapping: Any, other: Any) -> str:
    if mapping is None or other is None:
        return "it has another number of storages"
    if not hasattr(mapping, "misfit"):
        return "this memory cannot be mapped anew"
    text: str = mapping.misfit(other)
    return text
