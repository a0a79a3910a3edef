"""Holds every vector in wire/testdata to its rule in wire/protocol.cddl, with pycddl (PyPI), and a broken one to a refusal.

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
    # A tool takes the first rule for the message.
    schema = pycddl.Schema(f"vector = {rule}\n{text}")
    body = (wire / "testdata" / v["file"]).read_bytes()
    try:
        schema.validate_cbor(body)
    except pycddl.ValidationError as err:
        print(f"{v['file']} is no {rule}: {err}")
        failures += 1
    try:
        schema.validate_cbor(b"\x82" + body + b"\xf6")  # an array of it and null
        print(f"{rule} accepts what it is not")
        failures += 1
    except pycddl.ValidationError:
        pass
print(f"pycddl: {len(vectors)} vectors, {failures} failures")
sys.exit(1 if failures else 0)
