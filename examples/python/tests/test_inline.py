"""Small tensors within frames: arguments, results and items of streams, with peers with and without the feature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor import inline, messages, op, values
from sharedtensor.importing import device_of, import_handles
from sharedtensor.memory import SlabPools, find

SIZES = (0, 1, 16384, 16385)
"""In bytes, rounded down to whole elements."""


def arrays() -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    for name in ("uint8", "bool", "float16", "int32", "float64", "complex128"):
        dtype = np.dtype(name)
        for size in SIZES:
            n = max(size // dtype.itemsize, min(size, 1))
            dense = (np.arange(n) % 2 if name == "bool" else np.arange(n) % 251).astype(dtype)
            yield f"{name} {size}", dense
            yield f"{name} {size} strided", np.repeat(dense, 2)[::2]
            yield f"{name} {size} column", dense.reshape(1, n).T
        yield f"{name} reversed", np.arange(5).astype(dtype)[::-1]
        yield f"{name} matrix", np.arange(24).astype(dtype).reshape(2, 3, 4).transpose(2, 0, 1)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes the connections that are made next lack the feature, or have it again."""

    def lack(yes: bool) -> None:
        monkeypatch.setattr(inline, "FEATURE", "none" if yes else "inline")

    return lack


@pytest.mark.parametrize("worker_is_old", (False, True))
@pytest.mark.parametrize("caller_is_old", (False, True))
def test_tensors_arrive(
    make_owner: Callable[..., Owner], old: Callable[[bool], None], caller_is_old: bool, worker_is_old: bool
) -> None:
    owner = make_owner("serve", "--offers")

    def look(x: np.ndarray[Any, Any]) -> dict[str, Any]:
        return {"x": x, "inline": find(x.ctypes.data, 1) is None, "writable": bool(x.flags.writeable)}

    def items(x: np.ndarray[Any, Any]) -> Iterator[Any]:
        yield x.copy()
        yield {"twice": [x.copy(), x.copy()]}

    old(worker_is_old)
    with st.connect(owner.socket, framework="numpy") as worker, worker.offer(look=look, items=items):
        old(caller_is_old)
        with st.connect(owner.socket, framework="numpy") as caller:
            for name, x in arrays():
                got = caller.call("look", x=x)
                back = got["x"]
                assert back.dtype == x.dtype and back.shape == x.shape and np.array_equal(back, x), name
                assert not back.flags.writeable and not got["writable"], name
                if x.nbytes:
                    small = x.nbytes <= inline.MAX_BYTES and not caller_is_old and not worker_is_old
                    assert got["inline"] == small, name
                first, second = caller.stream("items", x=x)
                assert np.array_equal(first, x) and all(np.array_equal(y, x) for y in second["twice"]), name


def test_what_is_sent_within_a_frame(client: st.Client[Any]) -> None:
    session, pools = client._session(), SlabPools()

    def kinds(value: Any, **how: Any) -> list[str]:
        out = values.Outgoing(value, session, pools.arguments, **how)
        try:
            assert len(out.files) == len([h for h in out.handles if not isinstance(h, bytes)])
            return [inline.KIND if isinstance(h, bytes) else h.kind for h in out.handles]
        finally:
            out.close()

    small, large = np.ones(16384, np.uint8), np.ones(16385, np.uint8)
    shared = st.empty((4,), framework="numpy")
    assert kinds([small]) == ["inline"] and kinds([large]) == ["memfd"] and kinds([np.ones(0)]) == ["inline"]
    assert kinds([small[:4000], small[8000:12000]]) == ["inline"], "tensors share one copy"
    assert kinds([small, np.ones(1)]) == ["memfd"], "together they are too large"
    assert kinds([small, large]) == ["memfd"], "one slab for both"
    assert sorted(kinds([np.ones(4), shared])) == ["inline", "memfd"], "shared memory stays in place"
    assert kinds([small], writable=True) == ["memfd"], "the function writes it in place"
    assert kinds([np.ones(4)], seal=True) == ["inline"]
    assert kinds(st.state_dict({"w": small}, framework="numpy")) == ["memfd"]
    session.inline = False
    assert kinds([small]) == ["memfd"]


def test_results_are_ordinary_tensors(client: st.Client[Any]) -> None:
    x = np.arange(4, dtype=np.float32)
    y = client.call("transform", x=x, scale=2.0)
    assert not y.flags.writeable and find(y.ctypes.data, y.nbytes) is None
    with pytest.raises(ValueError, match="WRITEABLE"):
        y.flags.writeable = True
    assert np.array_equal(client.call("transform", x=y, scale=2.0), 4 * x)
    assert not st.is_shared(y)
    client.publish("from a result", {"w": y})
    assert np.array_equal(client.acquire("from a result")["w"], 2 * x)
    big = client.call("transform", x=np.ones(5000, np.float32), scale=2.0)
    assert st.is_shared(big)


def test_results_of_torch_are_private(module_owner: Owner) -> None:
    torch = pytest.importorskip("torch")
    with st.connect(module_owner.socket, framework="torch") as c:
        y = c.call("transform", x=torch.ones(3), scale=2.0)
        z = c.call("transform", x=torch.ones(3), scale=2.0)
        y += 1
        assert y.tolist() == [3, 3, 3] and z.tolist() == [2, 2, 2]
        assert c.call("transform", x=y, scale=1.0).tolist() == [3, 3, 3]


def test_hostile_handles_are_refused(client: st.Client[Any]) -> None:
    session = client._session()
    device = device_of(session, op.HOST).uuid
    good = messages.Handle(kind="inline", device=device, nbytes=4, offset=0, blob=b"\0\0\x80\x3f", file=-1)
    frame: Any = type("Frame", (), {"files": []})()

    def take(*handles: messages.Handle, within: bool = True) -> list[Any]:
        return import_handles(handles, frame, session, private=False, within=within)

    assert take(good)[0].content() == good.blob
    assert messages.Handle.decode(inline.encode(device, good.blob)) == good
    empty = dataclasses.replace(good, nbytes=0, blob=b"")
    assert messages.Handle.decode(inline.encode(device, b"")) == empty and take(empty)[0].nbytes == 0
    for change in (
        {"nbytes": 5},
        {"nbytes": 3},
        {"nbytes": 1 << 60},
        {"blob": b""},
        {"offset": 1},
        {"file": 0},
        {"storage": 1},
        {"version": 1},
        {"slab": 1},
        {"nbytes": 16385, "blob": bytes(16385)},
    ):
        with pytest.raises(st.ProtocolError):
            take(dataclasses.replace(good, **change))
    half = dataclasses.replace(good, nbytes=8193, blob=bytes(8193))
    with pytest.raises(st.ProtocolError, match="16386 bytes"):
        take(half, half)
    with pytest.raises(st.CapabilityError):
        take(good, within=False)
    for parts in (
        [0, 12, 0, [2], []],
        [0, 12, 1, [1], []],
        [0, 13, 0, [1], []],
        [0, 12, 0, [1 << 61, 8], []],
        [1, 12, 0, [1], []],
    ):
        with pytest.raises(st.ProtocolError):
            values._decode_tensor(parts, take(good), "numpy")
    session.inline = False
    with pytest.raises(st.CapabilityError):
        take(good)


def test_cached_calls_know_arguments_by_their_bytes(make_owner: Callable[..., Owner]) -> None:
    owner = make_owner("serve", "--offers")
    runs = 0

    def total(x: np.ndarray[Any, Any]) -> float:
        nonlocal runs
        runs += 1
        return float(x.sum())

    with (
        st.connect(owner.socket, framework="numpy") as worker,
        worker.offer(total=st.Function(total, cache=True)),
        st.connect(owner.socket, framework="numpy") as caller,
    ):
        x = np.ones(8, np.float32)
        assert caller.call("total", x=x) == 8 == caller.call("total", x=x.copy()) and runs == 1
        x[0] = 2
        assert caller.call("total", x=x) == 9 and runs == 2
        assert caller.call("total", x=np.ones((2, 4), np.float32)) == 8 and runs == 3, "another shape"
        assert caller.invalidate("total", x=x) == 1
        assert caller.call("total", x=x) == 9 and runs == 4
