"""Checks with pycddl (PyPI) that each vector in wire/testdata matches its rule in wire/protocol.cddl, and that an altered
one does not.

    python .ci/cddl_vectors.py
"""
import json
import pathlib
import re
import sys

import pycddl

wire = pathlib.Path(__file__).resolve().parent.parent / "wire"
text = (wire / "protocol.cddl").read_text()
rules = dict.fromkeys(re.findall(r"^([a-z0-9-]+) = ", text, re.M))
failures = 0
vectors = json.loads((wire / "testdata" / "index.json").read_text())
for v in vectors:
    rule = v["message"]
    if rule not in rules:
        print(f"{v['file']}: protocol.cddl has no rule {rule}")
        failures += 1
        continue
    # pycddl validates against the first rule.
    schema = pycddl.Schema(f"vector = {rule}\n{text}")
    body = (wire / "testdata" / v["file"]).read_bytes()
    try:
        schema.validate_cbor(body)
    except pycddl.ValidationError as err:
        print(f"{v['file']} does not match {rule}: {err}")
        failures += 1
    try:
        schema.validate_cbor(b"\x82" + body + b"\xf6")  # an array of the message and null
        print(f"{rule} matches an altered message")
        failures += 1
    except pycddl.ValidationError:
        pass
print(f"pycddl: {len(vectors)} vectors, {failures} failures")
sys.exit(1 if failures else 0)
