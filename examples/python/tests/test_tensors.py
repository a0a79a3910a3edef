"""Tensors of one's own in shared memory, their digests, and what is known of both."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import safetensors_file
from sharedtensor.dtypes import DType
from sharedtensor.memory import find


def test_tensors_are_made_with_values() -> None:
    assert (st.ones((2, 3), framework="numpy") == 1).all() and st.ones(4, "int8", framework="numpy").dtype == np.int8
    assert (st.full((2,), 2.5, "float64", framework="numpy") == 2.5).all()
    assert not st.zeros(3, framework="numpy").any() and st.full((), 7, "int32", framework="numpy") == 7
    x = np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    for like in (st.empty_like(x), st.zeros_like(x), st.ones_like(x), st.full_like(x, 9)):
        assert like.shape == x.shape and like.dtype == x.dtype and like.strides == x.strides and st.is_shared(like)
    assert (st.full_like(x, 9) == 9).all() and st.ones_like(x, dtype="float32").dtype == np.float32
    assert st.empty_like(x[::2, ::2]).flags.c_contiguous
    with pytest.raises(st.CapabilityError, match="device"):
        st.empty(3, device="tpu")


def test_is_shared(client: st.Client) -> None:
    x = st.empty((10, 10), framework="numpy")
    assert st.is_shared(x) and st.is_shared(x[2:, ::3]) and st.is_shared(st.from_array(np.ones(3)))
    assert not st.is_shared(np.ones(3)) and not st.is_shared("text") and not st.is_shared(x[::-1])
    assert not st.is_shared(x.copy()) and not st.is_shared(np.array(["text"]))
    assert st.is_shared(client.acquire("base")["layers.0.weight"])


def test_stats_count_memory_and_leases(client: st.Client) -> None:
    before = client.stats()
    model = client.acquire("base")
    client.publish("counted", {"x": np.ones(1000)})
    client.call("transform", x=np.ones(5000, np.float32), scale=1)
    after = client.stats()
    assert after.leases == before.leases + 1
    made = [
        (s.publications.made + s.publications.reused, s.arguments.made + s.arguments.reused) for s in (before, after)
    ]
    assert made[1] == (made[0][0] + 1, made[0][1] + 1) and after.free_bytes > 0
    with client.call_object("build_model", hidden_size=8, layers=1):
        assert client.stats().references == before.references + 1
    del model


def takes(pool: object) -> int:
    return pool.made + pool.reused  # type: ignore[attr-defined]


def test_get_slice_is_that_of_safetensors(client: st.Client) -> None:
    model = client.acquire("base")
    part = model.get_slice("layers.1.weight")
    assert part.get_shape() == [64, 64] and part.get_dtype() == "F32"
    assert np.array_equal(part[3:5, :2], model["layers.1.weight"][3:5, :2]) and part[...].shape == (64, 64)
    assert find(part[10:20].ctypes.data, 1) in model.mappings, "the slice is a copy"
    with pytest.raises(KeyError):
        model.get_slice("no such")


# ---- digests


def test_verify_compares_what_the_publisher_sent(client: st.Client) -> None:
    weights = {"a": np.arange(5, dtype=np.float32), "t": np.ones((3, 4), np.int8).T, "e": np.ones((0, 2))}
    version = client.publish("verified", weights, digests=True, owner_digests=True)
    model = client.acquire("verified", version)
    whole = model.verify()
    assert whole == client.digest("verified", version, timeout=60), "the owner computes other digests"
    assert model.verify(whole) == model.verify(whole.hex()) == whole
    assert model.spec("t").digest == hashlib.sha256(np.ones((4, 3), np.int8).tobytes()).digest()
    with pytest.raises(st.DigestError, match="digest of the tensors"):
        model.verify(bytes(32))


def test_verify_needs_something_to_compare_with(client: st.Client) -> None:
    with pytest.raises(st.InvalidArgumentError, match="no digests"):
        client.acquire("base").verify()
    from sharedtensor import digests

    model = client.acquire("base")
    whole = digests.whole(model._specs, digests.each(model.specs, model._bits))
    assert model.verify(whole) == whole


def test_verify_finds_changed_bytes(client: st.Client) -> None:
    w = client.create("changed", {"x": ((4,), "int8"), "y": ((4,), "int8")})
    claimed = hashlib.sha256(bytes([1, 1, 1, 1])).digest()
    w._layout = type(w._layout)(
        [s._replace(digest=claimed) for s in w._layout.specs], w._layout.nbytes, w._layout.copies
    )
    w.commit()
    with pytest.raises(st.DigestError, match="'x' and 1 more"):
        client.acquire("changed").verify()


# ---- small types


@pytest.mark.parametrize("dtype", [d for d in DType if d.block is None and (d.packed or "e8m0" in d.title)], ids=str)
def test_small_types_cross_files_and_owners(client: st.Client, tmp_path: Path, dtype: DType) -> None:
    nbytes = dtype.nbytes(32)
    header = f'{{"x":{{"dtype":"{dtype.safetensors}","shape":[4,8],"data_offsets":[0,{nbytes}]}}}}'
    header += " " * (-len(header) % 8)
    data = bytes(range(nbytes))
    path = tmp_path / "in.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data)
    tensors, _ = safetensors_file.read(path)
    client.publish("small", tensors)
    model = client.acquire("small")
    assert model.spec("x").dtype is dtype and model.spec("x").shape == (4, 8)
    assert model.raw("x").tobytes() == data and model.get_slice("x").get_dtype() == dtype.safetensors
    out = tmp_path / "out.safetensors"
    safetensors_file.write(out, model)
    again, _ = safetensors_file.read(out)
    assert again["x"].value.tobytes() == data and again["x"].dtype is dtype


def test_float4_of_torch(module_owner: Owner, client: st.Client) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    client.publish("pairs", {"x": x, "scale": torch.ones(3, 1, dtype=torch.float8_e4m3fn)})
    model = client.acquire("pairs", framework="torch")
    assert model.spec("x").shape == (3, 8) and model.spec("x").dtype is DType.FLOAT4_E2M1FN
    assert model["x"].dtype == torch.float4_e2m1fn_x2 and model["x"].shape == (3, 4)
    assert torch.equal(model["x"].view(torch.uint8), x.view(torch.uint8))
    assert client.acquire("pairs").raw("x").tobytes() == bytes(range(12))
    w = client.create("pairs", {"x": x}, framework="torch")
    assert w["x"].shape == (3, 4) and w.spec("x").nbytes == 12
    odd = client.create("odd", {"x": ((3,), "float4_e2m1fn")}, framework="torch")
    with pytest.raises(st.CapabilityError, match="raw"):
        _ = odd["x"]


# ---- parts of a version


def test_partial_acquire_maps_only_what_it_needs(client: st.Client) -> None:
    weights = {f"{i}": np.full(100_000, i, np.float32) for i in range(10)}
    version = client.publish("parts", weights)
    model = client.acquire("parts", version, tensors=["3", "4"])
    assert list(model) == ["3", "4"] and (model["3"] == 3).all() and (model["4"] == 4).all() and model.partial
    assert model.nbytes < 900_000 and len(model.mappings) == 1
    assert list(client.acquire("parts", tensors=lambda name: int(name) > 7)) == ["8", "9"]
    assert (client.call("transform", x=client.acquire("parts", tensors=["9"])["9"], scale=2) == 18).all()
    assert len(client.acquire("parts", tensors=[])) == 0
    with pytest.raises(st.NotFoundError, match="'77'"):
        client.acquire("parts", tensors=["1", "77"])


# ---- errors


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (st.UnavailableError, ConnectionError),
        (st.ConnectionLostError, ConnectionError),
        (st.DeadlineExceededError, TimeoutError),
        (st.PermissionDeniedError, PermissionError),
        (st.SerializationError, TypeError),
        (st.CapabilityError, TypeError),
        (st.InvalidArgumentError, ValueError),
        (st.IncompatibleError, RuntimeError),
        (st.NotFoundError, LookupError),
        (st.OutOfMemoryError, MemoryError),
        (st.InternalError, RuntimeError),
        (st.UnsupportedError, NotImplementedError),
        (st.ClosedError, RuntimeError),
    ],
)
def test_errors_have_the_base_classes_that_programs_expect(error: type[st.Error], base: type[Exception]) -> None:
    with pytest.raises(base, match="what happened"):
        raise error("what happened")
    assert str(error("what happened")) == "what happened" and error("x", data=[1]).data == [1]


def test_errors_are_raised_as_their_base_classes(client: st.Client) -> None:
    with pytest.raises(ConnectionError):
        st.connect("/nowhere.sock")
    with pytest.raises(TypeError):
        client.call("transform", x=object(), scale=1)
    with pytest.raises(TypeError, match="'x'"):
        client.publish("bad", {"x": np.array(["text"])})


# ---- timeouts


def test_options_leave_all_names_to_fields(module_owner: Owner) -> None:
    with st.connect(module_owner.socket, framework="numpy") as c:
        with pytest.raises(st.DeadlineExceededError):
            c.options(timeout=0.1).call("build_model", hidden_size=47, layers=1000, pace_ms=100)
        y = c.options(timeout=30, returns=np.ndarray).call("transform", x=np.ones(2, np.float32), scale=3)
        assert (y == 3).all()
        with pytest.raises(st.SerializationError, match="dict"):
            c.options(returns=dict).call("transform", x=np.ones(2, np.float32), scale=3)
        with pytest.raises(st.Error, match="timeout"):  # reaches the function as a field, which it does not have
            c.options(timeout=30).call("transform", x=np.ones(2, np.float32), scale=3, timeout=1)
        stream = c.options(timeout=0.4).stream("spectral_norm", a=np.eye(4, dtype=np.float32), steps=1 << 30)
        with pytest.raises(st.DeadlineExceededError):
            for _ in stream:
                pass
        task = c.options(timeout=30).submit("build_model", hidden_size=16, layers=1)
        assert task.wait(timeout=30) is not None and task.refresh(timeout=5).over


def test_requests_have_timeouts(client: st.Client) -> None:
    assert client.ping(timeout=10) > 0 and client.list(timeout=10) and client.endpoints(timeout=10)
    assert client.inspect("base", timeout=10).specs and client.info(timeout=10)
    assert isinstance(client.tasks(timeout=10), list)
