"""Prints what the reader of the gguf package finds in a file: the metadata with types, and the tensors with a digest."""

import hashlib
import json
import sys

import gguf

reader = gguf.GGUFReader(sys.argv[1])
fields = [
    [field.name, [kind.name for kind in field.types], field.contents()]
    for field in reader.fields.values()
    if not field.name.startswith("GGUF.")
]
tensors = [
    [t.name, t.tensor_type.name, [int(n) for n in t.shape], hashlib.sha256(t.data.tobytes()).hexdigest()]
    for t in reader.tensors
]
print(json.dumps({"fields": fields, "tensors": tensors, "alignment": int(reader.alignment)}))
