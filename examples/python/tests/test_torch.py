"""torch tensors in the owner's memory: types, ties, modules, write protection, and arguments."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Owner, eventually, mappings

import sharedtensor as st
from sharedtensor.dtypes import DType

torch = pytest.importorskip("torch", reason="torch is not installed: no test of torch runs")
TYPES = [d for d in DType if not d.packed and hasattr(torch, d.title)]


@pytest.fixture
def tclient(module_owner: Owner) -> object:
    with st.connect(module_owner.socket, framework="torch") as c:
        yield c


def test_the_types_of_this_torch() -> None:
    names = {d.title for d in TYPES}
    assert {"float32", "bfloat16", "float16", "complex64", "bool", "int64"} <= names
    if torch.__version__ >= "2.3":
        assert {"float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"} <= names


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_torch_type_crosses(tclient: st.Client, dtype: DType) -> None:
    bits = torch.arange(1, 25, dtype=torch.uint8).repeat_interleave(dtype.bits // 8)
    x = (bits % 2).view(dtype.torch) if dtype is DType.BOOL else bits.view(dtype.torch).reshape(2, 3, 4)
    tclient.publish("types", {"x": x, "empty": x[:0], "scalar": x.reshape(-1)[3]})
    w = tclient.acquire("types")
    assert w["x"].dtype == x.dtype and w["x"].shape == x.shape and w["scalar"].shape == ()
    assert torch.equal(w["x"].contiguous().view(torch.uint8), x.contiguous().view(torch.uint8))
    assert w["empty"].shape == x[:0].shape and w["empty"].dtype == x.dtype
    assert w.raw("x").nbytes == x.numel() * x.element_size()


def test_types_that_torch_does_not_have_are_named(tclient: st.Client) -> None:
    missing = [d for d in DType if d not in TYPES and not d.packed]
    for dtype in missing:
        with pytest.raises(st.CapabilityError, match="raw"):
            _ = dtype.torch


class Tied(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.head = torch.nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: object) -> object:
        return self.head(self.norm(self.embed(x)))


def test_load_state_dict_without_a_copy(tclient: st.Client) -> None:
    if torch.__version__ < "2.1":
        pytest.skip("load_state_dict(assign=True) needs torch 2.1")
    module, other = Tied().eval(), Tied().eval()
    tclient.publish("tied", module.state_dict())
    w = tclient.acquire("tied")
    assert w.tied() == [["embed.weight", "head.weight"]] and w["embed.weight"] is w["head.weight"]
    other.load_state_dict(w, assign=True)
    assert other.embed.weight.data_ptr() == w["embed.weight"].data_ptr() == other.head.weight.data_ptr()
    x = torch.arange(10)
    assert torch.equal(module(x), other(x))
    del w
    tclient.close()
    assert torch.equal(module(x), other(x)), "the module's memory went with the client"


def test_load_into_and_share_module(tclient: st.Client) -> None:
    module = Tied().eval()
    x = torch.arange(10)
    want = module(x)
    shared = st.share_module(module, "shared", client=tclient)
    assert module.embed.weight is module.head.weight and torch.equal(module(x), want)
    inode = shared.mappings[0].inode()
    other = Tied().eval()
    loaded = st.load_into(other, "shared", client=tclient)
    assert loaded.mappings[0].inode() == inode and torch.equal(other(x), want)
    assert other.embed.weight is other.head.weight and other.embed.weight.requires_grad
    before = dict(other.named_parameters())
    with pytest.raises(st.InvalidArgumentError, match=r"shape|missing|no "):
        st.load_into(Tied(51), "shared", client=tclient)
    with pytest.raises(st.InvalidArgumentError, match="missing"):
        st.load_into(torch.nn.Sequential(torch.nn.Linear(2, 2)), "shared", client=tclient)
    assert all(other.get_parameter(k) is v for k, v in before.items())
    if torch.__version__ >= "2.0":
        with torch.device("meta"):
            meta = Tied().eval()
        st.load_into(meta, "shared", client=tclient)
        assert not meta.embed.weight.is_meta


class Weight(torch.nn.Parameter):  # type: ignore[misc, name-defined]
    """A subclass of Parameter, as engines use."""


def state(module: object) -> list[tuple[str, int]]:
    return [(name, id(p)) for name, p in [*module.named_parameters(), *module.named_buffers()]]  # type: ignore[attr-defined]


def test_load_into_keeps_types_classes_and_attributes(tclient: st.Client) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).half()
    module[0].weight = Weight(module[0].weight.data, requires_grad=False)
    module[0].weight.output_dim = 1
    module[1].running_mean.note = "kept"
    tclient.publish("half", module.state_dict())
    loaded = st.load_into(module, "half", client=tclient)
    weight = module[0].weight
    assert type(weight) is Weight and weight.output_dim == 1 and not weight.requires_grad
    assert weight.dtype == torch.float16 and weight.data_ptr() == loaded["0.weight"].data_ptr()
    assert module[1].running_mean.note == "kept" and not hasattr(loaded["1.running_mean"], "note")
    assert module[0].bias.requires_grad and type(module[0].bias) is torch.nn.Parameter


def test_load_into_refuses_another_type_before_it_replaces_anything(tclient: st.Client) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    weights = dict(module.state_dict())
    for name in ("1.weight", "1.bias"):
        tclient.publish("other type", {**weights, name: weights[name].half()})
        before = state(module)
        with pytest.raises(st.InvalidArgumentError, match=rf"{name} has type torch.float16.*module.to"):
            st.load_into(module, "other type", client=tclient)
        with pytest.raises(st.InvalidArgumentError, match="float16"):
            st.load_into(module, "other type", client=tclient, strict=False)
        assert state(module) == before, "something was replaced"
    tclient.publish("other type", {**weights, "1.weight": torch.ones(4, 4, dtype=torch.int8)})
    with pytest.raises(st.InvalidArgumentError, match="int8"):
        st.load_into(module, "other type", client=tclient)
    assert state(module) == before
    with pytest.raises(st.InvalidArgumentError, match="framework='torch'"):
        st.load_into(module, "", model=tclient.acquire("other type", framework="numpy"))
    assert state(module) == before


def memory(module: object) -> dict[str, int]:
    return {name: x.data_ptr() for name, x in module.state_dict(keep_vars=True).items()}  # type: ignore[attr-defined]


def test_swap_keeps_the_parameter_objects(tclient: st.Client) -> None:
    """A module, its optimizer and its LSTM stay the same objects over three versions, and compute with each."""
    module = torch.nn.Sequential(torch.nn.LSTM(4, 4, batch_first=True))
    module[0].weight_ih_l0.note = "kept"
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    x = torch.ones(1, 2, 4)
    objects = state(module)
    for value in (0.5, 0.25, 0.125):
        version = tclient.publish("swapped", {k: torch.full_like(v, value) for k, v in module.state_dict().items()})
        model = tclient.acquire("swapped", version)
        st.swap(module, model)
        assert state(module) == objects and memory(module) == {k: v.data_ptr() for k, v in model.items()}
        other = torch.nn.LSTM(4, 4, batch_first=True)
        for p in other.parameters():
            p.data.fill_(value)
        assert torch.equal(module(x)[0], other(x)[0]), "the module computes with an earlier version"
    assert module[0].weight_ih_l0.note == "kept"
    module(x)[0].sum().backward()
    optimizer.step()
    assert not torch.equal(module[0].weight_ih_l0, torch.full((16, 4), 0.125)), "the optimizer has other parameters"
    assert torch.equal(tclient.acquire("swapped")["0.weight_ih_l0"], torch.full((16, 4), 0.125))


def test_swap_makes_an_earlier_forward_pass_fail_in_backward(tclient: st.Client) -> None:
    if not hasattr(torch.autograd.graph, "increment_version"):
        pytest.skip("this torch cannot mark a tensor as modified")
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tclient.publish("late", module.state_dict())
    y = module(torch.ones(1, 4)).sum()
    st.swap(module, tclient.acquire("late"))
    with pytest.raises(RuntimeError, match="modified"):
        y.backward()


def test_swap_releases_the_version_before(tclient: st.Client) -> None:
    module = torch.nn.Linear(64, 64)
    for i in range(3):
        version = tclient.publish("released", module.state_dict())
        st.load_into(module, "released", client=tclient)
        eventually(
            lambda version=version: (
                [v.version for m in tclient.list() if m.name == "released" for v in m.versions] == [version]
            ),
            f"version {i} stays",
        )


def test_swap_undoes_what_it_began(tclient: st.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tclient.publish("undone", module.state_dict())
    model = tclient.acquire("undone")
    before, objects = memory(module), state(module)
    calls = []

    def fail(value: object, _: object) -> None:
        calls.append(value)
        if len(calls) == 3:
            raise RuntimeError("in the middle")

    monkeypatch.setattr("sharedtensor.torch_modules._mark_modified", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        st.swap(module, model)
    assert memory(module) == before and state(module) == objects


def test_tied_parameters_need_one_value(tclient: st.Client) -> None:
    module = Tied().eval()
    weights = dict(module.state_dict())
    tclient.publish("untied", {**weights, "head.weight": weights["head.weight"].clone()})
    st.load_into(module, "untied", client=tclient)  # two copies with the same values
    assert module.embed.weight is module.head.weight
    tclient.publish("untied", {**weights, "head.weight": weights["head.weight"] + 1})
    before = memory(module)
    with pytest.raises(st.InvalidArgumentError, match="one parameter"):
        st.load_into(module, "untied", client=tclient)
    assert memory(module) == before
    del weights["head.weight"]
    tclient.publish("untied", weights)  # as files of safetensors have it
    model = st.load_into(module, "untied", client=tclient)
    assert module.head.weight.data_ptr() == model["embed.weight"].data_ptr()
    with pytest.raises(st.InvalidArgumentError, match=r"norm\.weight is missing"):
        del weights["norm.weight"]
        tclient.publish("untied", weights)
        st.load_into(module, "untied", client=tclient)


def test_meta_parameters_stay_the_same_objects(tclient: st.Client) -> None:
    if not hasattr(torch.utils, "swap_tensors"):
        pytest.skip("needs torch 2.3")
    with torch.device("meta"):
        module = Tied()
        recurrent = torch.nn.LSTM(4, 4)
    objects = state(module)
    tclient.publish("from meta", Tied().state_dict())
    st.load_into(module, "from meta", client=tclient)
    assert state(module) == objects and not module.embed.weight.is_meta and module.embed.weight is module.head.weight
    assert type(module.embed.weight) is torch.nn.Parameter and module.embed.weight.requires_grad
    tclient.publish("from meta", torch.nn.LSTM(4, 4).state_dict())
    st.load_into(recurrent, "from meta", client=tclient)
    assert recurrent(torch.ones(1, 1, 4))[0].shape == (1, 1, 4)


def test_a_module_is_built_in_a_version_that_is_written(tclient: st.Client) -> None:
    """Weights are initialised in shared memory, published without a copy, and used there."""
    module = Tied().eval()
    w = tclient.create("built", module.state_dict())
    assert w.tied() == [["embed.weight", "head.weight"]]
    st.swap(module, w)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(0.5)
    made = tclient._pool.made
    version = w.commit()
    assert tclient._pool.made == made
    model = tclient.acquire("built", version)
    assert torch.equal(model["head.weight"], torch.full((50, 16), 0.5))
    with torch.no_grad():
        module.embed.weight.add_(1)
    assert torch.equal(model["head.weight"], torch.full((50, 16), 0.5)) and module.head.weight[0, 0] == 1.5


def test_specs_of_meta_tensors(tclient: st.Client) -> None:
    if torch.__version__ < "2.0":
        pytest.skip("torch.device as a context needs torch 2.0")
    with torch.device("meta"):
        module = Tied()
        turned = torch.empty(3, 5).t()
    w = tclient.create("meta", {**module.state_dict(), "turned": turned}, framework="torch")
    assert w.tied() == [["embed.weight", "head.weight"]] and w["turned"].stride() == (1, 5)
    assert not any(x.is_meta or x.any() for x in w.values())
    w.abort()


def test_load_into_waits_for_a_name(module_owner: Owner, tclient: st.Client) -> None:
    module = torch.nn.Linear(4, 4)
    with pytest.raises(st.DeadlineExceededError):
        st.load_into(module, "not there", client=tclient, wait=0.05)
    timer = threading.Timer(0.1, lambda: tclient.publish("there later", module.state_dict()))
    timer.start()
    st.load_into(module, "there later", client=tclient, wait=20, timeout=20)
    timer.join()


def test_load_into_accepts_integer_weights(tclient: st.Client) -> None:
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight = torch.nn.Parameter(torch.arange(16, dtype=torch.int8).reshape(4, 4), requires_grad=False)
    tclient.publish("integers", module.state_dict())
    loaded = st.load_into(module, "integers", client=tclient)
    assert module.weight.dtype == torch.int8 and module.weight.data_ptr() == loaded["weight"].data_ptr()
    assert torch.equal(module.weight, torch.arange(16, dtype=torch.int8).reshape(4, 4))


def test_load_into_refuses_a_module_without_shapes(tclient: st.Client) -> None:
    tclient.publish("lazy", torch.nn.Linear(4, 4).state_dict())
    with pytest.raises(st.InvalidArgumentError, match="run the module once"):
        st.load_into(torch.nn.LazyLinear(4), "lazy", client=tclient)


def test_a_write_stays_in_this_process(module_owner: Owner, tclient: st.Client) -> None:
    tclient.publish("guard", {"x": torch.ones(5000)})
    x = tclient.acquire("guard")["x"]
    with st.connect(module_owner.socket, framework="numpy") as c:
        seen = c.acquire("guard")["x"]
        x[0] = 99
        x.add_(1)
        assert seen[0] == 1 and (seen == 1).all(), "the owner's bytes changed"
        # The call sends the changed bytes, not the owner's.
        y = c.call("transform", x=x, scale=1)
        assert y[0] == 100 and y[1] == 2
    assert tclient.acquire("guard")["x"][0] == 1


def test_tensors_are_shared_in_both_directions(tclient: st.Client) -> None:
    x = st.empty((100,), torch.float32)
    x.copy_(torch.arange(100))
    y = tclient.call("transform", x=x, scale=2.0)
    assert isinstance(y, torch.Tensor) and torch.equal(y, 2 * torch.arange(100, dtype=torch.float32))
    made = tclient._pool.made
    assert torch.equal(tclient.call("transform", x=y, scale=0.5), x)
    weight = tclient.acquire("base")["layers.0.weight"]
    assert torch.equal(tclient.call("transform", x=weight, scale=1), weight)
    assert tclient._pool.made == made, "shared memory was copied"
    assert torch.equal(
        tclient.call("transform", x=torch.ones(3, requires_grad=True).reshape(3, 1), scale=2), torch.full((3, 1), 2.0)
    )


def test_strides_of_torch_cross(tclient: st.Client) -> None:
    x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    tclient.publish(
        "strides", {"x": x, "t": x.permute(1, 0, 2, 3), "slice": x[1:, ::2], "expanded": torch.ones(3, 1).expand(3, 4)}
    )
    w = tclient.acquire("strides")
    assert w["x"].stride() == x.stride() and torch.equal(w["x"], x)
    assert torch.equal(w["t"], x.permute(1, 0, 2, 3)) and torch.equal(w["slice"], x[1:, ::2])
    assert (
        w["t"].untyped_storage().data_ptr() == w["x"].untyped_storage().data_ptr()
        if hasattr(x, "untyped_storage")
        else True
    )
    assert torch.equal(w["expanded"], torch.ones(3, 4))


def test_mapping_ends_with_the_last_tensor(module_owner: Owner) -> None:
    import gc

    gc.collect()
    before = len(mappings())
    with st.connect(module_owner.socket, framework="torch") as c:
        c.publish("life", {"x": torch.ones(10), "y": torch.ones(10)})
        c._pool.close()
        view = c.acquire("life")["x"].view(2, 5)[1].detach()
        gc.collect()
        assert len(mappings()) == before + 1
        del view
        eventually(lambda: len(mappings()) == before, "the mapping stays without a tensor")


def test_unsupported_tensors_are_named_in_errors(tclient: st.Client) -> None:
    with pytest.raises(st.CapabilityError, match="'s'"):
        tclient.publish("bad", {"s": torch.ones(3).to_sparse()})
    with pytest.raises(st.CapabilityError, match="meta"):
        tclient.publish("bad", {"m": torch.ones(3, device="meta")})
    tclient.publish("negative", {"a": np.arange(6)[::-1], "b": np.arange(6)})
    assert tclient.acquire("negative")["a"].tolist() == [5, 4, 3, 2, 1, 0]


def test_dlpack_and_numpy_share_bytes(tclient: st.Client) -> None:
    x = tclient.acquire("base", framework="numpy")["layers.0.weight"]
    t = tclient.acquire("base")["layers.0.weight"]
    assert np.array_equal(np.asarray(t), x)
    assert torch.from_dlpack(t).data_ptr() == t.data_ptr()
    assert x.__array_interface__["data"][1], "a read-only array says that it can be written"


def smaps(pid: int, inode: int) -> tuple[int, int]:
    """Returns Rss and Pss in KiB of the mappings of an inode."""
    rss = pss = 0
    on = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            on = words[4] == str(inode)
        elif on and words[0] == "Rss:":
            rss += int(words[1])
        elif on and words[0] == "Pss:":
            pss += int(words[1])
    return rss, pss


def test_python_and_go_exchange_weights_without_a_copy(module_owner: Owner, programs: Path) -> None:
    """Three processes in Python and Go map the same inode. Their proportional sizes add up to one copy."""
    lines = (ROOT / "examples/python/exchange/exchange.py").read_text().split('"""')[2].strip().splitlines()
    assert sum(1 for line in lines if line.strip()) <= 20
    env = {**os.environ, "PYTHONPATH": str(Path(st.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    python = subprocess.Popen(
        [sys.executable, ROOT / "examples/python/exchange/exchange.py", module_owner.socket], env=env, **pipes
    )  # type: ignore[call-overload]
    assert "version" in python.stdout.readline()
    go = subprocess.Popen([programs / "exchange", module_owner.socket], **pipes)  # type: ignore[call-overload]
    assert go.stdout.readline().strip() == "from python: [0.25 0.25 0.25]"
    assert "version" in go.stdout.readline()
    assert python.stdout.readline().strip() == "from go: [0.5, 1.0, 1.5, 2.0]"
    assert python.stdout.readline().strip() == "sum: True"
    with st.connect(module_owner.socket, framework="numpy") as c:
        w = c.acquire("from-python")
        inode = w.mappings[0].inode()[1]
        assert w["fc.weight"].sum() == 0.25 * 256 * 1024  # reads all pages
        sizes = {pid: smaps(pid, inode) for pid in (python.pid, go.pid, c.server.pid, os.getpid())}
        for pid in sizes:
            assert any(line.split()[4] == str(inode) for line in Path(f"/proc/{pid}/maps").read_text().splitlines()), (
                pid
            )
        assert sizes[python.pid][0] and sizes[go.pid][0], f"a process has not read it: {sizes}"
        total = sum(pss for _, pss in sizes.values())
        assert total <= w.nbytes / 1024 * 1.05 + 8, f"more than one copy: {sizes}, {w.nbytes / 1024} KiB"
    for process in (go, python):
        process.communicate("\n", timeout=30)
        assert process.returncode == 0
