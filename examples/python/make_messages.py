"""Writes sharedtensor/messages.py from wire/fields.json, which has the protocol's messages as tables for programs.

python examples/python/make_messages.py          writes it anew
python examples/python/make_messages.py --check  says whether it is as it would be written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FIELDS = HERE.parents[1] / "wire" / "fields.json"
TARGET = HERE / "sharedtensor" / "messages.py"

TYPES = {
    "tstr": "str",
    "bstr": "bytes",
    "bool": "bool",
    "any": "Any",
    "uint64": "U64",
    "uint32": "U32",
    "int32": "I32",
    "int64": "I64",
    "uuid": "UUID",
    "size": "Size",
    "duration": "Size",
    "op": "U16",
    "code": "U16",
    "event-kind": "U8",
    "task-event-kind": "U8",
    "offer-event-kind": "U8",
    "load-state": "U8",
    "digest-state": "U8",
    "-1 / uint31": "File",
    "{ * tstr => tstr }": "dict[str, str]",
}
DEFAULTS = {"str": '""', "bytes": 'b""', "bool": "False", "Any": "None", "UUID": "bytes(16)"}
NAMES = {"bytes": "nbytes", "in": "in_", "i-ds": "ids"}
"""Names that Python has for something else."""
PRESENT = {("acquire", "device"), ("publish", "current"), ("withdraw", "current")}
"""Fields of messages in which zero is another value than none."""

HEAD = '''"""Messages, one class each, the n-th field with the key n, or with that of KEYS.

Made by make_messages.py from wire/fields.json.
What they mean is in wire/PROTOCOL.md. Times are nanoseconds since 1970, durations nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .message import I32, I64, U8, U16, U32, U64, UUID, File, Message, Size


@dataclass(kw_only=True, slots=True)
class Storage(Message):
    """A storage of a manifest, an array of its three fields."""

    AS_ARRAY: ClassVar[bool] = True

    nbytes: Size
    device: UUID
    type: I32
'''


def class_name(rule: str) -> str:
    """Returns what a rule of the schema is called here."""
    return "ErrorMessage" if rule == "error" else "".join(part.capitalize() for part in rule.split("-"))


def python_type(rule: str) -> str:
    """Returns the annotation for a type of the schema."""
    if rule.startswith("[*"):
        return f"list[{python_type(rule[2:-1].strip())}]"
    return TYPES.get(rule) or class_name(rule)


def line(rule: str, field: dict[str, object]) -> str:
    """Returns the line of one field of a message."""
    name = str(field["name"])
    kind = python_type(str(field["type"]))
    text = f"    {NAMES.get(name, name).replace('-', '_')}: {kind}"
    if not field.get("optional"):
        return text
    if (rule, name) in PRESENT:
        return f"{text} | None = None"
    if kind.startswith(("list", "dict")):
        return f"{text} = field(default_factory={kind[:4]})"
    if kind in DEFAULTS or kind in TYPES.values():
        return f"{text} = {DEFAULTS.get(kind, '0')}"
    return f"{text} | None = None"


def source() -> str:
    """Returns the whole file."""
    messages: dict[str, list[dict[str, object]]] = json.loads(FIELDS.read_text())["messages"]
    parts = [HEAD]
    for rule, fields in messages.items():
        lines = [line(rule, f) for f in fields] or ["    pass"]
        if moved := {str(f["name"]).replace("-", "_"): f["key"] for n, f in enumerate(fields, 1) if f["key"] != n}:
            lines.insert(0, f"    KEYS: ClassVar[dict[str, int]] = {json.dumps(moved)}\n")
        parts.append(
            f"\n\n@dataclass(kw_only=True, slots=True)\nclass {class_name(rule)}(Message):\n" + "\n".join(lines) + "\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if TARGET.read_text() == source() else f"{TARGET} is not what wire/fields.json says: run {__file__}")
    TARGET.write_text(source())
