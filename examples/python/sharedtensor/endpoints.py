"""The functions of an owner, as it describes them."""

from __future__ import annotations

from . import messages, tables


class Endpoints(list[messages.EndpointInfo]):
    """Functions as `Client.endpoints` returns them: a list that prints as a table."""

    def table(self) -> tables.Table:
        """Returns one row a function."""
        rows = [(e.name, arguments(e), e.out, ", ".join(_how(e))) for e in self]
        return tables.Table(["function", "arguments", "result", "how"], rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def arguments(e: messages.EndpointInfo) -> str:
    """Returns the arguments of a function as a person would write them: ``x: *tensor.Tensor, scale?: float32``."""
    if not e.in_fields:
        return e.in_
    return ", ".join(f"{f.name}{'?' if f.optional else ''}: {f.type}" for f in e.in_fields)


def _how(e: messages.EndpointInfo) -> list[str]:
    flags = {"task": e.task, "managed": e.managed, "stream": e.stream, "cache": e.cache, "serialized": e.serialized}
    return [name for name, on in flags.items() if on]
