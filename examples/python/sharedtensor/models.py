"""A published version as a mapping of names to tensors over the owner's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from . import tables
from .arrays import Array, numpy_view, torch_view
from .errors import CapabilityError, ClosedError
from .frameworks import Framework
from .lease import Lease
from .manifest import TensorSpec


class StateDict(Mapping[str, Array]):
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
        self._made: dict[tuple[Any, ...], Array] = {}
        self.metadata = dict(metadata)

    # ---- the mapping

    def __getitem__(self, name: str) -> Array:
        spec = self._specs[name]
        key = (spec.storage, spec.offset, spec.dtype.number, spec.shape, spec.strides)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(spec)
        return found

    def _make(self, spec: TensorSpec) -> Array:
        mapping = self.mappings[spec.storage]
        if not hasattr(mapping, "view"):
            return mapping.tensor(spec, self._framework)
        try:
            return torch_view(mapping, spec) if self._framework == "torch" else numpy_view(mapping, spec)
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

    def tied(self) -> list[list[str]]:
        """Returns the groups of names that share their bytes, in the order of publishing."""
        groups: dict[tuple[int, int], list[str]] = {}
        for spec in self._specs.values():
            if spec.numel:
                groups.setdefault((spec.storage, spec.offset), []).append(spec.name)
        return [names for names in groups.values() if len(names) > 1]

    # ---- the end

    def close(self) -> None:
        """Releases the memory. What no tensor uses is unmapped now. Tensors stay valid. Safe to call twice."""
        self._mappings = None
        self._made.clear()

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


class Model(StateDict):
    """A version of a name, as `Client.acquire` returns it.

    The lease on it is released when the last tensor over its memory is gone, or by `release`. A pickle of a model is a
    reference: the process that unpickles it acquires the same version from the owner. Keep the model until then.

    :ivar name: that it is published under.
    :ivar version: of it.
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
    ) -> None:
        super().__init__(specs, metadata, mappings, framework)
        self.name = name
        self.version = version
        self._lease = lease

    @property
    def stale(self) -> str:
        """Why the server no longer holds this version for the model, or "". The tensors stay as they are."""
        return self._lease.stale

    @property
    def server(self) -> str:
        """Identifies the server's published versions: another text after a restart without adoption."""
        return self._lease.server

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
        return pickling.attach, (*self._lease.place, self.server, self.name, self.version, self._framework)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _title(self) -> str:
        size = "closed" if self._mappings is None else tables.size(self.nbytes)
        return f"{self.name!r} version {self.version}: {len(self)} tensors, {size}" + (
            f", stale: {self.stale}" if self.stale else ""
        )
