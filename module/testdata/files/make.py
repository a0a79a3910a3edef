"""Writes the files of this folder and manifest.json, which the tests of the Go and the Python reader share.

    pip install safetensors==0.8.0 && python make.py

The safetensors package decides whether a single file is accepted. STRICTER lists what both readers refuse in addition; the
README of the format forbids or does not define these. The package has no rule for ties and indexes, so the expectations of
these are the rules of docs/files.md.
"""

import hashlib
import json
import struct
from pathlib import Path

import safetensors
from safetensors import SafetensorError, deserialize

HERE = Path(__file__).parent
TIED = "sharedtensor.tied"
entries = []

# Files that the safetensors package accepts and both readers refuse, with the reason.
STRICTER = {
    "invalid/leading-space.safetensors": "the header must begin with '{'",
    "invalid/duplicate-name-same-bytes.safetensors": "duplicate names are disallowed",
    "invalid/duplicate-metadata-key.safetensors": "duplicate keys are disallowed",
    "invalid/metadata-null.safetensors": "metadata is a map of strings to strings",
    "invalid/unknown-key.safetensors": "an entry has three keys",
    "invalid/entry-as-list.safetensors": "an entry is an object",
    "invalid/tied-is-not-json.safetensors": "sharedtensor.tied is not a JSON object",
    "invalid/tied-to-missing.safetensors": "sharedtensor.tied names a tensor that is not stored",
    "invalid/tied-and-stored.safetensors": "sharedtensor.tied ties a name that is stored",
    "invalid/tied-twice.safetensors": "sharedtensor.tied has a name twice",
    "invalid/tied-to-tied.safetensors": "sharedtensor.tied ties a name to a tied one",
    "invalid/tied-to-a-number.safetensors": "sharedtensor.tied maps a name to a number",
}


def pattern(n, salt=0):
    return bytes((i * 7 + 3 + salt) % 251 for i in range(n))


def raw(text, data=b""):
    text = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(text)) + text + data


def header(tensors, metadata=None):
    """tensors: (name, dtype, shape, bytes), stored one behind the other."""
    out, data = {}, b""
    if metadata is not None:
        out["__metadata__"] = metadata
    for name, dtype, shape, size in tensors:
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += pattern(size, len(out))
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
    return raw(text + b" " * (-len(text) % 8), data)


def ranges(**tensors):
    return json.dumps({name: {"dtype": "U8", "shape": [e - b], "data_offsets": [b, e]} for name, (b, e) in tensors.items()})


def write(path, content):
    target = HERE / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def described(content):
    """Names, types, shapes and digests of the tensors as the safetensors package reads them."""
    return {
        name: {"dtype": str(t["dtype"]), "shape": t["shape"], "sha256": hashlib.sha256(bytes(t["data"])).hexdigest()}
        for name, t in sorted(deserialize(content))
    }


def one(path, content, note="", ties=None, warnings=None):
    """Adds a file whose acceptance the safetensors package decides."""
    write(path, content)
    entry = {"path": path, "accept": True, "note": note}
    try:
        entry["tensors"] = described(content)
    except SafetensorError as err:
        entry["accept"], entry["note"] = False, note or str(err).removeprefix("Error while deserializing: ")
    if path in STRICTER:
        assert entry["accept"], f"{path} is refused by the package too: remove it from STRICTER"
        entry = {"path": path, "accept": False, "note": STRICTER[path], "package_accepts": True}
    assert entry["accept"] == path.startswith(("valid/", "tied/")), (path, entry)
    if entry["accept"]:
        entry["ties"] = ties or {}
        entry["metadata"] = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]]).get("__metadata__", {})
    entries.append(entry)


def model(path, accept, note, tensors=None, ties=None, warns=None):
    """Adds a directory or index. tensors maps names to the file that holds each."""
    entry = {"path": path, "accept": accept, "note": note}
    if accept:
        folder = HERE / path
        folder = folder if folder.is_dir() else folder.parent
        found = {name: described((folder / file).read_bytes())[name] for name, file in tensors.items()}
        entry |= {"tensors": dict(sorted(found.items())), "ties": ties or {}, "warns": sorted(warns or [])}
    entries.append(entry)


def index(path, weight_map, total_size=None, text=None):
    content = {"metadata": {} if total_size is None else {"total_size": total_size}, "weight_map": weight_map}
    write(path, (text or json.dumps(content, indent=2)).encode())


def valid():
    f32 = ("w", "F32", [2, 3], 24)
    one("valid/one.safetensors", header([f32]))
    one("valid/types.safetensors", header([
        ("f64", "F64", [3], 24), ("i64", "I64", [2], 16), ("u64", "U64", [2], 16), ("c64", "C64", [2], 16), ("f32", "F32", [2, 2], 16),
        ("i32", "I32", [3], 12), ("u32", "U32", [1], 4), ("f16", "F16", [4], 8), ("bf16", "BF16", [2, 3], 12), ("i16", "I16", [2], 4),
        ("u16", "U16", [2], 4), ("e4m3", "F8_E4M3", [4], 4), ("e5m2", "F8_E5M2", [4], 4), ("e8m0", "F8_E8M0", [4], 4),
        ("e4m3z", "F8_E4M3FNUZ", [4], 4), ("e5m2z", "F8_E5M2FNUZ", [4], 4), ("u8", "U8", [3], 3), ("i8", "I8", [3], 3), ("bool", "BOOL", [2], 2),
        ("f6a", "F6_E2M3", [4], 3), ("f6b", "F6_E3M2", [2, 4], 6), ("f4", "F4", [2, 4], 4),
    ]))
    one("valid/scalar-and-empty.safetensors", header([("scalar", "F32", [], 4), ("empty", "F32", [0, 3], 0), ("b", "U8", [2], 2), ("last", "I64", [2, 0], 0)]))
    one("valid/no-tensors.safetensors", raw("{}      "))
    one("valid/metadata-only.safetensors", header([], {"format": "pt"}))
    one("valid/unaligned.safetensors", header([("a", "U8", [1], 1), ("b", "F32", [1], 4), ("c", "F64", [2], 16)]))
    one("valid/not-in-order.safetensors", raw('{"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"abcd"))
    one("valid/spaces-and-newlines.safetensors", raw('{ "a" :\n{"shape":[2],\t"data_offsets":[0, 2],"dtype":"U8"}}\n\t ', b"ab"))
    one("valid/escapes.safetensors", raw('{"\\u00e9\\ud83d\\ude00\\n\\/":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"日本":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}', b"abc"))
    one("valid/twelve-dimensions.safetensors", header([("a", "U8", [1] * 10 + [2, 3], 6)]))
    one("valid/unknown-metadata.safetensors", header([f32], {"format": "pt", "license": "mit", "": "empty key", "empty value": ""}))
    pt = [("pt", "F32", [2], 8), ("w", "F32", [2], 8)]
    one("valid/tensor-named-pt.safetensors", header(pt, {"format": "pt"}), "metadata that equals a tensor's name ties nothing")
    one("valid/metadata-names-a-tensor.safetensors", header([("a.weight", "F32", [2], 8)], {"b.weight": "a.weight"}),
        "as the Python library's save_model records dropped names: tied only by an option, because other metadata may look the same")


def tied():
    stored = [("embed.weight", "F32", [2, 2], 16), ("norm", "F32", [2], 8)]
    def ties(value):
        return json.dumps(value, separators=(",", ":"))
    one("tied/one.safetensors", header(stored, {TIED: ties({"head.weight": "embed.weight"})}), ties={"head.weight": "embed.weight"})
    three = {"head.weight": "embed.weight", "lm.weight": "embed.weight", "scale": "norm"}
    one("tied/three.safetensors", header(stored, {"format": "pt", TIED: ties(three)}), ties=three)
    one("tied/none.safetensors", header(stored, {TIED: "{}"}), ties={})
    one("tied/metadata-of-the-same-name.safetensors", header(stored, {TIED: ties({"head.weight": "embed.weight"}), "format": "norm", "head.weight": "norm"}),
        "the record decides, not other metadata", ties={"head.weight": "embed.weight"})
    for name, value in {
        "is-not-json": "head.weight", "to-missing": ties({"head.weight": "other"}), "and-stored": ties({"norm": "embed.weight"}),
        "twice": '{"h":"norm","h":"embed.weight"}', "to-tied": ties({"a": "b", "b": "norm"}), "to-a-number": '{"h":1}',
    }.items():
        one(f"invalid/tied-{name}.safetensors", header(stored, {TIED: value}))


def invalid():
    two = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
    cases = {
        "overlap": raw(ranges(a=(0, 2), b=(1, 3)), b"abc"), "same-range": raw(ranges(a=(0, 2), b=(0, 2)), b"ab"),
        "hole": raw(ranges(a=(0, 2), b=(3, 5)), b"abcde"), "hole-at-the-beginning": raw(ranges(a=(1, 3)), b"abc"),
        "trailing-bytes": raw(ranges(a=(0, 2)), b"abc"), "trailing-bytes-without-tensors": raw("{}", b"a"), "cut-off": raw(ranges(a=(0, 4)), b"abc"),
        "duplicate-name": raw(f'{{"a":{two},"a":{{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}}}', b"abcd"),
        "duplicate-name-same-bytes": raw(f'{{"a":{two},"a":{two}}}', b"ab"),
        "duplicate-key": raw('{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        "duplicate-metadata": raw(f'{{"__metadata__":{{"a":"b"}},"__metadata__":{{"b":"c"}},"a":{two}}}', b"ab"),
        "duplicate-metadata-key": raw(f'{{"__metadata__":{{"a":"b","a":"c"}},"a":{two}}}', b"ab"),
        "metadata-null": raw(f'{{"__metadata__":null,"a":{two}}}', b"ab"), "metadata-number": raw(f'{{"__metadata__":{{"a":1}},"a":{two}}}', b"ab"),
        "metadata-nested": raw(f'{{"__metadata__":{{"a":{{"b":"c"}}}},"a":{two}}}', b"ab"),
        "leading-space": raw(f' {{"a":{two}}}', b"ab"), "byte-order-mark": raw(f'\ufeff{{"a":{two}}}', b"ab"),
        "unknown-key": raw('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"strides":[1]}}', b"ab"),
        "entry-as-list": raw('{"a":["U8",[2],[0,2]]}', b"ab"), "missing-key": raw('{"a":{"dtype":"U8","shape":[2]}}', b"ab"),
        "three-offsets": raw('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}}', b"ab"),
        "backwards": raw('{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}}', b"ab"),
        "negative-size": raw('{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', b"ab"),
        "float-size": raw('{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}', b"ab"),
        "bool-size": raw('{"a":{"dtype":"U8","shape":[true],"data_offsets":[0,1]}}', b"a"),
        "bool-offset": raw('{"a":{"dtype":"U8","shape":[1],"data_offsets":[false,true]}}', b"a"),
        "exponent-size": raw('{"a":{"dtype":"U8","shape":[2e0],"data_offsets":[0,2]}}', b"ab"),
        "wrong-length": raw('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', b"abcd"),
        "overflow": raw(f'{{"a":{{"dtype":"F32","shape":[{2**62},{2**62}],"data_offsets":[0,4]}}}}', b"abcd"),
        "half-a-byte": raw('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', b"ab"),
        "unknown-type": raw('{"a":{"dtype":"Q4_0","shape":[2],"data_offsets":[0,2]}}', b"ab"), "lower-case-type": raw('{"a":{"dtype":"u8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        "complex128": raw('{"a":{"dtype":"C128","shape":[1],"data_offsets":[0,16]}}', b"abcdefghabcdefgh"),
        "empty-tensor-inside-another": raw('{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"e":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}', b"abcd"),
        "empty-tensor-behind-the-end": raw('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}', b"ab"),
        "not-utf8": raw(b'{"\xff":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        "half-a-surrogate": raw('{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"ab"),
        "control-character": raw(f'{{"a\tb":{two}}}', b"ab"), "comma-at-the-end": raw(f'{{"a":{two},}}', b"ab"), "nan": raw('{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,2]}}', b"ab"),
        "nul-padding": raw(f'{{"a":{two}}}\0\0', b"ab"), "text-behind-the-header": raw(f'{{"a":{two}}}x', b"ab"), "list": raw("[]"), "header-of-0-bytes": raw(""),
        "header-cut-off": struct.pack("<Q", 100) + b"{}", "huge-header": struct.pack("<Q", 2**40) + b"{}", "negative-header": struct.pack("<q", -1) + b"{}",
        "seven-bytes": b"1234567", "empty": b"",
    }
    for name, content in cases.items():
        one(f"invalid/{name}.safetensors", content)


def sharded():
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    first, second = [("a", "F32", [2], 8), ("b", "F32", [2], 8)], [("c", "F32", [2], 8), ("d", "U8", [3], 3)]
    places = {"a": shards[0], "b": shards[0], "c": shards[1], "d": shards[1]}

    def folder(name, accept, note, weight_map=places, total=27, text=None, tensors=None, ties=None, warns=None, one=None, two=None):
        path = f"sharded/{name}"
        write(f"{path}/{shards[0]}", one or header(first, {"format": "pt"}))
        write(f"{path}/{shards[1]}", two or header(second, {"format": "pt"}))
        index(f"{path}/model.safetensors.index.json", weight_map, total, text)
        model(path, accept, note, tensors or weight_map, ties, warns)

    folder("plain", True, "two files and an index")
    model("sharded/plain/model.safetensors.index.json", True, "the same, opened by the index", places)
    folder("total-size-as-text", True, "total_size may be a string", total="27")
    folder("total-size-as-float", True, "total_size may be written as a float", text=json.dumps({"metadata": {"total_size": 27.0}, "weight_map": places}))
    folder("total-size-is-wrong", True, "total_size is not compared", total=5)
    folder("total-size-is-unusable", True, "total_size is not used, so any value is accepted", total={"bytes": [27]})
    folder("no-metadata", True, "metadata is optional", text=json.dumps({"weight_map": places}))
    folder("other-keys", True, "unknown keys are skipped", text=json.dumps({"weight_map": places, "other": {"a": [1, None]}}))
    less = {k: v for k, v in places.items() if k != "b"}
    folder("tensor-outside-the-index", True, "weight_map decides: a tensor that it does not list is skipped with a warning", less, warns=["b"])
    stale = header(second + [("a", "F32", [2], 8)])
    folder("stale-duplicate", True, "weight_map decides which file holds a tensor; the copy in another file is skipped with a warning", warns=["a"], two=stale)
    tie = {TIED: '{"tied":"a"}'}
    folder("tied", True, "the first file records the ties", one=header(first, tie), ties={"tied": "a"})
    folder("tied-across-files", True, "a record may name a tensor of another file", one=header(first, {TIED: '{"tied":"c"}'}), ties={"tied": "c"})
    folder("missing-tensor", False, "the file that weight_map names does not hold the tensor", {**places, "e": shards[1]})
    folder("wrong-file", False, "weight_map names a file that does not hold the tensor", {**places, "a": shards[1]})
    folder("missing-file", False, "weight_map names a file that is not there", {**places, "e": "other.safetensors"})
    folder("path-in-the-name", False, "a file of the index must be a plain name", {**places, "a": "../plain/" + shards[0]})
    folder("duplicate-in-the-index", False, "weight_map has a name twice", text='{"weight_map":{"a":"%s","a":"%s"}}' % tuple(shards))
    folder("broken-file", False, "each file obeys the rules of single files", two=raw(ranges(c=(0, 2), d=(1, 3)), b"abc"))
    folder("git-lfs-pointer", False, "the index is a git-lfs pointer", text="version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 1\n")
    for name in shards:
        write(f"sharded/no-index/{name}", header(first if name == shards[0] else second))
    model("sharded/no-index", False, "files of a sharded model without their index")


valid()
tied()
invalid()
sharded()
manifest = {
    "comment": "Written by make.py. accept: whether both readers accept the file. tensors: what a reader finds, without ties. ties: other names of stored tensors. "
    "warns: names of tensors that a reader skips with a warning. package_accepts: the safetensors package accepts a file that both readers refuse.",
    "safetensors": safetensors.__version__,
    "files": sorted(entries, key=lambda e: e["path"]),
}
(HERE / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False, sort_keys=False) + "\n")
print(len(entries), "files,", sum(e["accept"] for e in entries), "accepted")
