"""The description of a name and of the tensors of one version."""

from __future__ import annotations

from . import catalog, manifest, messages, tables


class Inspection:
    """What is known of a name, as `Client.inspect` returns it.

    :ivar model: its versions and their holders.
    :ivar specs: the tensors of the requested version.
    """

    def __init__(self, answer: messages.InfoResult) -> None:
        self.model = answer.model
        self.specs: list[manifest.TensorSpec] = []
        self.metadata: dict[str, str] = {}
        if answer.manifest is not None:
            table, self.metadata = manifest.unpack(answer.manifest)
            self.specs = list(table.values())

    def __repr__(self) -> str:
        return f"{catalog.Models(messages.Listed(models=[self.model]))!r}\n\n{self._tensors()}"

    def _tensors(self) -> str:
        rows = [
            (s.name, str(s.dtype), "×".join(map(str, s.shape)) or "scalar", tables.size(s.nbytes), s.digest.hex()[:12])
            for s in self.specs
        ]
        return str(tables.Table(["tensor", "type", "shape", "bytes", "digest"], rows))
