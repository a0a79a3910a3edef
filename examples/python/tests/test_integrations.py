"""The adapters for inference engines work with the engines' code.

SHAREDTENSOR_ENGINES names a folder with the unpacked packages of the engines, without their dependencies. The tests
import modules from there and replace only what those modules import.
"""

from __future__ import annotations

import abc
import ast
import asyncio
import importlib
import importlib.metadata
import inspect
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Owner

import sharedtensor as st
from sharedtensor.integrations import Source, weights

torch = pytest.importorskip("torch", reason="torch is not installed: no engine is tested")
ENGINES = Path(os.environ.get("SHAREDTENSOR_ENGINES", "/nonexistent"))


def engine(name: str) -> Path:
    """Returns the folder of a package, or skips the test."""
    found = ENGINES / name
    if not found.is_dir():
        pytest.skip(f"{name} is not in SHAREDTENSOR_ENGINES: nothing of it is tested")
    return found


class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model with the load_weights method of the engines' models."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def load_weights(self, weights: Any) -> None:
        with torch.no_grad():
            for name, tensor in weights:
                self.get_parameter(name).copy_(tensor)


@pytest.fixture
def published(module_owner: Owner) -> Iterator[tuple[str, Net]]:
    net = Net()
    with st.connect(module_owner.socket) as c:
        c.publish("policy", net.state_dict())
        yield module_owner.socket, net


def same(a: Net, b: Net) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_the_message() -> None:
    source = Source("policy", 3, "/x.sock")
    assert Source.parse(source.json()) == source
    for bad in ("", "[]", "{}", '{"model": 3}', '{"model": "x", "version": "y"}'):
        with pytest.raises(st.InvalidArgumentError):
            Source.parse(bad)


def test_sglang_calls_the_loader(published: tuple[str, Net]) -> None:
    from sharedtensor.integrations import sglang

    socket, net = published
    target = Net()
    sglang.load_weights(target, sglang.message("policy", 0, socket))
    assert same(net, target)
    with pytest.raises(st.InvalidArgumentError):
        sglang.load_weights(target, [("other", torch.ones(1))])
    with pytest.raises(st.NotFoundError):
        sglang.load_weights(target, sglang.message("nothing", 0, socket))
    updater = engine("sglang") / "srt/model_executor/model_runner_components/weight_updater.py"
    calls = [
        n
        for n in ast.walk(ast.parse(updater.read_text()))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "custom_loader"
    ]
    assert [len(c.args) for c in calls] == [2] and ast.unparse(calls[0].args[1]) == "named_tensors"
    assert list(inspect.signature(sglang.load_weights).parameters) == ["model", "named_tensors"]
    assert "load_format in self.custom_weight_loaders" in updater.read_text()
    options = (engine("sglang") / "srt/arg_groups/fields/model.py").read_text()
    assert "custom_weight_loader:" in options
    functions = ast.walk(ast.parse((engine("sglang") / "srt/entrypoints/engine.py").read_text()))
    names = {n.name for n in functions if isinstance(n, ast.FunctionDef)}
    assert names >= {"begin_weight_update", "update_weights_from_tensor", "end_weight_update"}


@pytest.fixture
def sglang_hooks() -> Iterator[Any]:
    """SGLang's hook registry, and a module in the place of its loaders."""
    folder = engine("sglang")
    before = set(sys.modules)
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.model_loader"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    loaders = types.ModuleType("sglang.srt.model_loader.loader")
    loaders.get_model_loader = lambda load_config, model_config=None: "theirs"  # type: ignore[attr-defined]
    sys.modules[loaders.__name__] = loaders
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    yield registry, loaders
    registry.reset()
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_sglang_uses_the_loader_in_place(module_owner: Owner, sglang_hooks: Any) -> None:
    from sharedtensor.integrations import attached, fingerprint, sglang

    registry, loaders = sglang_hooks
    sglang.register()
    registry.apply_hooks()
    other = types.SimpleNamespace(model_loader_extra_config={})
    assert loaders.get_model_loader(other) == loaders.get_model_loader(load_config=other, model_config=None) == "theirs"

    config = types.SimpleNamespace(hf_config=None, dtype=torch.float32, quantization=None)
    extra = {"sharedtensor": {"model": "in-place", "socket": module_owner.socket, "wait": 0}}
    ours = loaders.get_model_loader(load_config=types.SimpleNamespace(model_loader_extra_config=extra, tp_rank=0))
    net = Net()
    key = sglang.key(config, ours.load_config)
    target = Net().to("meta")
    with st.connect(module_owner.socket) as c:
        c.publish("in-place", attached.export(net), metadata=fingerprint.metadata({**key, "dtype": "torch.float16"}))
        with pytest.raises(st.IncompatibleError, match=r"dtype is 'torch\.float16'"):
            ours.attach(target, key)
        c.publish("in-place", attached.export(net), metadata=fingerprint.metadata(key))
    assert ours.attach(target, key) is target and same(net, target)
    assert st.is_shared(target.fc.weight) and ours.preloaded_weights_bytes > 0
    with pytest.raises(st.ConfigurationError):
        sglang.Loader(None, {"model": 3})

    source = (engine("sglang") / "srt/model_loader/loader.py").read_text()
    functions = {n.name: n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    named = {name: [a.arg for a in functions[name].args.args] for name in ("_initialize_model", "get_model_loader")}  # type: ignore[union-attr]
    assert named["_initialize_model"] == ["model_config", "load_config", "quant_config"]
    assert named["get_model_loader"] == ["load_config", "model_config"]
    assert [a.arg for a in functions["_get_quantization_config"].args.args][:2] == ["model_config", "load_config"]  # type: ignore[union-attr]
    base = {n.name: n for n in functions["BaseModelLoader"].body if isinstance(n, ast.FunctionDef)}
    for name, method in base.items():
        wanted = [a.arg for a in (*method.args.args, *method.args.kwonlyargs)]
        if name != "__init__":
            assert list(inspect.signature(getattr(sglang.Loader, name)).parameters) == wanted


class Stub(types.ModuleType):
    """A module with every attribute. It replaces imports of the engines that the tests do not need."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "instrument":
            return lambda **_: lambda function: function
        value = type(name, (), {})
        setattr(self, name, value)
        return value


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Imports the vLLM adapter with vLLM's base classes and factory."""
    folder = engine("vllm")
    before = set(sys.modules)
    for name in ("vllm", "vllm.device_allocator", "vllm.distributed", "vllm.distributed.weight_transfer"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, package)
    for name in (
        "config",
        "config.parallel",
        "config.weight_transfer",
        "config.load",
        "logger",
        "envs",
        "platforms",
        "tracing",
        "utils",
        "utils.mem_utils",
        "utils.torch_utils",
        "model_executor",
        "model_executor.model_loader",
        "model_executor.model_loader.reload",
        "model_executor.model_loader.utils",
        "model_executor.utils",
    ):
        stub = Stub("vllm." + name)
        stub.__path__ = []
        monkeypatch.setitem(sys.modules, "vllm." + name, stub)
    sys.modules["vllm.logger"].init_logger = lambda _: types.SimpleNamespace(info=print)  # type: ignore[attr-defined]
    sys.modules["vllm.model_executor.model_loader"].__path__ = [str(folder / "model_executor/model_loader")]
    reload = sys.modules["vllm.model_executor.model_loader.reload"]
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        setattr(reload, name, lambda *args, name=name: steps.append((name, len(args))))
    registered: dict[str, type] = {}
    loader = sys.modules["vllm.model_executor.model_loader"]
    loader.register_model_loader = lambda name: lambda cls: registered.setdefault(name, cls)  # type: ignore[attr-defined]
    steps: list[tuple[str, int]] = []
    monkeypatch.delitem(sys.modules, "sharedtensor.integrations.vllm", raising=False)
    module = importlib.import_module("sharedtensor.integrations.vllm")
    module.test_steps, module.test_registered = steps, registered  # type: ignore[attr-defined]
    yield module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_vllm_uses_the_engine(published: tuple[str, Net], vllm: Any) -> None:
    socket, net = published
    vllm.register()
    vllm.register()
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory").WeightTransferEngineFactory
    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    assert base.__file__.startswith(str(ENGINES))
    target = Net()
    config = types.SimpleNamespace(backend="sharedtensor")
    whole = types.SimpleNamespace(parallel_config=None, model_config="config")
    ours = factory.create_engine(config, whole, "cpu", target)
    assert isinstance(ours, base.WeightTransferEngine) and not type(ours).__abstractmethods__
    with pytest.raises(st.ConfigurationError):
        ours.receive_weights(ours.parse_update_info({"model": "policy"}))
    ours.init_transfer_engine(ours.parse_init_info({"socket": socket}))
    ours.start_weight_update()
    ours.receive_weights(ours.parse_update_info({"model": "policy", "version": 0}))
    ours.finish_weight_update()
    assert same(net, target)
    assert vllm.test_steps == [("initialize_layerwise_reload", 1), ("finalize_layerwise_reload", 2)]
    with pytest.raises(ValueError, match="Invalid update_info"):
        ours.parse_update_info({"weights": 1})
    ours.shutdown()
    ours.shutdown()
    for name in (
        "init_transfer_engine",
        "start_weight_update",
        "receive_weights",
        "finish_weight_update",
        "shutdown",
        "__init__",
    ):
        theirs, mine = getattr(base.WeightTransferEngine, name), getattr(type(ours), name)
        assert list(inspect.signature(theirs).parameters) == list(inspect.signature(mine).parameters), name


def test_vllm_uses_the_loader(published: tuple[str, Net], vllm: Any) -> None:
    socket, net = published
    vllm.register()
    cls = vllm.test_registered["sharedtensor"]
    base = importlib.import_module("vllm.model_executor.model_loader.base_loader").BaseModelLoader
    assert issubclass(cls, base) and not cls.__abstractmethods__
    for name in ("download_model", "load_weights"):
        assert list(inspect.signature(getattr(base, name)).parameters) == list(
            inspect.signature(getattr(cls, name)).parameters
        )
    target = Net()
    loader = cls(types.SimpleNamespace(model_loader_extra_config={"model": "policy", "socket": socket}))
    loader.download_model(None)
    loader.load_weights(target, None)
    assert same(net, target)
    with pytest.raises(st.ConfigurationError):
        cls(types.SimpleNamespace(model_loader_extra_config={})).load_weights(target, None)


def test_checkpoint_engine_receiver_accepts_the_sender(
    published: tuple[str, Net], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: checkpoint-engine is not tested")
    pytest.importorskip("loguru", reason="loguru is not installed: checkpoint-engine is not tested")
    package = engine("checkpoint_engine")
    if not hasattr(torch.float32, "itemsize"):
        pytest.skip("checkpoint-engine needs torch 2.5")
    stub = types.ModuleType("checkpoint_engine")
    stub.__path__ = [str(package)]
    monkeypatch.setitem(sys.modules, "checkpoint_engine", stub)
    worker = importlib.import_module("checkpoint_engine.worker")
    assert worker.__file__.startswith(str(ENGINES))
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    device = types.SimpleNamespace(synchronize=nothing, ipc_collect=nothing, empty_cache=nothing)
    monkeypatch.setattr(worker, "DeviceManager", lambda: types.SimpleNamespace(device_module=device))  # there is no GPU
    from sharedtensor.integrations.checkpoint_engine import Sender

    socket, net = published
    target = Net()
    places: list[int] = []
    hooks: list[bool] = []

    def run(received: list[tuple[str, Any]]) -> None:
        places.extend(tensor.data_ptr() for _, tensor in received)
        target.load_weights(received)

    address = f"ipc://{folder}/zmq.sock"
    context = zmq.Context()
    receive = {"run": run, "post_hook": lambda: hooks.append(True)}
    thread = threading.Thread(target=worker.update_weights_from_ipc, args=(context, address, 0), kwargs=receive)
    thread.start()
    with Sender(address, timeout=20) as sender:
        sender.send(Source("policy", 0, socket))
    thread.join(20)
    assert same(net, target) and hooks == [True] and len(places) == 2 and places[1] - places[0] < 4096
    context.term()


def test_weights_without_a_client(published: tuple[str, Net]) -> None:
    socket, net = published
    assert {name for name, _ in weights(Source("policy", socket=socket))} == set(net.state_dict())


@pytest.fixture
def verl() -> Iterator[Any]:
    """The adapter for verl with verl's own base classes."""
    folder = engine("verl")
    before = set(sys.modules)
    for name in ("verl", "verl.checkpoint_engine"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    for name in (
        *("ray", "verl.single_controller", "verl.single_controller.base", "verl.single_controller.base.decorator"),
        *("verl.single_controller.ray", "verl.utils", "verl.utils.distributed", "verl.utils.import_utils"),
        *("verl.utils.ray_utils", "verl.workers", "verl.workers.config", "verl.workers.rollout"),
        "verl.workers.rollout.utils",
    ):
        stub = Stub(name)
        stub.__path__ = []
        sys.modules[name] = stub
    unchanged: Callable[..., Any] = lambda *_, **__: lambda function: function  # noqa: E731
    decorators: Any = sys.modules["verl.single_controller.base.decorator"]
    decorators.register = unchanged
    decorators.Dispatch = types.SimpleNamespace(ONE_TO_ALL=0, DP_COMPUTE=0)
    sys.modules["verl.utils.ray_utils"].auto_await = lambda function: function  # type: ignore[attr-defined]
    sys.modules["ray"].remote = lambda cls: cls  # type: ignore[attr-defined]
    yield importlib.import_module("sharedtensor.integrations.verl")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def steps(first: float) -> Iterator[tuple[str, Any]]:
    """Yields weights as trainers do: each tensor exists only until the next one is requested."""
    yield "a", torch.full((4, 3), first)
    yield "b", torch.full((5,), -first, dtype=torch.float64)


async def received(generator: Any) -> dict[str, Any]:
    return {name: tensor async for name, tensor in generator}


def test_verl_passes_steps(module_owner: Owner, verl: Any) -> None:
    base = importlib.import_module("verl.checkpoint_engine.base")
    assert base.__file__.startswith(str(ENGINES))
    made = [
        base.CheckpointEngineRegistry.new(
            "sharedtensor", bucket_size=1, model="verl", socket=module_owner.socket, **more
        )
        for more in ({"is_master": True}, {"is_master": False}, {}, {})
    ]
    actor, other, *rollouts = made
    assert all(isinstance(each, base.CheckpointEngineWithCache) for each in made)
    ranks = type(actor).build_topology(2, 2, [each.prepare() for each in made])
    assert ranks == ({"rank": [0, 1]}, {"rank": [2, 3]})
    with pytest.raises(st.ConfigurationError):
        type(actor).build_topology(1, 1, [{"model": "a"}, {"model": "b"}])

    async def step(number: int) -> list[dict[str, Any]]:
        for rank, each in enumerate(made):
            each.init_process_group(rank=rank)
        *_, one, two = await asyncio.gather(
            actor.send_weights(steps(number), global_steps=number),
            other.send_weights(steps(number), global_steps=number),
            *(received(each.receive_weights(global_steps=number)) for each in rollouts),
        )
        for each in made:
            each.finalize()
        return [one, two]

    for number in (1, 2, 3):
        for found in asyncio.run(step(number)):
            assert set(found) == {"a", "b"} and bool((found["a"] == number).all()) and st.is_shared(found["a"])
    cached = asyncio.run(received(rollouts[0].get_weights()))
    assert bool((cached["b"] == -3).all())
    for name in ("prepare", "build_topology", "init_process_group", "finalize", "send_weights", "receive_weights"):
        theirs, mine = getattr(base.CheckpointEngine, name), getattr(verl.SharedTensorCheckpointEngine, name)
        if name != "init_process_group":
            assert list(inspect.signature(theirs).parameters) == list(inspect.signature(mine).parameters), name


@pytest.fixture
def nemo_rl() -> Iterator[Any]:
    """The adapter for NeMo RL with the base class in SHAREDTENSOR_ENGINES/nemo_rl. No package registry has it, so CI
    uses a class with its abstract methods."""
    before = set(sys.modules)
    folder = ENGINES / "nemo_rl"
    for name in ("nemo_rl", "nemo_rl.utils", "nemo_rl.utils.checkpoint_engines"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    if not folder.is_dir():
        base = types.ModuleType("nemo_rl.utils.checkpoint_engines.base")
        methods = ["prepare", "init_policy_process_group", "init_rollout_process_group", "send_weights"]
        table = {name: abc.abstractmethod(lambda self: None) for name in (*methods, "receive_weight_batches")}
        table["finalize"] = lambda self: None
        base.CheckpointEngine = abc.ABCMeta("CheckpointEngine", (), table)  # type: ignore[attr-defined]
        sys.modules[base.__name__] = base
    yield importlib.import_module("sharedtensor.integrations.nemo_rl")
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_nemo_rl_passes_batches(module_owner: Owner, nemo_rl: Any) -> None:
    make = nemo_rl.SharedTensorCheckpointEngine
    base = importlib.import_module("nemo_rl.utils.checkpoint_engines.base")
    if hasattr(base, "create_checkpoint_engine"):
        names = ("prepare", "init_policy_process_group", "init_rollout_process_group", "send_weights", "finalize")
        for name in (*names, "receive_weight_batches"):
            theirs, mine = getattr(base.CheckpointEngine, name), getattr(make, name)
            assert list(inspect.signature(theirs).parameters) == list(inspect.signature(mine).parameters), name

        def make(bucket_size: int, **options: Any) -> Any:
            backend = "sharedtensor.integrations.nemo_rl:SharedTensorCheckpointEngine"
            return base.create_checkpoint_engine(backend, bucket_size_bytes=bucket_size, engine_kwargs=options)

    policy, other, rollout = (make(bucket_size=40, model="nemo", socket=module_owner.socket) for _ in range(3))
    with st.connect(module_owner.socket) as c:
        c.publish("nemo", {"a": torch.zeros(1)})  # of an earlier run
    metadata = [policy.prepare(), other.prepare(), rollout.prepare()]
    worlds = {"train_world_size": 2, "rollout_world_size": 1, "metadata": metadata}
    policy.init_policy_process_group(worker_rank=0, **worlds)
    other.init_policy_process_group(worker_rank=1, **worlds)
    rollout.init_rollout_process_group(rollout_rank=0, **worlds)

    async def batches() -> list[list[tuple[str, Any]]]:
        return [batch async for batch in rollout.receive_weight_batches()]

    async def step(number: int) -> Any:
        *_, found = await asyncio.gather(
            policy.send_weights(steps(number)), other.send_weights(steps(number)), batches()
        )
        return found

    for number in (1, 2):
        found = asyncio.run(step(number))
        assert [[name for name, _ in batch] for batch in found] == [["a"], ["b"]]
        assert bool((found[0][0][1] == number).all()) and st.is_shared(found[1][0][1])
        rollout.finalize()
    with pytest.raises(st.ConfigurationError):
        rollout.init_rollout_process_group(rollout_rank=0, **{**worlds, "metadata": [{"model": "x"}]})


def test_a_sender_follows_a_layout_that_changes(module_owner: Owner) -> None:
    from sharedtensor.integrations.steps import Receiver, Sender

    source = Source("layout", socket=module_owner.socket)
    sender, receiver = Sender(source), Receiver(source, timeout=5)
    sender.send(steps(1), 1)
    sender.send([("a", torch.ones(4, 3)), ("b", torch.ones(9)), ("c", torch.ones(2))], 2)
    model = receiver.receive(2)
    assert {name: tuple(t.shape) for name, t in model.items()} == {"a": (4, 3), "b": (9,), "c": (2,)}
    sender.send([("a", torch.ones(4, 3))], 3)
    assert set(receiver.receive(3)) == {"a"}
    with pytest.raises(st.InvalidArgumentError, match="twice"):
        sender.send([("a", torch.ones(4, 3)), ("a", torch.ones(4, 3))], 4)
    receiver.skip()
    sender.send([("a", torch.ones(4, 3))], 6)
    with pytest.raises(st.ConfigurationError, match="replaced by those of step 6"):
        receiver.receive(5)
    with pytest.raises(st.DeadlineExceededError):
        Receiver(source, timeout=0.2).receive(9)
    sender.close()
    receiver.close()
