"""Some tensors of a manifest, and the memory that they need."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .errors import NotFoundError
from .manifest import TensorSpec, extent
from .tensors import Choice


@dataclass(frozen=True)
class Part:
    """Some tensors of a version.

    :ivar specs: as the manifest describes them.
    :ivar spans: by storage, from the first byte that they need to behind the last one.
    """

    specs: list[TensorSpec]
    spans: dict[int, tuple[int, int]]

    @staticmethod
    def of(specs: Mapping[str, TensorSpec], choice: Choice) -> Part:
        """Chooses tensors by name. Raises NotFoundError for a name that there is not."""
        if isinstance(choice, str):
            choice = [choice]
        if isinstance(choice, Collection):
            missing = [name for name in choice if name not in specs]
            if missing:
                raise NotFoundError(f"the version has no tensor {missing[0]!r}")
            wanted = set(choice)
            names = [name for name in specs if name in wanted]
        else:
            names = [name for name in specs if choice(name)]
        chosen = [specs[name] for name in names]
        spans: dict[int, tuple[int, int]] = {}
        for spec in chosen:
            low, high = spec.offset, spec.offset + spec.dtype.nbytes(extent(spec.shape, spec.strides)[1])
            first, last = spans.get(spec.storage, (low, high))
            spans[spec.storage] = min(first, low), max(last, high)
        return Part(chosen, dict(sorted(spans.items())))

    def moved(self) -> list[TensorSpec]:
        """Returns the tensors relative to the mapped spans."""
        index = {storage: i for i, storage in enumerate(self.spans)}
        return [s._replace(storage=index[s.storage], offset=s.offset - self.spans[s.storage][0]) for s in self.specs]
