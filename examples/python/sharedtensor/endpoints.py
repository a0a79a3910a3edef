"""The functions of an owner, as it describes them."""

from __future__ import annotations

import re

from . import messages, tables


class Endpoints(list[messages.EndpointInfo]):
    """Functions as `Client.endpoints` returns them: a list that prints as a table."""

    def table(self) -> tables.Table:
        """Returns one row a function."""
        rows = [(e.name, arguments(e), type_name(e.out), ", ".join(_how(e))) for e in self]
        return tables.Table(["function", "arguments", "result", "how"], rows)

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def arguments(e: messages.EndpointInfo) -> str:
    """Returns the arguments of a function as a person would write them: ``x: tensor, scale?: float32``."""
    if not e.in_fields:
        return type_name(e.in_)
    return ", ".join(f"{f.name}{'?' if f.optional else ''}: {type_name(f.type)}" for f in e.in_fields)


_NAMES = {
    "tensor.Tensor": "tensor",
    "module.StateDict": "state dict",
    "string": "str",
    "[]uint8": "bytes",
    "[]byte": "bytes",
    "interface {}": "any",
    "time.Time": "datetime",
    "time.Duration": "timedelta",
}


def type_name(text: str) -> str:
    """Returns the name of a type of Go as Python would write it. Names that are not Go's stay as they are."""
    name = text.lstrip("*")
    if name in _NAMES:
        return _NAMES[name]
    if name.startswith("[]"):
        return f"list[{type_name(name[2:])}]"
    found = re.fullmatch(r"map\[(\w+)\](.+)", name)
    if found:
        return f"dict[{type_name(found[1])}, {type_name(found[2])}]"
    return name


def _how(e: messages.EndpointInfo) -> list[str]:
    flags = {"task": e.task, "managed": e.managed, "stream": e.stream, "cache": e.cache, "serialized": e.serialized}
    return [name for name, on in flags.items() if on]
