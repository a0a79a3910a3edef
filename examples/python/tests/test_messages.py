"""The messages against the schema and the golden vectors."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import cbor2
import pytest
from conftest import ROOT, VECTORS

from sharedtensor import cbor, messages, op
from sharedtensor.errors import ProtocolError
from sharedtensor.frames import HEADER
from sharedtensor.message import Message

CDDL = (ROOT / "wire" / "protocol.cddl").read_text()
PYTHON = {"bytes": "nbytes", "in": "in_", "i-ds": "ids"}
"""Names of the schema that differ in Python."""


def cls_of(name: str) -> type[Message]:
    return getattr(
        messages, "ErrorMessage" if name == "error" else "".join(part.capitalize() for part in name.split("-"))
    )


def cddl_maps() -> dict[str, list[tuple[int, bool, str]]]:
    found = {}
    for name, body in re.findall(r"^([a-z-]+) = \{\n(.*?)^\}", CDDL, re.S | re.M):
        rows = re.findall(r"^\s*(\? )?(\d+): .*?;\s*([a-z0-9-]+)\s*$", body, re.M)
        found[name] = [
            (int(key), not optional, PYTHON.get(title, title).replace("-", "_")) for optional, key, title in rows
        ]
    return found


def test_every_message_of_the_schema_has_its_class() -> None:
    maps = cddl_maps()
    assert len(maps) >= 72
    for name, fields in maps.items():
        have = [(f.key, f.always, f.name) for f in cls_of(name).keyed_fields()]
        # Optional fields with nested messages may have no default.
        assert have[: len(fields)] == fields, name


def test_messages_are_made_of_the_field_tables() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/python/make_messages.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_operations_and_codes_of_the_schema() -> None:
    from sharedtensor import errors

    numbers = {title: int(n) for title, n in re.findall(r"^op-([a-z-]+) = (\d+)", CDDL, re.M)}
    missing = set(numbers.values()) - {int(o) for o in op.Op}
    assert not missing, f"operations that this client does not know: {missing}"
    for o in op.Op:
        assert numbers[o.name.lower().replace("_", "-")] == o
    for title, n in re.findall(r"^code-([a-z-]+) = (\d+)", CDDL, re.M):
        assert errors.class_of(int(n)).code == int(n), title


INDEX = json.loads((VECTORS / "index.json").read_text())
BODIES = [entry for entry in INDEX if entry["file"].endswith(".cbor")]


@pytest.mark.parametrize("entry", BODIES, ids=lambda e: e["file"])
def test_golden_vector(entry: dict[str, Any]) -> None:
    body = (VECTORS / entry["file"]).read_bytes()
    assert len(body) == entry["bytes"]
    message = cls_of(entry["message"]).decode(body)
    # A vector with a removed key is encoded as another vector.
    assert message.encode() == (VECTORS / entry.get("encodes", entry["file"])).read_bytes()


def test_golden_frame_headers() -> None:
    for path in sorted(VECTORS.glob("frame-*.bin")):
        data = path.read_bytes()
        length, kind, files, id = HEADER.unpack(data[:16])
        assert len(data) == 16 + length
        assert kind in list(op.Kind)
        assert HEADER.pack(length, kind, files, id) == data[:16]
        if path.name == "frame-files.bin":
            assert (length, kind) == (0, op.Kind.FILES) and files


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"\xbf\xff", "indefinite map"),
        (b"\x9f\xff", "indefinite array"),
        (b"\xc0\x60", "tag"),
        (b"\xa2\x01\x00\x01\x00", "same key twice"),
        (b"\xa1\x01\x62\xff\xfe", "text that is not UTF-8"),
        (b"\xa0\x00", "bytes behind the item"),
        (b"\x81" * 20 + b"\x00", "20 levels"),
        (b"\x9a\x00\x20\x00\x00", "an array of 2097152 elements"),
        (b"\xba\x00\x02\x00\x00", "a map of 131072 pairs"),
        (b"\xa1\x01", "an end within"),
        (b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", "a text longer than all memory"),
        (b"\xa1\x81\x00\x00", "an array as a key"),
        (b"\xf7", "undefined"),
        (b"\x1c", "a reserved head"),
        (b"", "nothing"),
    ],
)
def test_receiver_refuses(body: bytes, what: str) -> None:
    with pytest.raises(ProtocolError):
        cbor.decode(body)


def test_receiver_accepts_long_forms_and_unknown_keys() -> None:
    assert cbor.decode(bytes.fromhex("a1180100")) == {1: 0}
    assert messages.Ping.decode(cbor2.dumps({1: 5, 99: ["later"]})) == messages.Ping(timestamp=5)


def test_deterministic_encoding_of_values() -> None:
    assert (
        cbor.encode({"b": 1.5, "a": [1, -1, None, True], "aaa": 1e300}).hex() == "a3"
        "6161840120f6f5"
        "6162f93e00"
        "63616161fb7e37e43c8800759c"
    )
    with pytest.raises(Exception, match="64 bits"):
        cbor.encode({1: 1 << 64})
    with pytest.raises(Exception, match="not both"):
        cbor.encode({1: 0, "a": 0})


def test_missing_keys_are_zero() -> None:
    info = messages.ServerInfo.decode(b"\xa0")
    assert info.server == "" and info.stats.requests == 0 and info.sessions == [] and dataclasses.is_dataclass(info)
