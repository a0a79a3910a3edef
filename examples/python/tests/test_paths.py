"""Small rules of the paths that tensors take."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import numpy as np
import pytest

import sharedtensor as st
from sharedtensor import arrays, cbor, memory, system
from sharedtensor.dtypes import DType
from sharedtensor.manifest import TensorSpec


def test_keys_of_both_signs_are_in_the_order_of_their_encoding() -> None:
    keys = [0, 23, 24, 255, 256, 65536, 1 << 40, -1, -24, -25, -256, -257, -(1 << 40)]
    plain = {key: {"x": [1.5, {-1: None, 1000: True}]} for key in reversed(keys)}
    body = cbor.encode({"a": plain})
    assert cbor.decode(body) == {"a": plain}
    assert list(cbor.decode(body)["a"]) == keys
    assert cbor.encode({1000: 1, -1: 2}) == bytes.fromhex("a2 1903e8 01 20 02")
    for wrong in ({-1: 0, 1: 1 << 64}, {-1: 0, 1 << 64: 1}, {-1: {"a": 0, 1: 0}, 1: 0}):
        with pytest.raises(st.SerializationError):
            cbor.encode(wrong)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOMEM, st.OutOfMemoryError),
        (errno.ENOSPC, st.OutOfMemoryError),
        (errno.EMFILE, st.ResourceExhaustedError),
        (errno.ENFILE, st.ResourceExhaustedError),
        (errno.EPERM, st.CapabilityError),
        (errno.ENOSYS, st.CapabilityError),
    ],
)
def test_an_error_of_memfd_create_names_its_cause(
    monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(kind, match=os.strerror(number)) as info:
        memory.Slab(64)
    assert type(info.value) is kind


def test_dlpack_names_a_type_that_it_lacks() -> None:
    slab = memory.Slab(18)
    model = st.StateDict([TensorSpec("q", DType.Q4_0, (32,), (1,), 0, 0)], {}, [slab], "numpy")
    with pytest.raises(st.CapabilityError, match="q4_0"):
        model.dlpack("q").__dlpack__()


def test_packed_results_are_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    slab = memory.Slab(64)
    arrays.flat(slab)[:4] = [1, 2, 3, 4]
    found = arrays.torch_result(slab, TensorSpec("", DType.FLOAT4_E2M1FN, (2, 4), (4, 1), 0, 0))
    assert isinstance(found, torch.Tensor) and found.view(torch.uint8).flatten().tolist() == [1, 2, 3, 4]
    for dtype, shape in ((DType.Q4_0, (32,)), (DType.FLOAT4_E2M1FN, (3,)), (DType.FLOAT6_E2M3FN, (4,))):
        spec = TensorSpec("", dtype, shape, (1,), 0, 0)
        found = arrays.torch_result(slab, spec)
        assert found.dtype == torch.uint8 and found.shape == (spec.nbytes,)


def test_a_model_moves_to_a_device_with_its_ties() -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(4)
    made = st.state_dict({"a": w, "b": w, "c": torch.zeros(2)}, framework="torch")
    there = made.to("cpu")
    assert there["a"] is there["b"] is made["a"]
    away = made.to("meta")
    assert away["a"] is away["b"] and away["a"].is_meta and set(away) == set(made)
    with pytest.raises(st.CapabilityError, match="torch"):
        st.state_dict({"a": np.ones(2)}, framework="numpy").to("cpu")


def test_load_into_leaves_nothing_on_meta_and_does_not_mix_devices() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, device: str) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2, device=device))
            self.register_buffer("table", torch.zeros(2, device=device), persistent=False)

    model: Any = st.state_dict({"weight": torch.ones(2)}, framework="torch")
    model.name = "m"
    net = Net("meta")
    with pytest.warns(RuntimeWarning, match="table"):
        st.load_into(net, model=model)
    assert net.weight.tolist() == [1, 1]
    net.table = torch.zeros(2)
    st.load_into(net, model=model)
    assert net.weight.tolist() == [1, 1]
    moved = Net("cpu")
    st.load_into(moved, model=model, device="cpu")
    assert moved.weight.data_ptr() == model["weight"].data_ptr()

    class Elsewhere(dict):  # type: ignore[type-arg]
        name = "elsewhere"

    with pytest.raises(st.IncompatibleError, match="device="):
        st.load_into(Net("cpu"), model=Elsewhere(weight=torch.ones(2, device="meta")))  # type: ignore[arg-type]


@pytest.mark.parametrize("nbytes", [1 << 12, (1 << 12) + 1, 40001, 3 * 4096])
@pytest.mark.parametrize("threads", [True, False])
def test_many_bytes_are_copied_by_several_threads(monkeypatch: pytest.MonkeyPatch, nbytes: int, threads: bool) -> None:
    """The bytes are the same, also in a process that can start no more threads."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(arrays, "_MANY", 1 << 12)
    monkeypatch.setattr(system, "PROCESSORS", 3)
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    source = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    slab = memory.Slab(nbytes + 100)
    arrays.copy_bytes(slab, 64, source.ctypes.data, nbytes)
    copied = np.frombuffer(slab.view(), np.uint8)
    assert np.array_equal(copied[64 : 64 + nbytes], source)
    assert not copied[:64].any()
    assert not copied[64 + nbytes :].any()
