"""Versions on other devices than that of their publication. The driver is the stand-in, with two GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import place_program
import pytest
from conftest import ROOT, Owner

import sharedtensor as st
from sharedtensor import placing

pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: nothing of CUDA is tested")


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which programs find the stand-in for libcuda."""
    if shutil.which("cc") is None:
        pytest.skip("the stand-in for libcuda needs a C compiler")
    folder = tmp_path_factory.mktemp("fake")
    flags = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", "-Wl,-soname,libcuda.so.1"]
    sources = sorted(map(str, (ROOT / "driver/cuda/cudatest/libcuda").glob("*.c")))
    subprocess.run(["cc", *flags, *sources, "-o", str(folder / "libcuda.so.1"), "-lm"], check=True)
    return {"LD_LIBRARY_PATH": str(folder), "FAKECUDA_DEVICES": "2"}


@pytest.mark.parametrize("command", place_program.COMMANDS)
def test_versions_on_devices(make_owner: Callable[..., Owner], two_gpus: dict[str, str], command: str) -> None:
    owner = make_owner("placeowner", str(place_program.BUDGET), env=two_gpus)
    package = str(Path(st.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, str(Path(place_program.__file__)), command, owner.socket],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **two_gpus, "PYTHONPATH": package},
    )
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr


def test_an_owner_without_placements(client: st.Client[Any]) -> None:
    """It refuses devices, and `to` copies as before."""
    client.publish("plain", {"w": np.ones(4, np.float32)})
    with pytest.raises(st.UnsupportedError):
        client.acquire("plain", device=bytes(range(16)))
    model = client.acquire("plain")
    assert model.placement == b"" and not model.asleep
    with pytest.raises(st.CapabilityError, match="numpy"):
        model.to("cpu")
    w = model["w"]
    model.sleep()
    assert model.asleep
    model.wake()
    assert w.tolist() == [1] * 4 and not model.asleep


@pytest.mark.parametrize(
    ("device", "want"), [("cpu", ("cpu", None)), ("cuda", ("cuda", None)), ("cuda:3", ("cuda", 3)), (2, ("cuda", 2))]
)
def test_names_of_devices(device: Any, want: tuple[str, int | None]) -> None:
    assert placing.kind_of(device) == want


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "meta", "cuda:1:2", -1])
def test_wrong_names_of_devices(device: Any) -> None:
    with pytest.raises(st.InvalidArgumentError, match="neither 'cpu' nor 'cuda:N'"):
        placing.kind_of(device)
