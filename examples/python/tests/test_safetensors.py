"""The files that the tests of the Go reader share: both readers accept and refuse the same."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import sharedtensor as st
from sharedtensor import safetensors_file, safetensors_model
from sharedtensor.arrays import elements_of

FILES = ROOT / "module" / "testdata" / "files"
CASES = json.loads((FILES / "manifest.json").read_text())["files"]
SINGLE = [case for case in CASES if case["path"].endswith(".safetensors")]


def test_the_shared_set_is_there() -> None:
    assert len(CASES) > 80
    assert len(SINGLE) > 60
    assert sum(case["accept"] for case in CASES) > 10


@pytest.mark.parametrize("case", CASES, ids=[case["path"] for case in CASES])
def test_the_reader_accepts_and_refuses_what_the_go_reader_does(case: dict[str, Any]) -> None:
    path = FILES / case["path"]
    if not case["accept"]:
        with pytest.raises(st.InvalidArgumentError):
            safetensors_model.read_model(path)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tensors, metadata = safetensors_model.read_model(path)
    warned = " ".join(str(each.message) for each in caught)
    assert bool(warned) == bool(case.get("warns"))
    assert all(f"place {name} there" in warned for name in case.get("warns", []))
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
    assert "metadata" not in case or metadata == case["metadata"]
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


@pytest.mark.parametrize("case", SINGLE, ids=[case["path"] for case in SINGLE])
def test_the_package_accepts_what_the_set_says(case: dict[str, Any]) -> None:
    """Expected values come from the safetensors package, where it is installed."""
    package = pytest.importorskip("safetensors")
    if case.get("path") and not case["accept"] and not case.get("package_accepts"):
        with pytest.raises(package.SafetensorError), package.safe_open(FILES / case["path"], "numpy"):
            pass
        return
    with package.safe_open(FILES / case["path"], "numpy") as opened:
        if case["accept"]:
            assert set(opened.keys()) == set(case["tensors"])


def test_the_package_reads_what_is_written_and_is_read(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(1)
    tensors = {
        f"{dtype}/{'x'.join(map(str, shape))}": rng.integers(0, 2, shape).astype(dtype)
        for dtype in ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "float32", "int64", "float64")
        for shape in ((), (0,), (3,), (2, 3, 4))
    }
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    safetensors_file.write(ours, st.state_dict(tensors, metadata={"format": "pt"}, framework="numpy"))
    numpy_files.save_file(tensors, theirs, metadata={"format": "pt"})
    by_package = numpy_files.load_file(ours)
    by_us, metadata = safetensors_file.read(theirs)
    assert metadata == {"format": "pt"}
    assert set(by_package) == set(by_us) == set(tensors)
    for name, expected in tensors.items():
        assert by_package[name].dtype == expected.dtype
        np.testing.assert_array_equal(by_package[name], expected)
        np.testing.assert_array_equal(elements_of(by_us[name]).view(expected.dtype).reshape(expected.shape), expected)
