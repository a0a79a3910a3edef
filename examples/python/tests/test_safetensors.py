"""The files that the tests of the Go reader share: both readers accept and refuse the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import sharedtensor as st
from sharedtensor import safetensors_file
from sharedtensor.arrays import elements_of

FILES = ROOT / "module" / "testdata" / "files"
CASES = [e for e in json.loads((FILES / "manifest.json").read_text())["files"] if e["path"].endswith(".safetensors")]


def test_the_shared_set_is_there() -> None:
    assert len(CASES) > 60
    assert sum(case["accept"] for case in CASES) > 10


@pytest.mark.parametrize("case", CASES, ids=[case["path"] for case in CASES])
def test_the_reader_accepts_and_refuses_what_the_go_reader_does(case: dict[str, Any]) -> None:
    path = FILES / case["path"]
    if not case["accept"]:
        with pytest.raises(st.InvalidArgumentError):
            safetensors_file.read(path)
        return
    tensors, metadata = safetensors_file.read(path)
    stored = {name: d for name, d in tensors.items() if name not in case["ties"]}
    found = {
        name: {
            "dtype": d.dtype.safetensors,
            "shape": list(d.shape),
            "sha256": hashlib.sha256(elements_of(d).tobytes()).hexdigest(),
        }
        for name, d in stored.items()
    }
    assert found == case["tensors"]
    assert metadata == case["metadata"]
    assert {name: next(k for k in stored if tensors[k] is tensors[name]) for name in case["ties"]} == case["ties"]


def test_what_is_written_is_read_with_all_names(tmp_path: Path) -> None:
    base = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"z": base, "pt": np.ones(2, np.int8), "a": base, "rows": base[:1], "transposed": base.T}
    made = st.state_dict(tensors, metadata={"format": "pt", "a": "pt"}, framework="numpy")
    assert made.tied() == [["z", "a"]]
    file = tmp_path / "m.safetensors"
    safetensors_file.write(file, made)
    found, metadata = safetensors_file.read(file)
    assert set(found) == set(tensors)
    for name, expected in tensors.items():
        np.testing.assert_array_equal(elements_of(found[name]).view(expected.dtype), expected)
    assert found["z"] is found["a"]
    assert metadata == {"format": "pt", "a": "pt", "sharedtensor.tied": '{"z":"a"}'}
    again = st.state_dict(found, metadata={"sharedtensor.tied": '{"a":"z"}'}, framework="numpy")
    safetensors_file.write(file, again)
    assert json.loads(safetensors_file.read(file)[1]["sharedtensor.tied"]) == {"a": "z"}, "an earlier choice is kept"


def test_the_name_of_the_metadata_is_no_tensor(tmp_path: Path) -> None:
    made = st.state_dict({"__metadata__": np.ones(2)}, framework="numpy")
    with pytest.raises(st.InvalidArgumentError, match="__metadata__"):
        safetensors_file.write(tmp_path / "m.safetensors", made)
    assert not list(tmp_path.iterdir())
