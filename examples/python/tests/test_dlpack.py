"""Host views as other libraries take them, by DLPack."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from conftest import eventually, mappings

import sharedtensor as st
from sharedtensor.dtypes import DType

BYTES = [d for d in DType if not d.packed and d is not DType.BOOL]


def publish(client: st.Client, dtype: DType) -> st.Model:
    raw = np.arange(24, dtype=np.uint8).repeat(dtype.bits // 8)
    w = client.create("exported", {"x": ((2, 3, 4), dtype)})
    np.frombuffer(w.mappings[0].buffer(), np.uint8)[: raw.nbytes] = raw
    w.commit()
    return client.acquire("exported")


def test_jax_reads_each_type_in_place(client: st.Client) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    from jax.dlpack import from_dlpack

    read = set()
    for dtype in BYTES:
        model = publish(client, dtype)
        try:
            x = from_dlpack(model.dlpack("x"))
        except Exception as err:  # a type that this jax does not take
            assert dtype not in (DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.FLOAT32), (dtype, err)
            continue
        read.add(dtype)
        assert x.shape == (2, 3, 4) and str(x.dtype) == dtype.title
        assert np.asarray(x).tobytes() == model.raw("x").tobytes()
    assert {DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT16, DType.INT8, DType.FLOAT64} <= read


def test_jax_uses_the_memory_and_keeps_it(client: st.Client) -> None:
    pytest.importorskip("jax", reason="jax is not installed")
    from jax.dlpack import from_dlpack

    client.publish("kept by jax", {"x": np.arange(1 << 16, dtype=np.float32)})
    model = client.acquire("kept by jax")
    before = len(mappings())
    x = from_dlpack(st.to_dlpack(model["x"]))
    assert len(mappings()) == before + 1, "the bytes were copied"
    del model
    client.publish("kept by jax", {"x": np.zeros(1, np.float32)})
    gc.collect()
    assert float(x.sum()) == float(np.arange(1 << 16, dtype=np.float32).sum())
    del x
    eventually(lambda: len(mappings()) < before + 1, "the memory stays when jax has released it")


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_torch_reads_each_type(client: st.Client, dtype: DType) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, dtype.title) or torch.__version__ < "2.1":
        pytest.skip(f"this torch has no {dtype}")
    model = publish(client, dtype)
    try:
        x = torch.from_dlpack(model.dlpack("x"))
    except (RuntimeError, BufferError) as err:
        pytest.skip(f"this torch does not take {dtype} by DLPack: {err}")
    assert x.dtype == dtype.torch and x.shape == (2, 3, 4)
    assert x.contiguous().view(torch.uint8).numpy().tobytes() == model.raw("x").tobytes()


def test_a_consumer_that_writes_changes_only_this_process(client: st.Client) -> None:
    torch = pytest.importorskip("torch")
    client.publish("guarded", {"x": np.ones((64, 64), np.float32)})
    model = client.acquire("guarded")
    x = torch.from_dlpack(model.dlpack("x"))
    x.fill_(5)
    assert (model["x"] == 1).all() and (client.acquire("guarded")["x"] == 1).all()


def test_numpy_reads_what_it_knows(client: st.Client) -> None:
    client.publish("plain", {"x": np.arange(12, dtype=np.int32).reshape(3, 4)})
    model = client.acquire("plain")
    assert np.array_equal(np.from_dlpack(model.dlpack("x")), model["x"])
    assert np.array_equal(np.from_dlpack(st.to_dlpack(model["x"][1:, ::2])), model["x"][1:, ::2])
    own = st.empty((3, 3), framework="numpy")
    seen = np.from_dlpack(st.to_dlpack(own))
    own[:] = 2
    assert (seen == 2).all()
    assert np.array_equal(np.from_dlpack(st.to_dlpack(np.arange(3))), np.arange(3))
    assert np.from_dlpack(st.to_dlpack(np.zeros((0, 3)))).shape == (0, 3)


def test_a_capsule_that_nobody_takes_releases_the_memory(client: st.Client) -> None:
    array = st.from_array(np.ones(10))
    source = st.to_dlpack(array)
    capsule = source.__dlpack__(max_version=(1, 1))
    alive = weakref.ref(source._keep)
    assert alive() is not None
    with pytest.raises(BufferError):
        source.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        source.__dlpack__(dl_device=(2, 0))
    del array, source, capsule
    eventually(lambda: alive() is None, "a capsule keeps the memory")
