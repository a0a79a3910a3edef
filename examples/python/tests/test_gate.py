"""Every way by which a tensor enters the package carries it right or refuses it with an error that names it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import cbor2
import numpy as np
import pytest

import sharedtensor as st
from sharedtensor import arrays, layout, manifest, shards, writer
from sharedtensor.manifest import TensorSpec
from sharedtensor.remote import elements
from sharedtensor.torch_modules import swap

torch = pytest.importorskip("torch")
MODERN = hasattr(torch.Tensor, "untyped_storage")  # 2.0 or newer

SHAPES = [(), (3,), (1,), (0,), (2, 2), (2, 3), (3, 1), (2, 0), (2, 2, 2), (2, 1, 3), (1, 2, 2)]
STEPS = (0, 1, 2, 3, 4, 6)
GUARD = 17.0


def strided(negative: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    found = []
    for shape in SHAPES:
        steps = STEPS if len(shape) < 3 else (0, 1, 2, 4)
        for strides in itertools.product(steps, repeat=len(shape)):
            found.append((shape, strides))
            if negative and shape and strides[0]:
                found.append((shape, (-strides[0], *strides[1:])))
    return found


def test_dense_means_that_each_place_is_filled_once() -> None:
    for shape, strides in strided(negative=True):
        places = [
            sum(i * s for i, s in zip(index, strides, strict=True))
            for index in itertools.product(*(range(dim) for dim in shape))
        ]
        expected = sorted(places) == list(range(len(places)))
        assert manifest.is_dense(shape, strides) == expected, (shape, strides)


def numpy_case(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    base = np.arange(100, 200, dtype=np.float32)
    start = sum(-(dim - 1) * s for dim, s in zip(shape, strides, strict=True) if s < 0)
    return np.lib.stride_tricks.as_strided(base[max(start, 0) :], shape, tuple(4 * s for s in strides))


def torch_case(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    return torch.arange(100, 200, dtype=torch.float32).as_strided(shape, strides)


def planned(tensors: dict[str, Any]) -> tuple[Any, list[float]]:
    """Returns the tensors as the memory of a publication has them, and all elements of that memory."""
    made = st.state_dict(tensors, framework="numpy")
    return made, arrays.flat(made.mappings[0])[: made.nbytes // 4 * 4].view(np.float32).tolist()


@pytest.mark.parametrize("make", [numpy_case, torch_case])
def test_only_elements_of_a_view_are_published(make: Callable[..., Any]) -> None:
    for shape, strides in strided(negative=make is numpy_case):
        view = make(shape, strides)
        expected = np.asarray(view)
        made, memory = planned({"w": view})
        np.testing.assert_array_equal(made["w"], expected, err_msg=f"{shape} {strides}")
        foreign = set(memory) - set(expected.ravel().tolist()) - {0.0}
        assert not foreign, f"{shape} {strides} publishes {foreign}"
        np.testing.assert_array_equal(np.asarray(st.from_array(view)), expected)


@pytest.mark.parametrize("make", [numpy_case, torch_case])
def test_memory_like_a_view_does_not_overlap_itself(make: Callable[..., Any]) -> None:
    for shape, strides in strided(negative=make is numpy_case):
        made = st.empty_like(make(shape, strides))
        values = np.arange(made.size if make is numpy_case else made.numel(), dtype=np.float32).reshape(shape)
        made[...] = values if make is numpy_case else torch.from_numpy(values)
        np.testing.assert_array_equal(np.asarray(made), values, err_msg=f"{shape} {strides}")
        plan = writer.plan({"w": make(shape, strides)})
        assert manifest.is_dense(plan.specs[0].shape, plan.specs[0].strides)


def test_every_stride_pattern_arrives_at_a_function_and_in_a_version(module_owner: Any) -> None:
    cases = strided(negative=True)
    views = {f"{i}": numpy_case(*case) for i, case in enumerate(cases)}
    with st.connect(module_owner.socket, framework="numpy") as client:
        client.publish("views", views)
        with client.acquire("views") as model:
            for name, view in views.items():
                np.testing.assert_array_equal(model[name], view)


class Wrapped(torch.Tensor):  # type: ignore[misc]
    """A tensor whose elements are in another one."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Wrapped(args[0].inner)
        raise NotImplementedError(func)


class Hidden(torch.Tensor):  # type: ignore[misc]
    """A wrapper without __tensor_flatten__."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


class Plain(torch.Tensor):  # type: ignore[misc]
    """A subclass that has its elements and reports another address."""

    def data_ptr(self) -> int:
        return 8


def freed() -> Any:
    made = torch.ones(64)
    (made.untyped_storage() if MODERN else made.storage()).resize_(0)
    return made


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(4)


def functional() -> Any:
    return torch._to_functional_tensor(torch.ones(4))


def quantised() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8)


def jagged() -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def nested() -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "wrapper": (lambda: Wrapped(torch.ones(4)), "Wrapped"),
    "wrapper parameter": (lambda: torch.nn.Parameter(Wrapped(torch.ones(4)), requires_grad=False), "Wrapped"),
    "hidden wrapper": (lambda: Hidden(torch.ones(4)), "Hidden"),
    "jagged": (jagged, "Nested"),
    "nested": (nested, "nested"),
    "meta": (lambda: torch.ones(4, device="meta"), "meta"),
    "sparse": (lambda: torch.eye(4).to_sparse(), "sparse"),
    "csr": (lambda: torch.eye(4).to_sparse_csr(), "sparse"),
    "quantised": (quantised, "quint8"),
    "fake": (fake, "Fake"),
    "functional": (functional, "functional"),
    "freed": (freed, "memory"),
    "uninitialized": (lambda: torch.nn.parameter.UninitializedParameter(), "Uninitialized"),
    "masked": (lambda: np.ma.masked_array(np.ones(4), [0, 1, 0, 0]), "mask"),
    "object": (lambda: np.array([None, 1]), "object"),
    "text": (lambda: np.array(["a", "b"]), "str"),
    "other byte order": (lambda: np.ones(4, np.dtype(np.float32).newbyteorder()), "byte order"),
    "field of a record": (lambda: np.ones(4, "u1,f4")["f1"], "strides"),
}

ENTRIES: dict[str, Callable[[Any, Any], Any]] = {
    "publish": lambda c, t: c.publish("x", {"w": t}),
    "create": lambda c, t: c.create("x", {"w": t}),
    "state_dict": lambda c, t: st.state_dict({"w": t}),
    "from_array": lambda c, t: st.from_array(t),
    "empty_like": lambda c, t: st.empty_like(t),
    "shard": lambda c, t: shards.publish(c, "x", {"w": t}, rank=0, count=1, step=1),
    "call": lambda c, t: c.call("torch.sum", t),
    "call with a map": lambda c, t: c.call("torch.sum", {"a": [t]}),
    "dlpack": lambda c, t: st.to_dlpack(t),
    "submit": lambda c, t: c.submit("build_model", w=t),
    "stream": lambda c, t: [*c.stream("spectral_norm", a=t, steps=1)],
    "asyncio": lambda c, t: asyncio.run(st.aio.Client(c).call("torch.sum", t)),
    "swap": lambda c, t: swap(Holder(t), st.state_dict({"w": torch.ones(4, 4)}, framework="torch")),
    "load_into": lambda c, t: st.load_into(Holder(t), model=named(torch.ones(4, 4))),
    "full_like": lambda c, t: st.full_like(t, 1),
    "publish with asyncio": lambda c, t: asyncio.run(st.aio.Client(c).publish("x", {"w": t})),
    "stream with asyncio": lambda c, t: asyncio.run(consume(st.aio.Client(c).stream("spectral_norm", a=t, steps=1))),
    "submit with asyncio": lambda c, t: asyncio.run(st.aio.Client(c).submit("build_model", w=t)),
    "remote": lambda c, t: elements.raw(t),
}
MODULES = ("swap", "load_into")
COPIES = {("remote", "other byte order"), ("remote", "field of a record")}
"""Entries that copy the elements, so that their place does not matter."""


async def consume(items: Any) -> None:
    async for _ in items:
        pass


def named(w: Any) -> Any:
    model: Any = st.state_dict({"w": w}, framework="torch")
    model.name = "m"
    return model


class Holder(torch.nn.Module):  # type: ignore[misc]
    """A module with one tensor."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        if isinstance(value, torch.nn.Parameter):
            self.w = value
        else:
            self.register_buffer("w", value)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_tensor_without_elements_in_memory_is_refused(module_owner: Any, kind: str, entry: str) -> None:
    make, word = REFUSED[kind]
    if not MODERN and kind in ("jagged", "nested", "fake", "functional", "hidden wrapper"):
        pytest.skip("torch before 2.0 has no such tensors")
    if (entry, kind) in COPIES:
        assert elements.raw(make()).data.tobytes() == make().astype(np.float32).tobytes()
        return
    if entry in MODULES and (kind in ("masked", "object", "text", "other byte order", "field of a record", "meta")):
        return  # no tensor of torch, and a module on "meta" gets memory
    if entry in MODULES and kind in ("freed", "uninitialized"):
        return  # the first gets memory, and the second has no shape
    with st.connect(module_owner.socket, framework="torch") as client:
        if entry == "create" and kind == "meta":
            client.create("x", {"w": make()}).abort()  # shape and type are enough
            return
        with pytest.raises((st.CapabilityError, st.SerializationError, st.IncompatibleError), match=f"(?i){word}"):
            ENTRIES[entry](client, make())


def test_a_tensor_without_elements_in_memory_is_refused_as_a_result(make_owner: Callable[..., Any]) -> None:
    """The caller receives the error of the worker, which names the kind."""

    def give(kind: str) -> Any:
        return {"w": [REFUSED[kind][0]()]}

    def give_each(kind: str) -> Any:
        yield REFUSED[kind][0]()

    owner = make_owner("serve", "--offers")
    with st.connect(owner.socket, framework="torch") as worker, st.connect(owner.socket, framework="torch") as c:
        with worker.offer(give=give, give_each=give_each):
            for kind, (_, word) in REFUSED.items():
                if not MODERN and kind in ("jagged", "nested", "fake", "functional", "hidden wrapper"):
                    continue
                with pytest.raises(st.Error, match=f"(?i){word}"):
                    c.call("give", kind=kind)
                with pytest.raises(st.Error, match=f"(?i){word}"):
                    [*c.stream("give_each", kind=kind)]


def test_quantised_weights_of_torchao_are_refused() -> None:
    """They are wrapper subclasses, whose own address is 0."""
    quantization = pytest.importorskip("torchao.quantization")
    module = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False))
    quantization.quantize_(module, quantization.Int8WeightOnlyConfig())
    for entry in (lambda t: st.state_dict({"w": t}), st.from_array, st.empty_like, elements.raw, writer_plan):
        with pytest.raises(st.CapabilityError, match="dequantize"):
            entry(module[0].weight)
    assert torch.equal(torch.as_tensor(st.from_array(module[0].weight.dequantize())), module[0].weight.dequantize())


def writer_plan(tensor: Any) -> Any:
    return writer.plan({"w": tensor})


@pytest.mark.skipif(not MODERN, reason="torch before 2.0 has no torch.func")
def test_tensors_inside_of_vmap_are_refused() -> None:
    seen: list[str] = []

    def inside(x: Any) -> Any:
        with pytest.raises(st.CapabilityError, match="functorch") as info:
            st.from_array(x)
        seen.append(str(info.value))
        return x

    torch.vmap(inside)(torch.ones(2, 3))
    torch.func.grad(lambda x: inside(x).sum())(torch.ones(3))
    assert len(seen) == 2


CARRIED: dict[str, Callable[[], tuple[Any, Any]]] = {
    "subclass": lambda: ((t := torch.arange(4.0)).as_subclass(Plain), t),
    "parameter": lambda: (torch.nn.Parameter(t := torch.arange(4.0)), t),
    "conjugate": lambda: (torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.tensor([1 - 2j, 3 + 4j])),
    "negative": lambda: (torch.tensor([1 + 2j, 3 - 4j]).conj().imag, torch.tensor([-2.0, 4.0])),
    "view of another type": lambda: ((t := torch.arange(4.0)).view(torch.int32)[1:], t.view(torch.int32)[1:].clone()),
    "zero size": lambda: (torch.ones(0, 3), torch.ones(0, 3)),
    "scalar": lambda: (torch.tensor(3.0), torch.tensor(3.0)),
    "matrix": lambda: (np.matrix([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]], dtype=torch.float64)),
}


@pytest.mark.parametrize("kind", CARRIED)
def test_a_tensor_with_a_lazy_or_plain_form_arrives(module_owner: Any, kind: str) -> None:
    given, expected = CARRIED[kind]()
    with st.connect(module_owner.socket, framework="torch") as client:
        client.publish("carried", {"w": given})
        with client.acquire("carried") as model:
            assert torch.equal(model["w"], expected)
    assert np.array_equal(np.asarray(st.from_array(given)), expected.numpy())


class Lazy(dict):  # type: ignore[type-arg]
    """A mapping that makes its tensors when they are taken."""

    def items(self) -> Any:
        return ((key, self[key]) for key in self)

    def values(self) -> Any:
        return (self[key] for key in self)

    def __getitem__(self, key: str) -> Any:
        return self.make(float(key))

    make: Callable[[float], Any]


@pytest.mark.parametrize("make", [lambda v: np.full(8, v, np.float32), lambda v: torch.full((8,), v)])
def test_tensors_that_a_mapping_makes_stay_apart(module_owner: Any, make: Callable[[float], Any]) -> None:
    lazy = Lazy({str(i): None for i in range(32)})
    lazy.make = make
    made = st.state_dict(lazy, framework="numpy")
    assert [made[key][0] for key in made] == list(range(32))
    plan = writer.plan(lazy)
    assert len({spec.offset for spec in plan.specs}) == 32
    from sharedtensor.memory import SlabPools
    from sharedtensor.values import Outgoing

    with st.connect(module_owner.socket) as client:
        out = Outgoing(lazy, client._session(), SlabPools().arguments)
        assert len({tag.value[2] for tag in cbor2.loads(out.item).values()}) == 32
        out.close()


def test_described_tensors_are_host_memory_for_copies() -> None:
    d = layout.describe_all({"w": np.ones(4, np.float32)})["w"]
    on_gpu = arrays.Described(d.value, d.dtype, d.shape, d.strides, d.address, "cuda:0")
    slab = st.memory.Slab(64)  # type: ignore[attr-defined]
    spec = TensorSpec("w", d.dtype, d.shape, d.strides, 0, 0)
    for copy in (lambda: arrays.copy_into(slab, 0, on_gpu), lambda: arrays.copy_elements(slab, spec, on_gpu)):
        with pytest.raises(st.CapabilityError, match="cuda:0"):
            copy()


WORKER = """
import sys
import numpy as np

import sharedtensor as st
sys.path.insert(0, sys.argv[2])
from test_gate import numpy_case, strided

c = st.connect(sys.argv[1], framework="numpy")
cases = strided(negative=True)

@c.endpoint
def echo(views: list) -> object:
    return views

@c.endpoint
def views() -> object:
    return [numpy_case(*case) for case in cases]

@c.endpoint
def each() -> object:
    for i in range(0, len(cases), 40):
        yield [numpy_case(*case) for case in cases[i : i + 40]]

print("started", flush=True)
c.serve()
"""


def test_every_stride_pattern_arrives_at_a_worker_and_as_its_result(make_owner: Callable[..., Any]) -> None:
    import subprocess
    import sys
    from pathlib import Path

    from conftest import eventually  # not at the top: the worker imports this file without pytest's path

    owner = make_owner("serve", "--offers")
    folder = str(Path(__file__).parent)
    process = subprocess.Popen([sys.executable, "-c", WORKER, owner.socket, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        expected = [numpy_case(*case) for case in strided(negative=True)]
        with st.connect(owner.socket, framework="numpy") as client:
            eventually(lambda: any(e.name == "each" for e in client.endpoints()), "the functions are offered")
            streamed: list[Any] = []
            for part in client.stream("each"):
                streamed += part
            for found in (client.call("echo", views=expected), client.call("views"), streamed):
                assert len(found) == len(expected)
                for view, want in zip(found, expected, strict=True):
                    np.testing.assert_array_equal(view, want)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
