"""Publishing and acquiring with numpy: all types, ties, strides, sizes, lifetimes."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Owner, descriptors, eventually, mappings

import sharedtensor as st
from sharedtensor import layout
from sharedtensor.catalog import Models
from sharedtensor.dtypes import DType
from sharedtensor.manifest import pack, unpack
from sharedtensor.memory import Slab
from sharedtensor.messages import Listed, ModelInfo, NotAdopted, Origin, Storage, VersionInfo

NUMPY = [d for d in DType if d.bits >= 8 and hasattr(np, d.title)] + [DType.BOOL]


def test_acquired_arrays_are_the_owners_bytes(client: st.Client) -> None:
    w = client.acquire("base")
    assert list(w) == [f"layers.{i}.weight" for i in range(4)] and len(w) == 4
    x = w["layers.0.weight"]
    assert x.shape == (64, 64) and x.dtype == np.float32 and x.std() > 0
    assert not x.flags.writeable
    with pytest.raises(ValueError):
        x[0] = 0
    with pytest.raises(ValueError):
        x.flags.writeable = True
    inode = w.mappings[0].inode()[1]
    owner = client.server.pid
    assert any(line.split()[4] == str(inode) for line in Path(f"/proc/{owner}/maps").read_text().splitlines()), (
        "another file than the owner's"
    )


def test_mapping_ends_with_the_last_array(module_owner: Owner) -> None:
    gc.collect()
    before, fds = len(mappings()), descriptors()
    c = st.connect(module_owner.socket, framework="numpy")
    w = c.acquire("base")
    x, view = w["layers.0.weight"], w["layers.1.weight"][3:9, ::2].T
    want = view.copy()
    assert len(mappings()) == before + 4  # this model has one storage for each tensor
    w.close()
    with pytest.raises(st.ClosedError):
        w["layers.2.weight"]
    assert c.list()[0].versions[0].holders[0].leases == 1
    del x, w
    gc.collect()
    assert len(mappings()) == before + 1, "the mapping is gone while a view of a view is alive"
    assert np.array_equal(view, want)
    del view
    eventually(lambda: len(mappings()) == before, "the mapping stays without an array")
    eventually(lambda: not c.list()[0].versions[0].holders, "the lease stays without an array")
    c.close()
    # Descriptors of earlier tests may have been counted before their threads closed them.
    eventually(lambda: descriptors() <= fds, "a descriptor stays")


def test_arrays_outlive_client_and_owner(make_owner: object) -> None:
    owner = make_owner("owner")  # type: ignore[operator]
    with st.connect(owner.socket, framework="numpy") as c:
        x = c.acquire("base")["layers.3.weight"]
        want = x.copy()
    owner.kill()
    assert np.array_equal(x, want)


@pytest.mark.parametrize("dtype", NUMPY, ids=str)
def test_numpy_type_crosses(client: st.Client, dtype: DType) -> None:
    x = np.arange(24).reshape(2, 3, 4).astype(dtype.numpy)
    client.publish("types", {"x": x, "empty": x[:0]})
    w = client.acquire("types")
    assert w["x"].dtype == x.dtype and np.array_equal(w["x"], x)
    assert w["empty"].shape == (0, 3, 4) and w["empty"].dtype == x.dtype
    assert w.spec("x").dtype is dtype


@pytest.mark.parametrize(
    "dtype", [d for d in DType if 8 <= d.bits <= 16 and not hasattr(np, d.title) and d is not DType.BOOL], ids=str
)
def test_type_of_ml_dtypes_crosses(client: st.Client, dtype: DType) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([0.5, 1, 2, 4], getattr(ml_dtypes, dtype.title))
    client.publish("types", {"x": x})
    w = client.acquire("types")
    assert w["x"].dtype == x.dtype and np.array_equal(w["x"].astype(np.float32), x.astype(np.float32))
    assert w.raw("x").dtype.kind == "u" and w.raw("x").tobytes() == x.tobytes()


def test_tied_views_share_memory_at_readers(client: st.Client) -> None:
    base = np.arange(100, dtype=np.float32)
    client.publish(
        "tied",
        {
            "embed": base,
            "head": base,
            "part": base[10:20],
            "every other": base[::2],
            "alone": np.ones(3),
            "back": base[::-1],
        },
    )
    w = client.acquire("tied")
    assert w["embed"] is w["head"] and w.tied() == [["embed", "head"]]
    assert np.shares_memory(w["embed"], w["part"]) and np.array_equal(w["part"], base[10:20])
    assert np.array_equal(w["every other"], base[::2]) and w["every other"].strides == (8,)
    assert not np.shares_memory(w["embed"], w["alone"])
    assert w["back"].tolist() == base[::-1].tolist() and not np.shares_memory(w["embed"], w["back"])
    assert w.nbytes == 512 + 256 + 512, "each group of tensors is aligned, and nothing else is shared"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.T,
        lambda x: x[:, ::3],
        lambda x: x[::-1],
        lambda x: np.broadcast_to(x[0], (5, 7)),
        lambda x: x[2, 3:4],
    ],
)
def test_strided_array_crosses(client: st.Client, make: object) -> None:
    x = make(np.arange(35, dtype=np.int16).reshape(5, 7))  # type: ignore[operator]
    client.publish("strided", {"x": x, "pad": np.ones(3, np.int8)})
    assert np.array_equal(client.acquire("strided")["x"], x)


def test_a_thousand_tensors(client: st.Client) -> None:
    tensors = {f"layer.{i}.größe": np.full((i % 7, 3), i, np.float32) for i in range(1000)}
    client.publish("many", tensors, metadata={"format": "pt", "größe": "漢"})
    w = client.acquire("many")
    assert len(w) == 1000 and w.metadata == {"format": "pt", "größe": "漢"}
    for name, x in tensors.items():
        assert np.array_equal(w[name], x), name
    assert client.acquire("many", 0)["layer.6.größe"].ctypes.data % 64 == 0


def test_empty_model_and_scalar(client: st.Client) -> None:
    client.publish("scalar", {"x": np.array(2.5)})
    assert client.acquire("scalar")["x"].shape == () and client.acquire("scalar")["x"] == 2.5
    client.publish("nothing", {"x": np.zeros((0,))})
    assert client.acquire("nothing")["x"].shape == (0,)


def test_memory_is_reused_between_steps(client: st.Client) -> None:
    for step in range(50):
        client.publish("policy", {"w": np.full(1 << 16, step, np.float32)})
    assert client._pool.made <= 3 and client._pool.reused >= 47, (client._pool.made, client._pool.reused)
    assert client.acquire("policy")["w"][0] == 49


def test_mapped_memory_is_never_rewritten(module_owner: Owner) -> None:
    # The reader's lease is released and its connection closed. Only the kernel can report that it still maps the
    # memory.
    with (
        st.connect(module_owner.socket, framework="numpy") as c,
        st.connect(module_owner.socket, framework="numpy") as reader,
    ):
        c.publish("read", {"w": np.full(1000, 1.0)})
        model = reader.acquire("read")
        x = model["w"]
        model.release()
        reader.close()
        for step in range(2, 20):
            c.publish("read", {"w": np.full(1000, float(step))})
        assert (x == 1).all(), "the bytes changed under a reader"
        assert c._pool.reused > 10


def test_digests_reach_readers(client: st.Client) -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    want = hashlib.sha256(x.tobytes()).digest()
    client.publish("digests", {"x": x, "t": np.asfortranarray(x)}, digests=True)
    w = client.acquire("digests")
    assert w.spec("x").digest == w.spec("t").digest == want
    shown = client.inspect("digests")
    assert [s.digest for s in shown.specs] == [want, want] and want.hex()[:12] in repr(shown)
    client.publish("digests", {"x": x})
    assert client.acquire("digests").spec("x").digest == b""


def test_digests_match_the_bytes() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    plan = layout.plan(layout.describe_all({"x": x, "t": np.asfortranarray(x), "bf": x.astype(np.float16)[::2]}))
    slab = Slab(plan.nbytes)
    plan.fill(slab)
    specs = {s.name: s for s in plan.with_digests(slab)}
    assert specs["x"].digest == specs["t"].digest == hashlib.sha256(x.tobytes()).digest()
    assert specs["bf"].digest == hashlib.sha256(x.astype(np.float16)[::2].tobytes()).digest()
    packed = pack(list(specs.values()), [Storage(nbytes=slab.nbytes, device=bytes(16), type=1)], {})
    assert [s.digest for s in unpack(packed)[0].values()] == [s.digest for s in specs.values()]


def test_a_module_is_no_state_dict(client: st.Client) -> None:
    class Module:
        def state_dict(self) -> dict[str, object]:
            return {}

    with pytest.raises(st.InvalidArgumentError, match=r"not a Module; pass its state_dict\(\)"):
        client.publish("m", Module())  # type: ignore[arg-type]
    with pytest.raises(st.InvalidArgumentError, match=r"not a list$"):
        client.publish("m", [1.0])  # type: ignore[arg-type]


def test_unsupported_arrays_are_named_in_errors(client: st.Client) -> None:
    with pytest.raises(st.CapabilityError, match="'texts'"):
        client.publish("bad", {"texts": np.array(["a"])})
    with pytest.raises(st.CapabilityError, match="byte order"):
        client.publish("bad", {"x": np.zeros(3, ">f4")})
    with pytest.raises(st.InvalidArgumentError):
        client.publish("bad", {1: np.zeros(3)})  # type: ignore[dict-item]
    with pytest.raises(st.NotFoundError, match="acquire 'bad'"):
        client.acquire("bad")
    assert client.acquire("base").version == 1
    with pytest.raises(st.VersionNotFoundError):
        client.acquire("base", 99)


def test_list_in_parts() -> None:
    def part(next: tuple[str, int], *models: tuple[str, int]) -> Models:
        info = [
            ModelInfo(name=n, versions=[VersionInfo(version=v, nbytes=0, tensors=0, origin=Origin())])
            for n, v in models
        ]
        return Models(Listed(models=info, next=next[0], next_version=next[1]))

    found = part(("b", 1), ("a", 1), ("b", 1))
    found.add(part(("", 0), ("b", 2), ("c", 5)))
    assert [(m.name, [v.version for v in m.versions]) for m in found] == [("a", [1]), ("b", [1, 2]), ("c", [5])]
    assert found.next == ("", 0)


def test_rollback(client: st.Client) -> None:
    client.publish("back", {"x": np.zeros(1)})
    kept = client.acquire("back")
    client.publish("back", {"x": np.ones(1)})
    assert client.rollback("back") == 3
    assert client.acquire("back")["x"][0] == 0 and kept.version == 1
    with pytest.raises(st.NotFoundError):
        client.rollback("back", 9)


def test_withdraw_and_list(client: st.Client) -> None:
    client.publish("gone", {"x": np.ones(1)}, source="a test")
    kept = client.acquire("gone")
    assert "gone" in repr(client.list()) and "a test" in client.list()._repr_html_()
    client.withdraw("gone")
    with pytest.raises(st.NotFoundError):
        client.acquire("gone")
    assert kept["x"][0] == 1


def test_names_of_peers_do_not_move_the_cursor(client: st.Client) -> None:
    client.publish("hostile", {"\x1b[2Jred": np.ones(1)}, source="\x1b]0;title\x07")
    w = client.acquire("hostile")
    for shown in (repr(w), str(w.table()), repr(client.list()), repr(client.inspect("hostile")), w._repr_html_()):
        assert "\x1b" not in shown and "\x07" not in shown
    client.withdraw("hostile")


def test_fork_raises_and_arrays_stay_valid(module_owner: Owner) -> None:
    script = f"""
import os, sharedtensor as st
c = st.connect({module_owner.socket!r}, framework="numpy")
x = c.acquire("base")["layers.0.weight"]
total = float(x.sum())
pid = os.fork()
if pid == 0:
    try:
        c.list()
    except st.ForkError as err:
        assert float(x.sum()) == total
        with st.connect({module_owner.socket!r}, framework="numpy") as again:
            again.acquire("base")
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert len(c.list()) >= 1, "the child's end took the parent's connection"
print("ok")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60, env={**os.environ}
    )
    assert done.stdout.strip() == "ok", done.stderr


def test_names_of_files_that_are_not_utf8_are_shown_escaped(
    module_owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [os.fsdecode(b"/bin/caf\xe9")])
    with st.connect(module_owner.socket) as c:
        c.publish("m", {"w": np.zeros(4, np.float32)}, source=os.fsdecode(b"/models/caf\xe9"))
        held = next(m for m in c.list() if m.name == "m")
        assert held.versions[0].origin.source == r"/models/caf\xe9"
        assert held.versions[0].origin.label == r"python caf\xe9"
        for name in (os.fsdecode(b"caf\xe9"), "half \ud800"):
            with pytest.raises(st.SerializationError):
                c.acquire(name)
        assert "m" in [m.name for m in c.list()]


def test_versions_that_are_not_adopted_are_listed() -> None:
    lost = NotAdopted(name="m", version=3, reason="this process has not opened it", nbytes=1 << 20, source="m.gguf")
    found = Models(Listed(models=[], not_adopted=[lost]))
    found.add(Models(Listed(models=[], not_adopted=[lost, NotAdopted(name="n", version=1, reason="x")])))
    assert [(v.name, v.version) for v in found.not_adopted] == [("m", 3), ("n", 1)]
    assert re.search(r"m +3 .* not adopted: this process has not opened it +m.gguf", str(found))
