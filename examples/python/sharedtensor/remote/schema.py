"""Protobuf messages from tables of their fields, so that no generated code depends on the installed protobuf.

Each user has a separate pool of descriptors, which other definitions in the program cannot contradict.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Fields = Mapping[str, tuple[int, str]]
"""The fields of a message by name: number and type. "repeated T" and "optional T" as in .proto files, and "map" for
map<string, string>. Other types are names of messages."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "fixed32": _Field.TYPE_FIXED32,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def load(package: str, definitions: Mapping[str, Fields]) -> Any:
    """Returns the classes of the messages as attributes of one object."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in definitions.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            _add(message, package, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in definitions
    }
    return SimpleNamespace(**classes)


def _add(message: Any, package: str, name: str, number: int, kind: str) -> None:
    label, _, kind = kind.rpartition(" ")
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if label == "repeated" or kind == "map":
        field.label = _Field.LABEL_REPEATED
    if label == "optional":
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_MESSAGE
    if kind != "map":
        field.type_name = f".{package}.{kind}"
        return
    entry = message.nested_type.add(name="".join(part.capitalize() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    for key, at in (("key", 1), ("value", 2)):
        entry.field.add(name=key, number=at, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    field.type_name = f".{package}.{message.name}.{entry.name}"
